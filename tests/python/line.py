"""Learns y = 3 x over troupe.session, without PyTorch; prints what it learned, and which libraries were loaded from
outside of the environment."""

import ctypes
import sys

from troupe.session import Options, Session

options = Options()
options.set("lanes", 4)
options.set("weight_decay", 0.0)
number = options.add_parameter("w", [1])
session = Session(options)
for step in range(200):
    session.begin_step(0.05)
    for lane in session.lanes:
        session.begin_lane(lane)
        session.before_use(number)
        w = ctypes.c_float.from_buffer(session.parameter(number))
        gradient = ctypes.c_float.from_buffer(session.gradient(number))
        x = (step * 7 + lane) % 5 - 2
        gradient.value += 2 * x * (w.value * x - 3 * x)
        session.gradient_ready(number)
        session.end_lane((w.value * x - 3 * x) ** 2)
    assert session.finish_step().committed
session.publish_all()
result = ctypes.c_float.from_buffer(session.parameter(number)).value
session.leave()
mapped = {line.split()[-1] for line in open("/proc/self/maps") if ".so" in line}
if session.rank == 0:
    print("RESULT", repr(result))
    print("LOADED", *sorted(path for path in mapped if not path.startswith(sys.prefix) and "-dynload/" not in path))
