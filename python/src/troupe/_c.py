"""troupe.h and peers.h for ctypes: their structs, functions and types. `tests/python` compares them with the
headers."""

from __future__ import annotations

import ctypes
import functools
from ctypes import (POINTER, c_char, c_char_p, c_double, c_float, c_int, c_int32, c_int64, c_size_t, c_uint32, c_uint64,
                    c_void_p)
from typing import Any

from troupe import _native_files
from troupe.errors import Error, Status

C_VERSION = 8

F32, F16, BF16, F64, I64, I32, U8, I16, I8, U64, U32, U16, BOOL = range(1, 14)
ALL_REDUCE, REDUCE_SCATTER, ALL_GATHER, ALL_TO_ALL, BROADCAST, BARRIER = range(1, 7)
SUM, AVERAGE, MIN, MAX, PRODUCT, BIT_AND, BIT_OR, BIT_XOR = range(1, 9)
ANY_MEMBER = -1
NO_WEIGHT_DECAY, SHARED_EMBEDDING, EXPERT, COPY, FROZEN, ANY_SHAPE = (1 << bit for bit in range(6))


class ExpertLayer(ctypes.Structure):
    _fields_ = [("experts", c_size_t), ("choices", c_size_t), ("tokens", c_size_t), ("capacity_factor", c_double),
                ("most_rows", c_int64), ("exchanges", c_size_t), ("bias_rate", c_double), ("after_choice", c_int32)]


class Rows(ctypes.Structure):
    _fields_ = [("expert", c_int32), ("source", c_int32), ("first", c_int64), ("count", c_int64)]


class Routing(ctypes.Structure):
    _fields_ = [("experts", POINTER(c_int32)), ("weights", POINTER(c_float)), ("choice_of_slot", POINTER(c_int64)),
                ("slot_of_choice", POINTER(c_int64)), ("products", POINTER(Rows)), ("slots", c_size_t),
                ("received", c_size_t), ("product_count", c_size_t)]


class CError(ctypes.Structure):
    _fields_ = [("status", c_int), ("message", c_char * 1020)]


class StepOutcome(ctypes.Structure):
    _fields_ = [("step", c_int64), ("committed", c_int32), ("wishes", c_uint32), ("loss", c_double),
                ("weight", c_double), ("gradient_norm", c_double), ("clip_factor", c_double), ("seconds", c_double),
                ("waited_seconds", c_double), ("loss_scale", c_double), ("nonfinite_gradients", c_int64),
                ("reason", c_char * 256)]


class SaveResult(ctypes.Structure):
    _fields_ = [("sequence", c_uint64), ("step", c_int64), ("bytes", c_uint64), ("committed", c_int32),
                ("name", c_char * 64), ("message", c_char * 1020)]


class Restored(ctypes.Structure):
    _fields_ = [("found", c_int32), ("is_local", c_int32), ("step", c_int64), ("name", c_char * 64),
                ("passed_over", c_char * 1020)]


class RestoreOptions(ctypes.Structure):
    _fields_ = [("directory", c_char_p), ("name", c_char_p), ("weights_only", c_int32), ("strictness", c_char_p)]


StoreSet = ctypes.CFUNCTYPE(c_int32, c_void_p, c_char_p, c_void_p, c_size_t)
StoreGet = ctypes.CFUNCTYPE(c_int64, c_void_p, c_char_p, c_int64, c_void_p, c_size_t)


class Store(ctypes.Structure):
    _fields_ = [("context", c_void_p), ("set", StoreSet), ("get", StoreGet)]


class PeersOptions(ctypes.Structure):
    _fields_ = [("name", c_char_p), ("ranks", POINTER(c_int32)), ("members", c_size_t), ("index", c_size_t),
                ("address", c_char_p), ("milliseconds", c_int64), ("store", Store), ("beside", c_void_p)]


class Piece(ctypes.Structure):
    _fields_ = [("data", c_void_p), ("count", c_size_t)]


class Collective(ctypes.Structure):
    _fields_ = [("kind", c_int), ("dtype", c_int), ("reduction", c_int), ("root", c_int32),
                ("inputs", POINTER(Piece)), ("outputs", POINTER(Piece)), ("input_pieces", c_size_t),
                ("output_pieces", c_size_t), ("input_counts", POINTER(c_size_t)),
                ("output_counts", POINTER(c_size_t)), ("milliseconds", c_int64)]


class Request(ctypes.Structure):
    """A collective with its pieces: none of C's own."""

    _fields_ = [("given", Piece), ("taken", Piece), ("asked", Collective)]


Fill = ctypes.CFUNCTYPE(None, c_int64, POINTER(c_float), c_size_t, c_void_p)
Launch = ctypes.CFUNCTYPE(c_int, c_void_p, c_void_p)

_handle, _shape, _memory = c_void_p, POINTER(c_int64), POINTER(c_void_p)
_error, _size, _posted = POINTER(CError), POINTER(c_size_t), POINTER(c_uint64)

# Those that end with a troupe_error* and return a troupe_status: what comes before the error.
CALLS = {
    "options_set": (_handle, c_char_p, c_char_p),
    "options_add_parameter": (_handle, c_char_p, _shape, c_size_t, c_int, c_uint32),
    "options_set_unit": (_handle, c_uint32, c_uint32),
    "options_set_gather_dtype": (_handle, c_uint32, c_char_p),
    "place": (_handle, POINTER(c_int32), POINTER(c_int32)),
    "options_set_of_group": (_handle, c_uint32, c_char_p, c_char_p),
    "options_set_parameter_group": (_handle, c_uint32, c_uint32),
    "options_add_tensor": (_handle, c_char_p, c_void_p, c_int, _shape, _shape, _shape, c_size_t, c_int32),
    "options_add_setting": (_handle, c_char_p, c_char_p),
    "options_add_group": (_handle, c_char_p, POINTER(c_int32), c_size_t),
    "options_add_experts": (_handle, POINTER(ExpertLayer)),
    "session_join": (_handle, POINTER(c_void_p)),
    "session_join_again": (_handle, POINTER(c_void_p)),
    "recover": (_handle, POINTER(Restored)),
    "write_parameter": (_handle, c_uint32, Fill, c_void_p),
    "read_state": (_handle, c_uint32, c_char_p, Fill, c_void_p),
    "write_state": (_handle, c_uint32, c_char_p, Fill, c_void_p),
    "steps_taken": (_handle, _shape, c_size_t),
    "write_steps_taken": (_handle, _shape, c_size_t),
    "begin_step": (_handle, c_double),
    "begin_lane": (_handle, c_int32),
    "acquire": (_handle, c_uint32),
    "release": (_handle, c_uint32),
    "begin_backward": (_handle,),
    "before_use": (_handle, c_uint32),
    "parameter": (_handle, c_uint32, _memory, _size),
    "gradient": (_handle, c_uint32, _memory, _size),
    "gradient_of_source": (_handle, c_uint32, c_int32, _memory, _size),
    "parameter_memory": (_handle, c_uint32, _memory, _size),
    "gradient_memory": (_handle, c_uint32, _memory, _size),
    "on_compute_stream": (_handle, Launch, c_void_p),
    "gradient_ready": (_handle, c_uint32),
    "end_lane": (_handle, c_double),
    "end_weighted_lane": (_handle, c_double, c_double),
    "finish_step": (_handle, c_char_p, c_uint32, POINTER(StepOutcome)),
    "publish_all": (_handle,),
    "begin_evaluation": (_handle,),
    "end_evaluation": (_handle,),
    "group_of": (_handle, c_char_p, POINTER(c_void_p)),
    "group_all_reduce": (_handle, c_void_p, c_size_t, c_int, c_int, _posted),
    "group_broadcast": (_handle, c_void_p, c_size_t, c_int, c_int32, _posted),
    "group_wait": (_handle, c_uint64),
    "experts_of": (_handle, c_uint32, POINTER(c_void_p)),
    "experts_route": (_handle, POINTER(c_float), c_size_t, POINTER(POINTER(Routing))),
    "experts_dispatch": (_handle, POINTER(Routing), c_void_p, c_void_p, c_size_t),
    "experts_combine": (_handle, POINTER(Routing), c_void_p, c_void_p, c_size_t),
    "save": (_handle, c_char_p, _posted),
    "take_save": (_handle, POINTER(c_int32), POINTER(SaveResult)),
    "wait_saves": (_handle,),
    "save_local": (_handle, c_char_p, _posted),
    "take_local_save": (_handle, POINTER(c_int32), POINTER(SaveResult)),
    "wait_local_saves": (_handle,),
    "restore_with": (_handle, POINTER(RestoreOptions), POINTER(Restored)),
    "leave": (_handle,),
    "peers_connect": (POINTER(PeersOptions), POINTER(c_void_p)),
    "peers_run": (_handle, POINTER(Collective), _posted),
    "peers_wait": (_handle, c_uint64, c_int64),
    "peers_send": (_handle, c_void_p, c_size_t, c_int32, c_uint32, POINTER(c_void_p)),
    "peers_receive": (_handle, c_void_p, c_size_t, c_int32, c_uint32, POINTER(c_void_p)),
    "message_wait": (_handle, c_int64, POINTER(c_int32)),
}
# The others: what they return, and what they take.
OTHERS = {
    "c_version": (c_int, ()),
    "options_new": (_handle, ()),
    "options_free": (None, (_handle,)),
    "option_names": (c_char_p, ()),
    "session_free": (None, (_handle,)),
    "rank": (c_int32, (_handle,)),
    "world_size": (c_int32, (_handle,)),
    "lane_count": (c_int32, (_handle,)),
    "lane": (c_int32, (_handle, c_int32)),
    "next_step": (c_int64, (_handle,)),
    "parameter_count": (c_uint32, (_handle,)),
    "unit_count": (c_uint32, (_handle,)),
    "loss_scale": (c_double, (_handle,)),
    "routing_free": (None, (_handle, POINTER(Routing))),
    "restored_common": (c_size_t, (_handle, c_char_p, c_size_t)),
    "abandon": (None, (_handle, c_char_p, _error)),
    "peers_free": (None, (_handle,)),
    "peers_completed": (c_uint64, (_handle,)),
    "peers_abort": (None, (_handle, c_char_p)),
    "message_free": (None, (_handle,)),
}


@functools.lru_cache(maxsize=None)
def library() -> Any:
    """libtroupe.so, loaded once."""
    name = _native_files.library()
    try:
        loaded = ctypes.CDLL(name)
    except OSError as error:
        raise Error(Status.UNAVAILABLE, f"{name} cannot be loaded: {error}; install a wheel of scripts/build_wheel or "
                    "the Debian package libtroupe0, or name the file in TROUPE_LIBRARY") from None
    loaded.troupe_c_version.restype, loaded.troupe_c_version.argtypes = c_int, []
    found = loaded.troupe_c_version()
    if found != C_VERSION:
        raise Error(Status.MISMATCH, f"expected version {C_VERSION} of Troupe's C interface, found {found} in {name}; "
                    "install a library and a Python package of the same version")
    for function, arguments in CALLS.items():
        getattr(loaded, "troupe_" + function).argtypes = [*arguments, _error]
        getattr(loaded, "troupe_" + function).restype = c_int
    for function, (result, taken) in OTHERS.items():
        getattr(loaded, "troupe_" + function).argtypes = list(taken)
        getattr(loaded, "troupe_" + function).restype = result
    return loaded


def call(function: str, *arguments: Any) -> None:
    """One of CALLS; a failure becomes an Error with the library's message."""
    error = CError()
    if getattr(library(), "troupe_" + function)(*arguments, ctypes.byref(error)) != 0:
        raise Error(error.status, error.message.decode(errors="replace"))


def value(function: str, *arguments: Any) -> Any:
    """What one of OTHERS returns."""
    return getattr(library(), "troupe_" + function)(*arguments)
