"""`torch.distributed.init_process_group("troupe")`: collectives and messages of torch.distributed on the CPU, over
shared memory within a host and TCP between hosts. It needs PyTorch 2.14, the first where a back-end may be written in
Python; the entry point of the package, or importing `troupe.torch`, makes the name known."""

from __future__ import annotations

import re
import threading
from datetime import timedelta
from typing import Any, Callable, Optional, Sequence

import torch
import torch.distributed as dist
from torch._C import _distributed_c10d as c10d

from troupe import _c
from troupe._peers import Message, Peers, Piece, own_address
from troupe.errors import Error, Status, invalid
from troupe.torch.works import (FOR_EVER_MS, BackendError, Completed, Follower, OnItsWay, Pending, Posted,
                                complete_torchs_work, milliseconds_of, translated)

__all__ = ["Backend", "BackendError", "create", "register"]

NAME = "troupe"
DRAIN_MS = 10_000

DTYPES = {
    torch.float32: _c.F32, torch.float16: _c.F16, torch.bfloat16: _c.BF16, torch.float64: _c.F64,
    torch.int64: _c.I64, torch.int32: _c.I32, torch.int16: _c.I16, torch.int8: _c.I8, torch.uint8: _c.U8,
    torch.uint16: _c.U16, torch.uint32: _c.U32, torch.uint64: _c.U64, torch.bool: _c.BOOL,
}
_OPS: Any = dist.ReduceOp.RedOpType
REDUCTIONS = {
    _OPS.SUM: _c.SUM, _OPS.AVG: _c.AVERAGE, _OPS.MIN: _c.MIN, _OPS.MAX: _c.MAX, _OPS.PRODUCT: _c.PRODUCT,
    _OPS.BAND: _c.BIT_AND, _OPS.BOR: _c.BIT_OR, _OPS.BXOR: _c.BIT_XOR,
}
# Booleans stay 0 or 1: a sum is true if one of them is, a product if all are.
OF_BOOLEANS = {_c.SUM: _c.MAX, _c.PRODUCT: _c.MIN}
_UNSET: Any = timedelta(milliseconds=-1)  # the timeout of options that have none
_STRIDED, _SUM = torch.strided, _OPS.SUM
# An operation that had ended when its call returned has no Work, which torch.distributed would wait for.
Work = Optional[c10d.Work]


class Memory:
    """Tensors as pieces of memory. What is not contiguous is copied, and `spread` copies results back."""

    def __init__(self, tensors: Sequence[torch.Tensor], *, dtype: Optional[torch.dtype] = None,
                 moved: bool = True) -> None:
        self.tensors = list(tensors)
        self.dtype = dtype if dtype is not None else self.tensors[0].dtype if self.tensors else torch.uint8
        for tensor in self.tensors:
            if tensor.device.type != "cpu" or tensor.layout != torch.strided:
                raise invalid(f"expected dense tensors on the CPU, found one of layout {tensor.layout} on "
                              f"{tensor.device}; use another back-end for them, as with init_process_group("
                              f'"cpu:troupe,cuda:nccl")')
            if tensor.dtype != self.dtype:
                raise invalid(f"expected tensors of one dtype, found {self.dtype} and {tensor.dtype}")
        self.there = [tensor if tensor.is_contiguous() else tensor.contiguous() for tensor in self.tensors]
        code = DTYPES.get(self.dtype)
        if code is None and not moved:
            raise invalid(f"{self.dtype} can be moved but not reduced; convert it first")
        # A dtype that is only moved counts as its bytes.
        width = 1 if code is not None else self.dtype.itemsize
        self.code = code if code is not None else _c.U8
        self.counts = [tensor.numel() * width for tensor in self.there]

    @property
    def pieces(self) -> list[Piece]:
        return [(tensor.data_ptr(), count) for tensor, count in zip(self.there, self.counts)]

    @property
    def total(self) -> int:
        return sum(self.counts)

    def spread(self) -> None:
        for tensor, there in zip(self.tensors, self.there):
            if tensor is not there:
                tensor.copy_(there)


class Backend(c10d.Backend):
    """One group of ranks."""

    def __init__(self, store: Any, rank: int, size: int, timeout: timedelta, group: str = "",
                 ranks: Sequence[int] = ()) -> None:
        super().__init__(rank, size)
        options: Any = c10d.Backend.Options(NAME, timeout)
        options.group_name, options.global_ranks_in_group = group, list(ranks)
        self._options = options
        self.timeout_ms = milliseconds_of(timeout, FOR_EVER_MS)
        self._rank, self._size, self._sequence = rank, size, 0
        self._failed: Optional[Error] = None
        self._under_way: set[Pending] = set()
        self._lock = threading.Lock()
        self.follower = Follower()
        name = re.sub(r"[^A-Za-z0-9_-]", "-", group)[-60:] or "group"
        at = store
        while isinstance(at, c10d.PrefixStore):
            at = at.underlying_store
        host, port = (at.host, at.port) if isinstance(at, c10d.TCPStore) else (None, 0)
        self.peers = Peers(store, name, list(ranks) or list(range(size)), rank, own_address(host, port),
                           self.timeout_ms)

    def getBackendName(self) -> str:  # pylint: disable=invalid-name
        return NAME

    def name(self) -> str:
        return NAME

    @property
    def options(self) -> Any:
        return self._options

    getBackendOptions = get_backend_options = lambda self: self._options  # noqa: E731

    supports_splitting = property(lambda self: True)
    # The library's own would ask these for theirs.
    supports_coalescing = supports_shrinking = supports_reconfigure = supports_window = property(lambda self: False)
    supports_abort_hooks = supports_completion_hooks = _supports_time_estimate = property(lambda self: False)

    def split(self, store: Any, ranks: list[int], opts: Any) -> Optional["Backend"]:
        if self._rank not in ranks:
            return None
        known = list(self._options.global_ranks_in_group) or list(range(self._size))
        return Backend(store, ranks.index(self._rank), len(ranks), opts._timeout, opts.group_name,
                       [known[rank] for rank in ranks])

    def set_timeout(self, timeout: timedelta) -> None:
        self._options._timeout = timeout
        self.timeout_ms = milliseconds_of(timeout, FOR_EVER_MS)

    setTimeout = _set_default_timeout = set_timeout

    def getSequenceNumberForGroup(self) -> int:  # pylint: disable=invalid-name
        return self._sequence

    _get_sequence_number_for_group = getSequenceNumberForGroup

    def setSequenceNumberForGroup(self) -> None:  # pylint: disable=invalid-name
        """They begin with 0 on all ranks."""

    _set_sequence_number_for_group = setSequenceNumberForGroup

    # ---- What all operations have in common. ----

    def _run(self, kind: int, given: Memory, taken: Memory, opts: Any, **more: Any) -> Work:
        """Runs it now if the caller waits for it anyway; otherwise in the group's own thread."""
        self._sequence += 1
        milliseconds = milliseconds_of(getattr(opts, "timeout", None), self.timeout_ms)
        code = given.code if given.tensors else taken.code
        if getattr(opts, "asyncOp", True):
            work = Posted(self, taken.tensors or given.tensors, taken.spread)
            work.memory = (given, taken)
            try:
                work.number = self.peers.run(kind, code, given.pieces, taken.pieces, milliseconds, post=True, **more)
            except Error as error:
                self.forget(work, error)
                raise translated(error) from None
            return work
        try:
            self.peers.run(kind, code, given.pieces, taken.pieces, milliseconds, **more)
        except Error as error:
            self._note(error)
            raise translated(error) from None
        taken.spread()
        return None

    def _at_once(self, kind: int, given: Optional[torch.Tensor], taken: Optional[torch.Tensor], opts: Any, *,
                 reduces: bool = False, root: int = 0) -> bool:
        """Most calls wait, and read and write a plain tensor each: then it runs here, with few steps and nothing made
        anew, as these are a good part of a small operation's time. False: this one is different."""
        if opts.asyncOp:
            return False
        given_at = given_count = taken_at = taken_count = 0
        dtype = None
        if given is not None:
            if not (given.is_cpu and given.layout is _STRIDED and given.is_contiguous()):
                return False
            dtype, given_at, given_count = given.dtype, given.data_ptr(), given.numel()
        if taken is not None:
            if not (taken.is_cpu and taken.layout is _STRIDED and taken.is_contiguous()):
                return False
            if dtype is not None and taken.dtype is not dtype:
                return False
            dtype, taken_at, taken_count = taken.dtype, taken.data_ptr(), taken.numel()
        code = _c.U8 if dtype is None else DTYPES.get(dtype)
        if code is None:
            return False
        reduction = self._reduction(opts, code) if reduces else _c.SUM
        timeout = opts.timeout
        milliseconds = self.timeout_ms if timeout == _UNSET else milliseconds_of(timeout, self.timeout_ms)
        self._sequence += 1
        try:
            self.peers.run_one(kind, code, reduction, root, given_at, given_count, taken_at, taken_count, milliseconds)
        except Error as error:
            self._note(error)
            raise translated(error) from None
        return True

    def begin(self, work: Pending) -> None:
        with self._lock:
            self._under_way.add(work)

    def forget(self, work: Pending, error: Optional[Error]) -> None:
        with self._lock:
            self._under_way.discard(work)
        self._note(error)

    def _note(self, error: Optional[Error]) -> None:
        if error is not None and error.status != Status.INVALID_ARGUMENT and self._failed is None:
            self._failed = error

    @staticmethod
    def _reduction(opts: Any, code: int) -> int:
        op = opts.reduceOp
        if op == _SUM and code != _c.BOOL:  # what follows takes two microseconds
            return _c.SUM
        op = getattr(op, "op", op)
        found = REDUCTIONS.get(op)
        if found is None:
            raise invalid(f"expected one of SUM, AVG, PRODUCT, MIN, MAX, BAND, BOR and BXOR, found {op}")
        return OF_BOOLEANS.get(found, found) if code == _c.BOOL else found

    def _one(self, tensors: Sequence[Any], name: str) -> Any:
        if len(tensors) != 1:
            raise invalid(f"{name}: expected one tensor, or one list of tensors, per process, found {len(tensors)}")
        return tensors[0]

    def _only_at(self, root: int, value: int) -> list[int]:
        return [value if member == root else 0 for member in range(self._size)]

    def _lists(self, tensors: Sequence[torch.Tensor], name: str) -> Sequence[torch.Tensor]:
        if len(tensors) != self._size:
            raise invalid(f"{name}: expected a tensor for each of the group's {self._size} ranks, found {len(tensors)}")
        return tensors

    # ---- Collectives. ----

    def allreduce(self, tensors: list[torch.Tensor], opts: Any) -> Work:
        if len(tensors) == 1 and self._at_once(_c.ALL_REDUCE, tensors[0], None, opts, reduces=True):
            return None
        memory = Memory(tensors, moved=False)
        return self._run(_c.ALL_REDUCE, memory, memory, opts, reduction=self._reduction(opts, memory.code))

    allreduce_coalesced = allreduce

    def broadcast(self, tensors: list[torch.Tensor], opts: Any) -> Work:
        root = opts.rootRank
        is_root = self._rank == root
        if len(tensors) == 1 and self._at_once(_c.BROADCAST, tensors[0] if is_root else None,
                                               None if is_root else tensors[0], opts, root=root):
            return None
        memory = Memory(tensors)
        if is_root:
            return self._run(_c.BROADCAST, memory, Memory([]), opts, root=root)
        return self._run(_c.BROADCAST, Memory([]), memory, opts, root=root)

    def reduce(self, tensors: list[torch.Tensor], opts: Any) -> Work:
        memory = Memory([self._one(tensors, "reduce")], moved=False)
        root = opts.rootRank
        taken = memory if self._rank == root else Memory([])
        return self._run(_c.REDUCE_SCATTER, memory, taken, opts, reduction=self._reduction(opts, memory.code),
                         output_counts=self._only_at(root, memory.total))

    def allgather(self, outputs: list[list[torch.Tensor]], inputs: list[torch.Tensor], opts: Any) -> Work:
        given = Memory([self._one(inputs, "all_gather")])
        taken = Memory(self._lists(self._one(outputs, "all_gather"), "all_gather"), dtype=given.dtype)
        return self._run(_c.ALL_GATHER, given, taken, opts, input_counts=taken.counts)

    def all_gather_single(self, output: torch.Tensor, given: torch.Tensor, opts: Any) -> Work:
        if self._at_once(_c.ALL_GATHER, given, output, opts):
            return None
        source = Memory([given])
        return self._run(_c.ALL_GATHER, source, Memory([output], dtype=source.dtype), opts)

    _allgather_base = all_gather_single

    def all_gather_single_coalesced(self, outputs: list[torch.Tensor], inputs: list[torch.Tensor],
                                    opts: Any) -> Any:
        return self._all([self.all_gather_single(output, given, opts) for output, given in zip(outputs, inputs)],
                         outputs)

    allgather_into_tensor_coalesced = all_gather_single_coalesced

    def allgather_coalesced(self, outputs: list[list[torch.Tensor]], inputs: list[torch.Tensor],
                            opts: Any) -> Any:
        """`outputs` has a list for each rank, with a tensor for each input."""
        works = [self.allgather([[of_rank[index] for of_rank in outputs]], [given], opts)
                 for index, given in enumerate(inputs)]
        return self._all(works, [tensor for of_rank in outputs for tensor in of_rank])

    def gather(self, outputs: list[list[torch.Tensor]], inputs: list[torch.Tensor], opts: Any) -> Work:
        given = Memory([self._one(inputs, "gather")])
        root = opts.rootRank
        sent = self._only_at(root, given.total)
        if self._rank != root:
            return self._run(_c.ALL_TO_ALL, given, Memory([]), opts, input_counts=sent,
                             output_counts=[0] * self._size)
        taken = Memory(self._lists(self._one(outputs, "gather"), "gather"), dtype=given.dtype)
        return self._run(_c.ALL_TO_ALL, given, taken, opts, input_counts=sent, output_counts=taken.counts)

    def gather_single(self, output: torch.Tensor, given: torch.Tensor, opts: Any) -> Work:
        parts = list(output.chunk(self._size)) if self._rank == opts.rootRank else []
        return self.gather([parts] if parts else [], [given], opts)

    gather_into_tensor = gather_single

    def scatter(self, outputs: list[torch.Tensor], inputs: list[list[torch.Tensor]], opts: Any) -> Work:
        taken = Memory([self._one(outputs, "scatter")])
        root = opts.rootRank
        came = self._only_at(root, taken.total)
        if self._rank != root:
            return self._run(_c.ALL_TO_ALL, Memory([], dtype=taken.dtype), taken, opts,
                             input_counts=[0] * self._size, output_counts=came)
        given = Memory(self._lists(self._one(inputs, "scatter"), "scatter"), dtype=taken.dtype)
        return self._run(_c.ALL_TO_ALL, given, taken, opts, input_counts=given.counts, output_counts=came)

    def reduce_scatter(self, outputs: list[torch.Tensor], inputs: list[list[torch.Tensor]], opts: Any) -> Work:
        taken = Memory([self._one(outputs, "reduce_scatter")], moved=False)
        given = Memory(self._lists(self._one(inputs, "reduce_scatter"), "reduce_scatter"), dtype=taken.dtype)
        return self._run(_c.REDUCE_SCATTER, given, taken, opts, reduction=self._reduction(opts, given.code),
                         output_counts=given.counts)

    def reduce_scatter_single(self, output: torch.Tensor, given: torch.Tensor, opts: Any) -> Work:
        if self._at_once(_c.REDUCE_SCATTER, given, output, opts, reduces=True):
            return None
        source = Memory([given], moved=False)
        return self._run(_c.REDUCE_SCATTER, source, Memory([output], dtype=source.dtype), opts,
                         reduction=self._reduction(opts, source.code))

    _reduce_scatter_base = reduce_scatter_single

    def reduce_scatter_single_coalesced(self, outputs: list[torch.Tensor], inputs: list[torch.Tensor],
                                        opts: Any) -> Any:
        return self._all([self.reduce_scatter_single(output, given, opts) for output, given in zip(outputs, inputs)],
                         outputs)

    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced

    def all_to_all_single(self, output: torch.Tensor, given: torch.Tensor, taken_rows: list[int],
                          given_rows: list[int], opts: Any) -> Work:
        source = Memory([given])
        target = Memory([output], dtype=source.dtype)
        return self._run(_c.ALL_TO_ALL, source, target, opts,
                         input_counts=self._split(source, given_rows, "input"),
                         output_counts=self._split(target, taken_rows, "output"))

    alltoall_base = all_to_all_single

    def _split(self, memory: Memory, rows: list[int], name: str) -> list[int]:
        """Elements of each part, in rows of the first axis or evenly."""
        tensor, total = memory.tensors[0], memory.total
        length = tensor.shape[0] if tensor.dim() else 1
        if not rows:
            if length % self._size:
                raise invalid(f"all_to_all: expected a first axis of the {name} that {self._size} ranks divide, found "
                              f"{length}; give split sizes")
            return [total // self._size] * self._size
        if len(rows) != self._size or sum(rows) != length:
            raise invalid(f"all_to_all: expected {self._size} split sizes of the {name} with the sum {length}, found "
                          f"{rows}")
        return [total // length * count if length else 0 for count in rows]

    def alltoall(self, outputs: list[torch.Tensor], inputs: list[torch.Tensor], opts: Any) -> Work:
        given = Memory(self._lists(inputs, "all_to_all"))
        taken = Memory(self._lists(outputs, "all_to_all"), dtype=given.dtype)
        return self._run(_c.ALL_TO_ALL, given, taken, opts, input_counts=given.counts, output_counts=taken.counts)

    def barrier(self, opts: Any) -> Work:
        return None if self._at_once(_c.BARRIER, None, None, opts) else self._run(_c.BARRIER, Memory([]), Memory([]), opts)

    def monitored_barrier(self, opts: Any, wait_all_ranks: bool = False) -> None:
        """A barrier whose error names the ranks that did not come in time."""
        try:
            self.peers.run(_c.BARRIER, _c.U8, (), (), milliseconds_of(opts.timeout, self.timeout_ms))
        except Error as error:
            raise translated(error) from None

    monitoredBarrier = monitored_barrier

    def _all(self, works: list[Any], tensors: list[torch.Tensor]) -> Any:
        """Those of one coalesced call; they run in order, so the last one ends last."""
        if not works:
            return Completed(tensors)
        last, before = works[-1], works[:-1]
        if last is not None:
            spread = last.spread

            def spread_all() -> None:
                for work in before:
                    work.wait()
                spread()

            last.tensors, last.spread = tensors, spread_all
        return last

    # ---- Messages. ----

    def _message(self, tensors: list[torch.Tensor], post: Callable[[Memory, int, int], Message]) -> OnItsWay:
        memory = Memory([self._one(tensors, "a message")])
        work = OnItsWay(self, memory.tensors, memory.spread)
        try:
            work.message = post(memory, memory.there[0].data_ptr(), memory.there[0].nbytes)
        except Error as error:
            self.forget(work, error)
            raise translated(error) from None
        return work

    def send(self, tensors: list[torch.Tensor], dst: int, tag: int = 0) -> Work:
        work = self._message(tensors, lambda memory, address, size: self.peers.send(address, size, dst, tag, memory))
        work.spread = lambda: None
        return work

    def recv(self, tensors: list[torch.Tensor], src: int, tag: int = 0) -> Work:
        return self._message(tensors,
                             lambda memory, address, size: self.peers.receive(address, size, src, tag, memory))

    def recv_anysource(self, tensors: list[torch.Tensor], tag: int = 0) -> Work:
        return self.recv(tensors, _c.ANY_MEMBER, tag)

    recvAnysource = recv_anysource

    # ---- The end. ----

    def get_error(self) -> Any:
        if self._failed is None:
            return c10d.ErrorType.SUCCESS
        if self._failed.status == Status.TIMEOUT:
            return c10d.ErrorType.TIMEOUT
        return c10d.ErrorType.COMM_ERROR

    def abort(self) -> None:
        self.peers.abort(f"rank {self._rank} of the group aborted it")

    def shutdown(self) -> None:
        """After what was sent and posted has ended."""
        with self._lock:
            left = list(self._under_way)
        for work in left:
            try:
                work.finish(DRAIN_MS)
            except Error:
                pass
        with self._lock:
            left = list(self._under_way)
        if left:
            self.abort()
        for work in left:
            if isinstance(work, OnItsWay):
                work.join()
        self.follower.stop()
        self.peers.free()


def create(options: Any, unused: Any = None) -> Backend:
    """What torch.distributed calls."""
    return Backend(options.store, options.group_rank, options.group_size, options.timeout, options.group_id,
                   options.global_ranks_in_group)


def register() -> None:
    """Makes the name known to torch.distributed; a second call has no effect."""
    if not hasattr(dist.Backend, "_ensure_backend_registered"):
        raise Error(Status.UNAVAILABLE, f"the back-end {NAME} of torch.distributed needs PyTorch 2.14, found "
                    f"{torch.__version__}; install a newer one, or use troupe.torch.Trainer")
    if NAME.upper() not in dist.Backend._plugins:
        complete_torchs_work()
        dist.Backend.register_backend(NAME, create, extended_api=True, devices=["cpu"])
