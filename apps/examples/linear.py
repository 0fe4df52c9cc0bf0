#!/usr/bin/env python3
"""A linear model in Python that learns y = 3 x0 - 2 x1 + 1 over libtroupe.so, with ctypes and nothing else. One rank or
many, the numbers are the same. TROUPE_LIBRARY names the library where the loader does not find it:

    TROUPE_LIBRARY=build/release/lib/libtroupe.so.0 troupe launch --standalone --nproc-per-node 2 -- \
        python3 apps/examples/linear.py
"""
import ctypes
import os
import random
import sys

C_VERSION, F32, LANES, STEPS, BATCH = 8, 1, 4, 200, 16


class Error(ctypes.Structure):
    _fields_ = [("status", ctypes.c_int), ("message", ctypes.c_char * 1020)]


troupe = ctypes.CDLL(os.environ.get("TROUPE_LIBRARY", "libtroupe.so.0"))
if troupe.troupe_c_version() != C_VERSION:
    sys.exit(f"linear.py: expected version {C_VERSION} of Troupe's C interface, found {troupe.troupe_c_version()}")
troupe.troupe_options_new.restype = ctypes.c_void_p
troupe.troupe_next_step.restype = ctypes.c_int64


def call(name, *arguments):
    """A function that ends with a troupe_error*; its failure becomes an exception with the message."""
    error = Error()
    if getattr(troupe, name)(*arguments, ctypes.byref(error)) != 0:
        raise RuntimeError(error.message.decode(errors="replace"))


def join():
    options = ctypes.c_void_p(troupe.troupe_options_new())
    call("troupe_options_set", options, b"lanes", str(LANES).encode())
    call("troupe_options_set", options, b"weight-decay", b"0")
    for name, elements in ((b"weight", 2), (b"bias", 1)):
        shape = (ctypes.c_int64 * 1)(elements)
        call("troupe_options_add_parameter", options, name, shape, ctypes.c_size_t(1), F32, ctypes.c_uint32(0))
    session = ctypes.c_void_p()
    call("troupe_session_join", options, ctypes.byref(session))
    troupe.troupe_options_free(options)
    return session


def floats(name, session, parameter):
    """The session's own memory, as a list that can be written."""
    memory, size = ctypes.c_void_p(), ctypes.c_size_t()
    call(name, session, ctypes.c_uint32(parameter), ctypes.byref(memory), ctypes.byref(size))
    return ctypes.cast(memory, ctypes.POINTER(ctypes.c_float * (size.value // 4))).contents


def train_step(session):
    call("troupe_begin_step", session, ctypes.c_double(0.05))
    for index in range(troupe.troupe_lane_count(session)):
        lane = troupe.troupe_lane(session, index)
        call("troupe_begin_lane", session, lane)
        for parameter in (0, 1):
            call("troupe_before_use", session, ctypes.c_uint32(parameter))
        w, b = floats("troupe_parameter", session, 0), floats("troupe_parameter", session, 1)
        gw, gb = floats("troupe_gradient", session, 0), floats("troupe_gradient", session, 1)
        draw = random.Random(troupe.troupe_next_step(session) * LANES + lane)  # of step and lane, never of the rank
        loss = 0.0
        for _ in range(BATCH):
            x0, x1 = draw.uniform(-1, 1), draw.uniform(-1, 1)
            error = w[0] * x0 + w[1] * x1 + b[0] - (3 * x0 - 2 * x1 + 1)
            loss += error * error / BATCH
            gw[0], gw[1] = gw[0] + 2 * error * x0 / BATCH, gw[1] + 2 * error * x1 / BATCH
            gb[0] += 2 * error / BATCH
        for parameter in (1, 0):
            call("troupe_gradient_ready", session, ctypes.c_uint32(parameter))
        call("troupe_end_lane", session, ctypes.c_double(loss))
    call("troupe_finish_step", session, None, ctypes.c_size_t(0), None)


session = join()
for step in range(STEPS):
    train_step(session)
call("troupe_publish_all", session)
if troupe.troupe_rank(session) == 0:
    (w0, w1), (b0,) = floats("troupe_parameter", session, 0), floats("troupe_parameter", session, 1)
    print(f"y = {w0:.9g} x0 + {w1:.9g} x1 + {b0:.9g}")
call("troupe_leave", session)
troupe.troupe_session_free(session)
