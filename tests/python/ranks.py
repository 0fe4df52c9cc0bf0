"""Ranks of a job as children of this process, which has imported PyTorch already: a job takes a fraction of a second."""

import os
import pickle
import select
import signal
import socket
import sys
import tempfile
import time
import traceback
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "python" / "src"))

LIMIT_SECONDS = 120
GRACE_SECONDS = 10  # of the others after a rank has failed, where all must succeed


class Failed(Exception):
    """The failure of a rank; the message is its traceback."""


def _free_port():
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        return listening.getsockname()[1]


def _run(rank, count, port, file, body, arguments):
    os.environ.update(RANK=str(rank), WORLD_SIZE=str(count), LOCAL_RANK=str(rank), LOCAL_WORLD_SIZE=str(count),
                      MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), OMP_NUM_THREADS="1")
    if "torch" in sys.modules:
        # After a fork PyTorch makes its pool of threads anew at the first use, which must not be that of two threads.
        sys.modules["torch"].set_num_threads(1)
    try:
        result = (True, body(*arguments))
    except BaseException as error:  # pylint: disable=broad-except
        result = (False, "".join(traceback.format_exception(type(error), error, error.__traceback__)))
    file.write_bytes(pickle.dumps(result))
    return result[0]


def _wait(children, grace):
    """Exit statuses of processes; those that outlive the limit, or `grace` seconds after the first failure, are killed."""
    deadline = time.monotonic() + LIMIT_SECONDS
    watched = {os.pidfd_open(pid): pid for pid in children}
    statuses = {}
    while watched:
        ended, _, _ = select.select(list(watched), [], [], max(0, deadline - time.monotonic()))
        if not ended:
            for pid in watched.values():
                os.kill(pid, signal.SIGKILL)
            deadline = time.monotonic() + LIMIT_SECONDS
        for descriptor in ended:
            os.close(descriptor)
            pid = watched.pop(descriptor)
            statuses[pid] = os.waitpid(pid, 0)[1]
            if statuses[pid] != 0:
                deadline = min(deadline, time.monotonic() + grace)
    return [statuses[pid] for pid in children]


def outcomes(count, body, *arguments, grace=LIMIT_SECONDS):
    """What body(*arguments) returned on each rank, or a Failed for a rank that raised or died."""
    port = _free_port()
    sys.stdout.flush()
    sys.stderr.flush()
    with tempfile.TemporaryDirectory() as folder:
        files = [Path(folder, str(rank)) for rank in range(count)]
        children = []
        for rank in range(count):
            pid = os.fork()
            if pid == 0:
                status = 1
                try:
                    status = 0 if _run(rank, count, port, files[rank], body, arguments) else 1
                finally:
                    sys.stderr.flush()
                    os._exit(status)
            children.append(pid)
        statuses = _wait(children, grace)
        found = []
        for rank, file in enumerate(files):
            if not file.exists():
                found.append(Failed(f"rank {rank} ended with wait status {statuses[rank]}"))
                continue
            good, result = pickle.loads(file.read_bytes())
            found.append(result if good else Failed(f"rank {rank}: {result}"))
        return found


def results(count, body, *arguments):
    """Like outcomes(), where every rank must succeed."""
    found = outcomes(count, body, *arguments, grace=GRACE_SECONDS)
    failed = [outcome for outcome in found if isinstance(outcome, Failed)]
    if failed:  # those that were killed after another's failure do not tell it
        raise min(failed, key=lambda failure: "ended with wait status" in str(failure))
    return found
