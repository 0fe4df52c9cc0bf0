"""Processes that exchange memory: peers.h with types and exceptions. It knows nothing of PyTorch."""

from __future__ import annotations

import ctypes
import socket
import struct
import weakref
from datetime import timedelta
from typing import Any, Optional, Protocol, Sequence

from troupe import _c
from troupe.errors import Error, Status

# A tensor, or what else has memory: its address, and its elements.
Piece = tuple[int, int]


class Store(Protocol):
    """What a torch.distributed.Store does for members that look for each other."""

    def set(self, key: str, value: Any) -> None: ...

    def wait(self, keys: list[str], timeout: timedelta) -> None: ...

    def get(self, key: str) -> bytes: ...


def _callbacks(store: Store, failures: list[BaseException]) -> _c.Store:
    """The store for C; what it raises is kept in `failures`."""

    def put(unused: Any, key: bytes, value: int, size: int) -> int:
        try:
            store.set(key.decode(), ctypes.string_at(value, size))
            return 0
        except BaseException as error:  # pylint: disable=broad-except
            failures.append(error)
            return -2

    def get(unused: Any, key: bytes, milliseconds: int, value: int, capacity: int) -> int:
        try:
            store.wait([key.decode()], timedelta(milliseconds=milliseconds))
        except Exception as error:  # pylint: disable=broad-except
            failures.append(error)
            return -1
        try:
            found = store.get(key.decode())
            if len(found) > capacity:
                return -2
            ctypes.memmove(value, found, len(found))
            return len(found)
        except BaseException as error:  # pylint: disable=broad-except
            failures.append(error)
            return -2

    return _c.Store(None, _c.StoreSet(put), _c.StoreGet(get))


def own_address(towards: Optional[str], port: int) -> str:
    """The address of this host that members on others reach, if `towards` is one of them. Sends nothing."""

    def local_end(host: str) -> str:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            probe.connect((host, port or 1))
            return str(probe.getsockname()[0])

    loopback = "127.0.0.1"
    if towards is None or towards in ("localhost", "::1") or towards.startswith("127."):
        return loopback
    try:
        found = local_end(towards)
        # A host's own name often means its loopback interface, which others do not reach.
        return found if not found.startswith("127.") else local_end("192.0.2.1")
    except OSError:
        return loopback


def _pieces(pieces: Sequence[Piece]) -> Any:
    array: Any = _c.Piece * len(pieces)
    return array(*pieces)


def _counts(counts: Optional[Sequence[int]]) -> Any:
    return None if counts is None else (ctypes.c_size_t * len(counts))(*counts)


class _Request:
    """A collective with up to one piece of memory to read and one to write. What calls differ in lies together, so that
    one call of fill() writes all of it: the two pieces, then kind, dtype, reduction and root."""

    fill = struct.Struct("@PNPNiiii").pack_into

    def __init__(self, handle: ctypes.c_void_p) -> None:
        self.memory, self.error = _c.Request(), _c.CError()
        asked = self.memory.asked
        asked.inputs, asked.outputs = ctypes.pointer(self.memory.given), ctypes.pointer(self.memory.taken)
        asked.input_pieces = asked.output_pieces = 1
        self.milliseconds = 0
        self.arguments = handle, ctypes.byref(asked), None, ctypes.byref(self.error)

    def limit(self, milliseconds: int) -> None:
        self.memory.asked.milliseconds = self.milliseconds = milliseconds

    def failure(self, status: int) -> Error:
        return Error(status, self.error.message.decode(errors="replace"))


class Message:
    """On its way. `kept` is what its memory belongs to."""

    def __init__(self, handle: ctypes.c_void_p, kept: Any) -> None:
        self._handle, self._kept = handle, kept

    def wait(self, milliseconds: int) -> int:
        """Until it has ended; returns the member at the other side."""
        member = ctypes.c_int32()
        _c.call("message_wait", self._handle, milliseconds, ctypes.byref(member))
        return member.value

    def free(self) -> None:
        handle, self._handle = self._handle, ctypes.c_void_p()
        _c.value("message_free", handle)


_beside: Optional[weakref.ReferenceType["Peers"]] = None


class Peers:
    """A group; troupe's peers.h says what each call means. The members call the same operations in one order."""

    _handle: ctypes.c_void_p

    def __init__(self, store: Store, name: str, ranks: Sequence[int], index: int, address: str,
                 milliseconds: int) -> None:
        global _beside  # pylint: disable=global-statement
        beside = _beside() if _beside is not None else None
        failures: list[BaseException] = []
        self._store = _callbacks(store, failures)
        options = _c.PeersOptions(
            name.encode(), (ctypes.c_int32 * len(ranks))(*ranks), len(ranks), index, address.encode(), milliseconds,
            self._store, beside._handle if beside is not None else None)
        self._handle = ctypes.c_void_p()
        try:
            _c.call("peers_connect", ctypes.byref(options), ctypes.byref(self._handle))
        except Error as error:
            raise error from (failures[0] if failures else None)
        if beside is None:
            _beside = weakref.ref(self)
        # Those that no call is using.
        self._requests = [_Request(self._handle)]
        self._run_in_c = _c.library().troupe_peers_run

    def run(self, kind: int, dtype: int, inputs: Sequence[Piece], outputs: Sequence[Piece], milliseconds: int, *,
            reduction: int = _c.SUM, root: int = 0, input_counts: Optional[Sequence[int]] = None,
            output_counts: Optional[Sequence[int]] = None, post: bool = False) -> int:
        """In this thread, or posted: then the number to wait for is returned."""
        asked = _c.Collective(kind, dtype, reduction, root, _pieces(inputs), _pieces(outputs), len(inputs),
                              len(outputs), _counts(input_counts), _counts(output_counts), milliseconds)
        if not post:
            _c.call("peers_run", self._handle, ctypes.byref(asked), None)
            return 0
        posted = ctypes.c_uint64()
        _c.call("peers_run", self._handle, ctypes.byref(asked), ctypes.byref(posted))
        return posted.value

    def run_one(self, kind: int, dtype: int, reduction: int, root: int, given: int, given_count: int, taken: int,
                taken_count: int, milliseconds: int) -> None:
        """Like run() in this thread, with at most one piece to read and one to write, each an address and its elements;
        where there is none, both are 0. Makes no objects that calls before have made."""
        try:
            request = self._requests.pop()
        except IndexError:  # other threads are in here
            request = _Request(self._handle)
        if request.milliseconds != milliseconds:
            request.limit(milliseconds)
        request.fill(request.memory, 0, given, given_count, taken, taken_count, kind, dtype, reduction, root)
        status = self._run_in_c(*request.arguments)
        self._requests.append(request)
        if status != 0:
            raise request.failure(status)

    def wait(self, posted: int, milliseconds: int) -> None:
        _c.call("peers_wait", self._handle, posted, milliseconds)

    def completed(self) -> int:
        """What was posted up to this number has ended."""
        return int(_c.value("peers_completed", self._handle))

    def send(self, address: int, size: int, to: int, tag: int, kept: Any) -> Message:
        return self._message("peers_send", address, size, to, tag, kept)

    def receive(self, address: int, size: int, source: int, tag: int, kept: Any) -> Message:
        return self._message("peers_receive", address, size, source, tag, kept)

    def _message(self, call: str, address: int, size: int, member: int, tag: int, kept: Any) -> Message:
        if not 0 <= tag < 2**32:
            raise Error(Status.INVALID_ARGUMENT, f"expected a tag from 0 to 2**32 - 1, found {tag}")
        handle = ctypes.c_void_p()
        _c.call(call, self._handle, address, size, member, tag, ctypes.byref(handle))
        return Message(handle, kept)

    def abort(self, reason: str) -> None:
        """From any thread: what runs and what comes later fails."""
        _c.value("peers_abort", self._handle, reason.encode(errors="replace").replace(b"\0", b"?"))

    def free(self) -> None:
        """After its messages. Nothing may use it any more."""
        global _beside  # pylint: disable=global-statement
        if _beside is not None and _beside() is self:
            _beside = None
        handle = ctypes.c_void_p(self._handle.value)
        self._handle.value = None  # that of the requests too
        _c.value("peers_free", handle)

