"""A session of troupe.h with types and exceptions, for trainers that compute their own gradients. It needs neither
PyTorch nor NumPy: memory comes as ctypes arrays of bytes, which both can view without a copy. troupe.h says what each
call means; `troupe.torch` is the door for PyTorch models."""

from __future__ import annotations

import ctypes
import json
import os
from dataclasses import dataclass
from typing import Any, Callable, Mapping, Optional, Sequence

from troupe import _c
from troupe.errors import Error, invalid

DTYPES = {"f32": _c.F32, "f16": _c.F16, "bf16": _c.BF16, "f64": _c.F64, "i64": _c.I64, "i32": _c.I32, "u8": _c.U8}


def _text(value: Any) -> bytes:
    """The value as options are written: true and false, and numbers with all their digits."""
    if isinstance(value, bool):
        return b"true" if value else b"false"
    encoded = repr(float(value)).encode() if isinstance(value, float) else str(value).encode()
    if b"\0" in encoded:
        raise invalid(f"expected a text without zero bytes, found {value!r}")
    return encoded


def _shape(extents: Sequence[int]) -> Any:
    return (ctypes.c_int64 * len(extents))(*extents)


class Options:
    """What all ranks of a job have in common, and where this rank keeps things."""

    def __init__(self) -> None:
        self._handle = ctypes.c_void_p(_c.value("options_new"))
        self._kept: list[Any] = []
        self._parameters = 0

    def __del__(self) -> None:
        handle = self.__dict__.pop("_handle", None)
        if handle:
            _c.value("options_free", handle)

    def set(self, name: str, value: Any) -> None:
        """An option by its name in troupe.h, such as "lanes", or "clip_norm" for "clip-norm"."""
        _c.call("options_set", self._handle, _text(name.replace("_", "-")), _text(value))

    def add_parameter(self, name: str, shape: Sequence[int], dtype: str = "f32", *, weight_decay: bool = True,
                      frozen: bool = False, expert: bool = False, unit: Optional[int] = None,
                      group: Optional[int] = None) -> int:
        """Returns its number. `dtype` is f32, f16 or bf16; `expert` says that only this rank of group "ep" has it, and
        `unit` is the unit of forward that reads it."""
        flags = ((0 if weight_decay else _c.NO_WEIGHT_DECAY) | (_c.FROZEN if frozen else 0) |
                 (_c.EXPERT if expert else 0))
        _c.call("options_add_parameter", self._handle, _text(name), _shape(shape), len(shape), DTYPES[dtype], flags)
        number, self._parameters = self._parameters, self._parameters + 1
        if unit is not None:
            _c.call("options_set_unit", self._handle, number, unit)
        if group is not None:
            _c.call("options_set_parameter_group", self._handle, number, group)
        return number

    def set_of_group(self, group: int, name: str, value: Any) -> None:
        """An option of a group of parameters, such as "learning_rate_factor"; the next number adds a group."""
        _c.call("options_set_of_group", self._handle, group, _text(name.replace("_", "-")), _text(value))

    def add_tensor(self, name: str, memory: Any, address: int, dtype: str, shape: Sequence[int], replica: int) -> None:
        """A whole tensor of the trainer's own, which is saved and restored; `memory` is what keeps it alive."""
        self._kept.append(memory)
        _c.call("options_add_tensor", self._handle, _text(name), address, DTYPES[dtype], _shape(shape), None, None,
                len(shape), replica)

    def add_setting(self, name: str, value: Any) -> None:
        """Something that must be the same on all ranks."""
        _c.call("options_add_setting", self._handle, _text(name), _text(value))

    def add_group(self, name: str, part_of: Sequence[int] = ()) -> None:
        """Cuts the ranks into groups for collectives of the trainer's own: part_of[r] is the part of rank r. Without it,
        one group of all ranks, however many the job has then."""
        _c.call("options_add_group", self._handle, _text(name), (ctypes.c_int32 * len(part_of))(*part_of), len(part_of))

    def add_experts(self, experts: int, choices: int, tokens: int, exchanges: int = 0) -> None:
        """A layer of experts, `choices` of them for each of at most `tokens` tokens of a microbatch, none of which is
        dropped; `exchanges` microbatches are on their way in a step, or 0: one per lane."""
        layer = _c.ExpertLayer(experts=experts, choices=choices, tokens=tokens, exchanges=exchanges)
        _c.call("options_add_experts", self._handle, ctypes.byref(layer))

    def place(self) -> tuple[int, int]:
        """This rank, and how many the job has."""
        rank, ranks = ctypes.c_int32(), ctypes.c_int32()
        _c.call("place", self._handle, ctypes.byref(rank), ctypes.byref(ranks))
        return rank.value, ranks.value


def option_names() -> str:
    """One line per option, "name: what it is"."""
    return str(_c.value("option_names").decode())


@dataclass(frozen=True)
class Outcome:
    """What all ranks decided about a step. If it is not committed, `reason` says why, and parameters are as before
    it. `loss` is the mean over all lanes of the job, or over their weights; `gradient_norm` is before clipping."""

    step: int
    committed: bool
    loss: float
    weight: float
    gradient_norm: float
    clip_factor: float
    seconds: float
    waited_seconds: float
    loss_scale: float
    nonfinite_gradients: int
    wishes: int
    reason: str


@dataclass(frozen=True)
class SaveResult:
    """A save that has ended. `message` says why it was not committed; otherwise it is a warning, or empty."""

    sequence: int
    step: int
    bytes: int
    committed: bool
    name: str
    message: str
    is_local: bool


@dataclass(frozen=True)
class Restored:
    """What was loaded: `step` is the next one; `common` is what save() was given; `passed_over` has a line for each
    newer checkpoint that could not be used."""

    step: int
    name: str
    is_local: bool
    passed_over: str
    common: Any


class Experts:
    """A layer of experts whose ranks are those of group "ep"."""

    def __init__(self, handle: Any) -> None:
        self._handle = handle

    def route(self, logits: int, tokens: int) -> Any:
        """Where tokens go whose logits, f32 (tokens, experts), are at that address: a _c.Routing, to be freed."""
        routing = ctypes.POINTER(_c.Routing)()
        _c.call("experts_route", self._handle, ctypes.cast(logits, ctypes.POINTER(ctypes.c_float)), tokens,
                ctypes.byref(routing))
        return routing

    def dispatch(self, routing: Any, slots: int, rows: int, row_bytes: int) -> None:
        """Rows of slots, to the ranks of their experts; both are addresses."""
        _c.call("experts_dispatch", self._handle, routing, slots, rows, row_bytes)

    def combine(self, routing: Any, rows: int, slots: int, row_bytes: int) -> None:
        """The way back."""
        _c.call("experts_combine", self._handle, routing, rows, slots, row_bytes)

    def free(self, routing: Any) -> None:
        if self._handle:
            _c.value("routing_free", self._handle, routing)

    def end(self) -> None:
        """With its session, which has freed what was routed."""
        self._handle = None


class Session:
    """One rank's part of a job; it belongs to the thread that joins. Memory that it gives keeps it alive."""

    def __init__(self, options: Options) -> None:
        """Joins the job that the process's environment names, or is one rank alone; returns when all ranks agree."""
        handle = ctypes.c_void_p()
        self._kept = options._kept
        _c.call("session_join", options._handle, ctypes.byref(handle))
        self._handle: Optional[ctypes.c_void_p] = handle
        self._owner = os.getpid()
        self._read_place()

    def _read_place(self) -> None:
        handle = self._handle
        self.rank: int = _c.value("rank", handle)
        self.world_size: int = _c.value("world_size", handle)
        self.lanes: tuple[int, ...] = tuple(
            _c.value("lane", handle, index) for index in range(_c.value("lane_count", handle)))
        self.units: int = _c.value("unit_count", handle)

    def join_again(self, options: Options, error: Error) -> None:
        """After a call has failed with `error`, with the option "stays": joins the job's next epoch if `troupe launch`
        has put another process in a lost rank's place. Memory that the session gave before may not be used any more.
        Otherwise raises the reason, and the session has ended."""
        why = _c.CError(int(error.status), str(error).encode(errors="replace")[:1019])
        handle, self._handle = self._handle or ctypes.c_void_p(), None
        status = _c.library().troupe_session_join_again(options._handle, ctypes.byref(handle), ctypes.byref(why))
        if status != 0:
            raise Error(status, why.message.decode(errors="replace")) from error
        self._handle = handle
        self._read_place()

    def __del__(self) -> None:
        handle = self.__dict__.pop("_handle", None)
        if handle and self._owner == os.getpid():  # and not a worker that was forked off, of a DataLoader for instance
            _c.value("session_free", handle)

    @property
    def next_step(self) -> int:
        """The step that is being computed, or the next one."""
        return int(_c.value("next_step", self._handle))

    @property
    def loss_scale(self) -> float:
        """What losses of this step are multiplied by before backward."""
        return float(_c.value("loss_scale", self._handle))

    def write_parameter(self, parameter: int, fill: Callable[[int, Any], None]) -> None:
        """Calls `fill(first, values)` with the f32 values, a ctypes array, that this rank keeps from `first` on."""
        self._visit("write_parameter", fill, parameter)

    def read_state(self, parameter: int, state: str, take: Callable[[int, Any], None]) -> None:
        """Calls `take(first, values)` with what this rank's optimizer keeps, such as "exp_avg", as f32."""
        self._visit("read_state", take, parameter, _text(state))

    def write_state(self, parameter: int, state: str, fill: Callable[[int, Any], None]) -> None:
        """The same before the first step, to be filled."""
        self._visit("write_state", fill, parameter, _text(state))

    def _visit(self, function: str, visit: Callable[[int, Any], None], *arguments: Any) -> None:
        failed: list[BaseException] = []

        def visited(first: int, values: Any, count: int, unused: Any) -> None:
            try:
                visit(first, (ctypes.c_float * count).from_address(ctypes.addressof(values.contents)))
            except BaseException as error:  # pylint: disable=broad-except
                failed.append(error)

        _c.call(function, self._handle, *arguments, _c.Fill(visited), None)
        if failed:
            raise failed[0]

    def steps_taken(self) -> list[int]:
        """By the optimizer, of each parameter."""
        counts = _shape([0] * _c.value("parameter_count", self._handle))
        _c.call("steps_taken", self._handle, counts, len(counts))
        return list(counts)

    def write_steps_taken(self, steps: Mapping[int, int]) -> None:
        """Before the first step, by parameter; the others missed none. The session goes on after the most of them."""
        most = max(steps.values())
        counts = _shape([steps.get(number, most) for number in range(_c.value("parameter_count", self._handle))])
        _c.call("write_steps_taken", self._handle, counts, len(counts))

    def _range(self, function: str, parameter: int, *more: int) -> tuple[int, int]:
        data, size = ctypes.c_void_p(), ctypes.c_size_t()
        _c.call(function, self._handle, parameter, *more, ctypes.byref(data), ctypes.byref(size))
        return data.value or 0, size.value

    def _memory(self, function: str, parameter: int, *more: int) -> Any:
        address, size = self._range(function, parameter, *more)
        memory: Any = (ctypes.c_char * size).from_address(address)
        memory._session = self
        return memory

    def parameter(self, parameter: int) -> Any:
        """The parameter's bytes, after before_use() or while its unit is acquired."""
        return self._memory("parameter", parameter)

    def gradient(self, parameter: int) -> Any:
        """Where to add this lane's gradient: f32."""
        return self._memory("gradient", parameter)

    def gradient_of_source(self, parameter: int, source: int) -> Any:
        """Like gradient(), for an expert's parameter by the tokens of that member of group "ep"."""
        return self._memory("gradient_of_source", parameter, source)

    def parameter_memory(self, parameter: int) -> tuple[int, int]:
        """Like parameter(), on any device: the address there, and the number of bytes. It does not keep the session alive."""
        return self._range("parameter_memory", parameter)

    def gradient_memory(self, parameter: int) -> tuple[int, int]:
        """Like gradient(), on any device."""
        return self._range("gradient_memory", parameter)

    def compute_stream(self) -> int:
        """The CUDA stream that the session's work is ordered by, both ways, as a number. First ask before the first
        step. UNAVAILABLE on the host."""
        found: list[Optional[int]] = []

        def launch(stream: Optional[int], unused: Any) -> int:
            found.append(stream)
            return 0

        _c.call("on_compute_stream", self._handle, _c.Launch(launch), None)
        return found[0] or 0

    def experts(self, layer: int) -> Experts:
        """A layer, by its number among Options.add_experts()."""
        handle = ctypes.c_void_p()
        _c.call("experts_of", self._handle, layer, ctypes.byref(handle))
        return Experts(handle)

    def begin_step(self, learning_rate: float) -> None:
        _c.call("begin_step", self._handle, learning_rate)

    def begin_lane(self, lane: int) -> None:
        _c.call("begin_lane", self._handle, lane)

    def before_use(self, parameter: int) -> None:
        _c.call("before_use", self._handle, parameter)

    def acquire(self, unit: int) -> None:
        _c.call("acquire", self._handle, unit)

    def release(self, unit: int) -> None:
        _c.call("release", self._handle, unit)

    def begin_backward(self) -> None:
        _c.call("begin_backward", self._handle)

    def gradient_ready(self, parameter: int) -> None:
        _c.call("gradient_ready", self._handle, parameter)

    def end_lane(self, loss: float, weight: Optional[float] = None) -> None:
        """`loss` is the lane's mean, or with a weight the sum over this many targets."""
        if weight is None:
            _c.call("end_lane", self._handle, loss)
        else:
            _c.call("end_weighted_lane", self._handle, loss, weight)

    def finish_step(self, refusal: str = "", wishes: int = 0) -> Outcome:
        """The same decision on all ranks."""
        found = _c.StepOutcome()
        _c.call("finish_step", self._handle, _text(refusal), wishes, ctypes.byref(found))
        return Outcome(found.step, bool(found.committed), found.loss, found.weight, found.gradient_norm,
                       found.clip_factor, found.seconds, found.waited_seconds, found.loss_scale,
                       found.nonfinite_gradients, found.wishes, found.reason.decode(errors="replace"))

    def publish_all(self) -> None:
        _c.call("publish_all", self._handle)

    def begin_evaluation(self) -> None:
        _c.call("begin_evaluation", self._handle)

    def end_evaluation(self) -> None:
        _c.call("end_evaluation", self._handle)

    def broadcast(self, group: str, address: int, size: int, root: int = 0) -> None:
        """In place: gives the root's `size` bytes to all members of the group, and waits."""
        self._in_group(group, "group_broadcast", address, size, _c.U8, root)

    def greatest_bytes(self, group: str, address: int, size: int) -> None:
        """In place: all members of the group get the greatest that any has of each byte; waits."""
        self._in_group(group, "group_all_reduce", address, size, _c.U8, _c.MAX)

    def _in_group(self, group: str, function: str, *arguments: int) -> None:
        found, posted = ctypes.c_void_p(), ctypes.c_uint64()
        _c.call("group_of", self._handle, _text(group), ctypes.byref(found))
        _c.call(function, found, *arguments, ctypes.byref(posted))
        _c.call("group_wait", found, posted)

    def save(self, common: Optional[Mapping[str, Any]] = None, *, local: bool = False) -> int:
        """Saves in the background; `common` is anything in JSON whose numbers are whole. A local save goes to this
        rank's own directory (option "local_checkpoints"), with copies at other ranks ("replication_factor")."""
        sequence = ctypes.c_uint64()
        text = None if common is None else json.dumps(common).encode()
        _c.call("save_local" if local else "save", self._handle, text, ctypes.byref(sequence))
        return sequence.value

    def take_saves(self, *, local: bool = False) -> list[SaveResult]:
        """Saves of that kind that have ended since the last call. Never waits."""
        results: list[SaveResult] = []
        while True:
            found, result = ctypes.c_int32(), _c.SaveResult()
            _c.call("take_local_save" if local else "take_save", self._handle, ctypes.byref(found),
                    ctypes.byref(result))
            if not found.value:
                return results
            results.append(SaveResult(result.sequence, result.step, result.bytes, bool(result.committed),
                                      result.name.decode(), result.message.decode(errors="replace"), local))

    def wait_saves(self) -> None:
        """Until every save of both kinds that was begun has ended."""
        _c.call("wait_saves", self._handle)
        _c.call("wait_local_saves", self._handle)

    def restore(self, name: Optional[str] = None, *, directory: Optional[str] = None, weights_only: bool = False,
                strictness: Optional[str] = None) -> Optional[Restored]:
        """Before the first step: the newest complete checkpoint, or the named one; None where there is none."""
        encoded = [None if text is None else _text(text) for text in (directory, name, strictness)]
        chosen = _c.RestoreOptions(encoded[0], encoded[1], int(weights_only), encoded[2])
        found = _c.Restored()
        _c.call("restore_with", self._handle, ctypes.byref(chosen), ctypes.byref(found))
        return self._restored(found)

    def recover(self) -> Optional[Restored]:
        """Right after joining: where the job has gone on in a new epoch, the newest step that the ranks have in memory,
        together; then neither write first values nor restore. None in a first epoch, and where a part is lost."""
        found = _c.Restored()
        _c.call("recover", self._handle, ctypes.byref(found))
        return self._restored(found)

    def _restored(self, found: Any) -> Optional[Restored]:
        if not found.found:
            return None
        size = _c.value("restored_common", self._handle, None, 0)
        common = ctypes.create_string_buffer(max(1, size))
        _c.value("restored_common", self._handle, common, size)
        return Restored(found.step, found.name.decode(), bool(found.is_local),
                        found.passed_over.decode(errors="replace"), json.loads(common.value or b"null"))

    def leave(self) -> None:
        """Leaves normally, when all ranks do."""
        _c.call("leave", self._handle)

    def abandon(self, reason: str) -> Error:
        """This rank gives up, and every other rank is told why; returns the job's first failure."""
        error = _c.CError()
        _c.value("abandon", self._handle, reason.encode(errors="replace").replace(b"\0", b"?"), ctypes.byref(error))
        return Error(error.status, error.message.decode(errors="replace"))
