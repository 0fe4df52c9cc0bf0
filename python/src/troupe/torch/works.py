"""What torch.distributed gets for an operation: works, and the futures of those that go on by themselves."""

from __future__ import annotations

import queue
import threading
from datetime import timedelta
from typing import Any, Callable, Optional

import torch
import torch.distributed as dist
from torch._C import _distributed_c10d as c10d

from troupe._peers import Message
from troupe.errors import Error, Status

FOR_EVER_MS = 100 * 365 * 24 * 3600 * 1000


class BackendError(Error, dist.DistBackendError):
    """An operation failed; `status` says in which way, and the message names the rank where one is to blame."""


def translated(error: Error) -> Error:
    return error if error.status == Status.INVALID_ARGUMENT else BackendError(error.status, str(error))


def milliseconds_of(timeout: Any, otherwise: int) -> int:
    """The milliseconds of a timedelta or a number; `otherwise` where it is unset or not positive."""
    if isinstance(timeout, timedelta):
        timeout = int(timeout.total_seconds() * 1000)
    return timeout if timeout and timeout > 0 else otherwise


def _result_of(future: Any) -> Any:
    """The value that a future was given, or its error, raised. An error that is raised here arrives in C++, where
    Reducer and others look for it; `Future.set_exception()` does not tell them."""
    value = future.value()
    if isinstance(value, Error):
        raise value
    return value


class Completed(c10d.Work):
    """An operation that had ended when its call returned. What torch hands out for a Work in Python is another object,
    which forwards wait() and get_future() and nothing else; complete_torchs_work() has the rest."""

    def __init__(self, tensors: list[torch.Tensor]) -> None:
        super().__init__()
        self.tensors = tensors

    def wait(self, timeout: timedelta = timedelta(0)) -> bool:
        return True

    def get_future(self) -> Any:
        future: Any = torch.futures.Future()
        future.set_result(self.tensors)
        return future


class Pending(Completed):
    """An operation that goes on by itself. What is to be done with its results is done once, by the first thread that
    finds it over."""

    def __init__(self, backend: Any, tensors: list[torch.Tensor], spread: Callable[[], None]) -> None:
        super().__init__(tensors)
        self.backend, self.spread = backend, spread
        self.lock = threading.Lock()
        self.is_over = False
        self._error: Optional[Error] = None
        self._promise: Any = None
        self._future: Any = None
        backend.begin(self)

    def wait_for(self, milliseconds: int) -> None:
        """Until it has ended."""
        raise NotImplementedError

    def outlives(self, error: Error) -> bool:
        """Whether it goes on although a wait ended in that error."""
        return False

    def follow(self) -> None:
        """Has another thread finish it."""
        raise NotImplementedError

    def finish(self, milliseconds: int) -> None:
        """Until it has ended; raises its error."""
        if not self.is_over:
            error: Optional[Error] = None
            try:
                self.wait_for(milliseconds)
            except Error as failed:
                error = translated(failed)
                if self.outlives(error):
                    raise error from None
            self.end(error)
        if self._error is not None:
            raise self._error

    def end(self, error: Optional[Error]) -> None:
        with self.lock:
            if self.is_over:
                return
            if error is None:
                self.spread()
            self._error, self.is_over = error, True
        self.backend.forget(self, error)
        if self._promise is not None:
            self._promise.set_result(error or self.tensors)

    def finish_quietly(self) -> None:
        """Waits for the sake of its future, which gets its error."""
        try:
            self.finish(FOR_EVER_MS)
        except Error:
            pass

    def wait(self, timeout: timedelta = timedelta(0)) -> bool:
        self.finish(milliseconds_of(timeout, FOR_EVER_MS))
        return True

    def get_future(self) -> Any:
        with self.lock:
            if self._future is not None:
                return self._future
            promise: Any = torch.futures.Future()
            self._future = promise.then(_result_of)
            if not self.is_over:
                self._promise = promise
        if self._promise is None:
            promise.set_result(self._error or self.tensors)
        else:
            self.follow()
        return self._future


class Posted(Pending):
    """A collective in the group's own thread."""

    number = 0
    memory: Any = None

    def wait_for(self, milliseconds: int) -> None:
        self.backend.peers.wait(self.number, milliseconds)

    def outlives(self, error: Error) -> bool:
        return error.status == Status.TIMEOUT and self.backend.peers.completed() < self.number

    def follow(self) -> None:
        self.backend.follower.put(self.finish_quietly)


class OnItsWay(Pending):
    """A message."""

    message: Message
    _watcher: Optional[threading.Thread] = None

    def __init__(self, backend: Any, tensors: list[torch.Tensor], spread: Callable[[], None]) -> None:
        super().__init__(backend, tensors, spread)
        self._waiting = threading.Lock()

    def wait_for(self, milliseconds: int) -> None:
        with self._waiting:
            if self.is_over:
                return  # another thread has waited
            error: Optional[Error] = None
            try:
                source = self.message.wait(min(milliseconds, self.backend.timeout_ms))
                self.tensors[0]._troupe_source_rank = source  # type: ignore[attr-defined]
            except Error as failed:
                error = translated(failed)
            self.message.free()
            self.end(error)

    def follow(self) -> None:
        with self.lock:
            if self._watcher is None and not self.is_over:
                self._watcher = threading.Thread(target=self.finish_quietly, daemon=True, name="troupe message")
                self._watcher.start()

    def join(self) -> None:
        if self._watcher is not None:
            self._watcher.join()


def complete_torchs_work() -> None:
    """Gives the objects that torch hands out for a Work in Python what they lack: they never say that they are
    completed, and do not know whom a message came from. Those of other back-ends answer as before."""
    is_completed, source_rank = c10d.Work.is_completed, c10d.Work._source_rank

    def is_completed_or_has_result(work: Any) -> bool:
        if is_completed(work):
            return True
        try:
            return bool(work.get_future().done())
        except RuntimeError:
            return False

    def known_source_rank(work: Any) -> int:
        try:
            return int(source_rank(work))
        except RuntimeError:
            future = work.get_future() if is_completed_or_has_result(work) else None
            found = getattr(future.value()[0], "_troupe_source_rank", None) if future is not None else None
            if found is None:
                raise
            return int(found)

    setattr(c10d.Work, "is_completed", is_completed_or_has_result)
    setattr(c10d.Work, "_source_rank", known_source_rank)


class Follower:
    """A thread that completes futures, made when the first one is asked for."""

    def __init__(self) -> None:
        self._queue: "queue.SimpleQueue[Optional[Callable[[], None]]]" = queue.SimpleQueue()
        self._thread: Optional[threading.Thread] = None

    def put(self, body: Callable[[], None]) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, daemon=True, name="troupe futures")
            self._thread.start()
        self._queue.put(body)

    def _run(self) -> None:
        while (body := self._queue.get()) is not None:
            body()
            del body

    def stop(self) -> None:
        self._queue.put(None)
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join()
