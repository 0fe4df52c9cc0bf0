#!/usr/bin/env python3
"""The back-end "troupe" of torch.distributed, besides what torch's own tests (torch_suite.py) look at: values of all
reductions and dtypes, memory in any form, and failures that name the rank."""

import ctypes
import os
import signal
import socket
import threading
import time
import unittest
from datetime import timedelta
from functools import reduce

import ranks  # first: it says where troupe is

import torch
import torch.distributed as dist

import troupe.torch
from troupe.errors import Error, Status

FLOATING = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
INTEGERS = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)
OF_NUMBERS = {
    "SUM": torch.add, "PRODUCT": torch.mul, "MIN": torch.minimum, "MAX": torch.maximum,
}
OF_BITS = {"BAND": torch.bitwise_and, "BOR": torch.bitwise_or, "BXOR": torch.bitwise_xor}
OF_BOOLEANS = {"SUM": torch.logical_or, "PRODUCT": torch.logical_and, "MIN": torch.logical_and,
               "MAX": torch.logical_or, "BAND": torch.logical_and, "BOR": torch.logical_or, "BXOR": torch.logical_xor}


def joined(body, *arguments, timeout=60):
    """Runs on a rank, within a group of all."""
    dist.init_process_group("troupe", timeout=timedelta(seconds=timeout))
    result = body(*arguments)
    dist.destroy_process_group()
    return result


def over(count, body, *arguments, **more):
    return ranks.results(count, lambda: joined(body, *arguments, **more))


NEW_UTS = 0x04000000


def moves():
    """This process to a host of another name, with which it shares the network. False without the right to."""
    if ctypes.CDLL(None).unshare(NEW_UTS) != 0:
        return False
    socket.sethostname("elsewhere")
    return True


def on_two_hosts(body, *arguments):
    if os.environ["RANK"] == "2":
        moves()
    return body(*arguments)


def input_of(rank, dtype, count=37):
    generator = torch.Generator().manual_seed(rank)
    if dtype == torch.bool:
        return torch.randint(0, 2, (count,), generator=generator).bool()
    return torch.randint(0 if dtype == torch.uint8 else -8, 8, (count,), generator=generator).to(dtype)


def reductions_of(dtype):
    if dtype == torch.bool:
        return OF_BOOLEANS
    return OF_NUMBERS if dtype in FLOATING else {**OF_NUMBERS, **OF_BITS}


def every_reduction():
    size, rank = dist.get_world_size(), dist.get_rank()
    for dtype in (*FLOATING, *INTEGERS, torch.bool):
        inputs = [input_of(member, dtype) for member in range(size)]
        for name, combine in reductions_of(dtype).items():
            op, expected = getattr(dist.ReduceOp, name), reduce(combine, inputs)
            for is_async in (False, True):
                found = inputs[rank].clone()
                work = dist.all_reduce(found, op=op, async_op=is_async)
                if is_async:
                    work.wait()
                assert torch.equal(found, expected), (dtype, name, found, expected)
            found = inputs[rank].clone()
            dist.reduce(found, size - 1, op=op)
            assert rank != size - 1 or torch.equal(found, expected), ("reduce", dtype, name)
            part = torch.empty(2, dtype=dtype)
            dist.reduce_scatter(part, [tensor[:2] for tensor in inputs[rank].split(37 // size)[:size]], op=op)
            at = 37 // size * rank
            assert torch.equal(part, expected[at:at + 2]), ("reduce_scatter", dtype, name)
    mean = torch.full((3,), float(rank))
    dist.all_reduce(mean, op=dist.ReduceOp.AVG)
    assert torch.equal(mean, torch.full((3,), (size - 1) / 2))


def every_form_of_memory():
    size, rank = dist.get_world_size(), dist.get_rank()
    whole = torch.zeros(4, 6)
    column = whole[:, 2]
    column += rank + 1
    for is_async in (False, True):
        work = dist.all_reduce(column, async_op=is_async)
        if is_async:
            work.wait()
    expected = size * (size + 1) / 2 * size
    assert torch.equal(column, torch.full((4,), expected)) and whole.sum() == 4 * expected

    outputs = [torch.zeros(2, member + 1).t() for member in range(size)]  # uneven, and not contiguous
    dist.all_gather(outputs, torch.full((rank + 1, 2), float(rank)))
    assert all(torch.equal(output, torch.full((member + 1, 2), float(member))) for member, output in enumerate(outputs))

    strange = torch.full((5,), 1 + 2j, dtype=torch.complex64) * (rank + 1)
    dist.broadcast(strange, 1)
    assert torch.equal(strange, torch.full((5,), 2 + 4j, dtype=torch.complex64))

    small = torch.full((3,), rank).to(torch.float8_e4m3fn)  # moved, not reduced
    dist.broadcast(small, 0)
    assert small.float().eq(0).all()
    try:
        dist.all_reduce(small)
        raise AssertionError("float8 is not reduced")
    except Error as error:
        assert "float8" in str(error) and error.status == Status.INVALID_ARGUMENT

    empty = torch.zeros(0)
    dist.all_reduce(empty)
    sent = [torch.full((rank + member,), float(rank)) for member in range(size)]
    taken = [torch.zeros(member + rank) for member in range(size)]
    dist.all_to_all(taken, sent)
    assert all(torch.equal(one, torch.full((member + rank,), float(member))) for member, one in enumerate(taken))
    rows = [1 + member for member in range(size)]
    output = torch.zeros((1 + rank) * size, 3)
    dist.all_to_all_single(output, torch.full((sum(rows), 3), float(rank)), [1 + rank] * size, rows)
    assert torch.equal(output, torch.arange(size).float().repeat_interleave(1 + rank)[:, None].expand(-1, 3))
    with dist._coalescing_manager():
        several = [torch.full((length,), 1.0) for length in (1, 3, 1000)]
        for tensor in several:
            dist.all_reduce(tensor)
    assert all(tensor.eq(size).all() for tensor in several)
    for goes_on in (False, True):
        gathered = [torch.zeros(2 * length * size)[::step] for length, step in ((1, 2), (3, 1), (1000, 2))]
        with dist._coalescing_manager(async_ops=goes_on) as manager:
            for tensor in gathered:
                dist.all_gather_into_tensor(tensor, torch.full((len(tensor) // size,), float(rank)))
        if goes_on:
            manager.wait()
        assert all(torch.equal(tensor, torch.arange(size).float().repeat_interleave(len(tensor) // size))
                   for tensor in gathered)

    for dtype in (torch.int64, torch.bool):  # one tensor each, which is written whole, and nothing beside it
        around = torch.zeros(3 * size + 2, dtype=dtype)
        mine = torch.tensor([rank % 2, 1, 0], dtype=dtype)
        dist.all_gather_into_tensor(around[1:-1], mine)
        whole = torch.tensor([value for member in range(size) for value in (member % 2, 1, 0)], dtype=dtype)
        assert torch.equal(around[1:-1], whole) and not around[0] and not around[-1]
        part = torch.zeros(3, dtype=dtype)
        dist.reduce_scatter_tensor(part, whole, op=dist.ReduceOp.MAX)
        assert torch.equal(part, mine)


def threads():
    """Several in one group: all the same, so it does not matter whose comes first."""
    wrong = []

    def many():
        for _ in range(100):
            found = torch.ones(3)
            dist.all_reduce(found)
            if not found.eq(dist.get_world_size()).all():
                wrong.append(found)

    running = [threading.Thread(target=many) for _ in range(3)]
    for thread in running:
        thread.start()
    for thread in running:
        thread.join()
    assert not wrong, wrong


def messages():
    size, rank = dist.get_world_size(), dist.get_rank()
    if rank == 0:
        works = [dist.isend(torch.full((4,), tag), 1, tag=tag) for tag in (7, 8, 9)]
        dist.send(torch.zeros(0), 1, tag=10)
        for work in works:
            work.wait()
        assert all(work.is_completed() for work in works)
    if rank == 1:
        for tag in (9, 7, 8):
            found = torch.zeros(4, dtype=torch.int64)
            dist.recv(found, 0, tag=tag)
            assert found.eq(tag).all()
        dist.recv(torch.zeros(0), 0, tag=10)
    dist.barrier()
    if rank == 0:
        seen = set()
        for _ in range(1, size):
            found = torch.zeros(1)
            source = dist.recv(found)
            assert found.item() == source
            seen.add(source)
        assert seen == set(range(1, size))
    else:
        dist.send(torch.full((1,), float(rank)), 0)
    large, came = torch.full((3 << 20,), float(rank)), torch.zeros(3 << 20)
    operations = [dist.P2POp(dist.isend, large, (rank + 1) % size), dist.P2POp(dist.irecv, came, (rank - 1) % size)]
    for work in dist.batch_isend_irecv(operations):
        work.wait()
    assert came.eq((rank - 1) % size).all()


def groups():
    size, rank = dist.get_world_size(), dist.get_rank()
    pairs = [dist.new_group([member, (member + 1) % size]) for member in range(size)]
    for first, group in enumerate(pairs):
        if rank in (first, (first + 1) % size):
            found = torch.tensor([rank])
            dist.all_reduce(found, group=group)
            assert found.item() == first + (first + 1) % size
    mesh = dist.init_device_mesh("cpu", (size, 1), mesh_dim_names=("a", "b"))
    found = torch.tensor([1])
    dist.all_reduce(found, group=mesh.get_group("a"))
    assert found.item() == size
    for group in pairs:
        if group is not dist.GroupMember.NON_GROUP_MEMBER:
            dist.destroy_process_group(group)


def dies(victim):
    dist.init_process_group("troupe", timeout=timedelta(seconds=60))
    dist.barrier()
    if dist.get_rank() == victim:
        os.kill(os.getpid(), signal.SIGKILL)
    began, texts = time.monotonic(), []
    work = dist.all_reduce(torch.ones(3), async_op=True)
    for call in (work.wait, lambda: dist.all_reduce(torch.ones(3)), work.get_future().wait):
        try:
            call()
            texts.append("nothing failed")
        except RuntimeError as error:
            texts.append(str(error))
    return time.monotonic() - began, texts


def dies_owing_a_message(victim):
    dist.init_process_group("troupe", timeout=timedelta(seconds=60))
    dist.barrier()
    if dist.get_rank() == victim:
        os.kill(os.getpid(), signal.SIGKILL)
    if dist.get_rank() == 0:
        try:
            dist.recv(torch.ones(3), victim)
        except RuntimeError as error:
            return str(error)
    return ""


def is_missing(missing):
    dist.init_process_group("troupe")
    if dist.get_rank() in missing:
        time.sleep(3)
        return ""
    try:
        dist.monitored_barrier(timeout=timedelta(seconds=1))
        return "nobody was missing"
    except dist.DistBackendError as error:
        return f"{error.status.name}: {error}"


def disagree():
    dist.init_process_group("troupe", timeout=timedelta(seconds=20))
    try:
        dist.all_reduce(torch.ones(3 + dist.get_rank()))
        return "no difference"
    except RuntimeError as error:
        return str(error)


def sends_more_than_is_received(sent, taken):
    dist.init_process_group("troupe", timeout=timedelta(seconds=2))
    guarded = torch.zeros(max(sent, taken) + 1000)
    try:
        if dist.get_rank() == 0:
            dist.send(torch.ones(sent), 1)
        else:
            dist.recv(guarded[:taken], 0)
        dist.barrier()
    except RuntimeError as error:
        return str(error), guarded[taken:].sum().item()
    return "no difference", guarded[taken:].sum().item()


def aborted():
    dist.init_process_group("troupe")
    began = time.monotonic()
    if dist.get_rank() == 0:
        backend = dist.group.WORLD._get_backend(torch.device("cpu"))
        threading.Timer(0.2, backend.abort).start()
        try:
            dist.all_reduce(torch.ones(3))
        except RuntimeError as error:
            return time.monotonic() - began, str(error)
    time.sleep(0.6)
    return 0.0, "rank 0 aborted"


def has_ended():
    dist.init_process_group("troupe")
    dist.all_reduce(torch.ones(3))
    dist.group.WORLD._get_backend(torch.device("cpu")).shutdown()
    try:
        dist.all_reduce(torch.ones(3))
        return "nothing failed"
    except RuntimeError as error:
        return str(error)


class Values(unittest.TestCase):
    def test_of_every_reduction_and_dtype_are_exact(self):
        over(3, every_reduction)

    def test_arrive_in_memory_of_any_form(self):
        over(3, every_form_of_memory)

    def test_of_messages_keep_their_tags_and_tell_their_source(self):
        over(3, messages)

    def test_of_calls_from_several_threads_do_not_mix(self):
        over(2, threads)

    def test_stay_within_groups(self):
        over(3, groups)


@unittest.skipUnless(ranks.results(1, moves)[0], "a rank may not take another host's name here")
class Hosts(unittest.TestCase):
    def test_exchange_the_same_values_over_tcp(self):
        for body in (every_reduction, every_form_of_memory, messages, groups):
            with self.subTest(body.__name__):
                ranks.results(3, on_two_hosts, joined, body)

    def test_name_a_dead_rank_soon(self):
        found = ranks.outcomes(3, on_two_hosts, dies, 2)
        for seconds, texts in found[:2]:
            self.assertLess(seconds, 5)
            self.assertTrue(all("lost the connection to rank 2" in text for text in texts), texts)


class Failures(unittest.TestCase):
    OVER = "automatic"
    DEAD = r"rank 1 \(process \d+\) died"

    def setUp(self):
        before = os.environ.get("TROUPE_PEERS_OVER")
        os.environ["TROUPE_PEERS_OVER"] = self.OVER
        self.addCleanup(lambda: os.environ.update(TROUPE_PEERS_OVER=before or ""))

    def test_a_dead_rank_is_named_soon(self):
        for found in ranks.outcomes(3, dies, 1):
            if isinstance(found, ranks.Failed):
                self.assertIn("wait status 9", str(found))
                continue
            seconds, texts = found
            self.assertLess(seconds, 5)
            for text in texts:
                self.assertRegex(text, self.DEAD)

    def test_a_dead_rank_that_owes_a_message_is_named(self):
        self.assertIn("rank 2", ranks.outcomes(3, dies_owing_a_message, 2)[0])

    def test_ranks_that_miss_a_barrier_are_named(self):
        self.assertRegex(ranks.results(3, is_missing, (1, 2))[0], "TIMEOUT: .*no sign of rank 1, rank 2")

    def test_sizes_that_differ_are_told_with_ranks(self):
        for text in ranks.results(2, disagree):
            self.assertRegex(text, "rank 1 posted elements 4, but rank 0 posted 3")

    def test_messages_of_another_size_write_nothing_beyond(self):
        for sent, taken in ((100, 50), (50, 100), (1 << 20, 50)):
            with self.subTest(sent=sent, taken=taken):
                found = ranks.outcomes(2, sends_more_than_is_received, sent, taken)[1]
                self.assertNotIsInstance(found, ranks.Failed)
                text, beyond = found
                self.assertEqual(beyond, 0)
                # A long message's sender waits as long; who gives up first tells the other.
                self.assertRegex(text, f"the receive of {4 * taken} bytes with tag 0, which the other side sends alike"
                                       f"|the send of {4 * sent} bytes with tag 0, which the other side receives alike")

    def test_a_group_that_has_ended_runs_nothing(self):
        for text in ranks.results(2, has_ended):
            self.assertIn("the group is NULL", text)

    def test_an_abort_ends_what_runs(self):
        seconds, text = ranks.results(2, aborted)[0]
        self.assertLess(seconds, 3)
        self.assertIn("abort", text)


class FailuresOverTcp(Failures):
    OVER = "tcp"
    DEAD = r"(lost the connection to|no sign of) rank 1\b"


class Door(unittest.TestCase):
    def test_is_known_by_name(self):
        self.assertTrue(dist.is_backend_available("troupe"))
        troupe.torch.process_group.register()  # a second time


if __name__ == "__main__":
    if not hasattr(dist.Backend, "_ensure_backend_registered"):
        print(f"left out: torch {torch.__version__} has no back-ends in Python; 2.14 has them")
    else:
        unittest.main()
