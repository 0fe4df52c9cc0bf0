"""What scripts/benchmarks measures, what it calls the figures, and what the project claims of them."""

import json
import os
import subprocess
from dataclasses import dataclass, field
from pathlib import Path
from typing import Callable

ROOT = Path(__file__).resolve().parent.parent


@dataclass
class Claim:
    """`limit` bounds the median of a figure: from above unless `at_least`."""
    limit: float
    at_least: bool = False

    def holds(self, median):
        return median >= self.limit if self.at_least else median <= self.limit

    def __str__(self):
        return f"{'at least' if self.at_least else 'at most'} {self.limit:g}"


def at_most(limit):
    return Claim(limit)


def at_least(limit):
    return Claim(limit, at_least=True)


@dataclass
class Section:
    name: str
    title: str
    text: str
    measure: Callable  # of a Tools, and gives a dictionary: the values of each figure
    claims: dict = field(default_factory=dict)  # by figure
    needs_torch: bool = False


class Tools:
    """The programs to measure, and how often."""

    def __init__(self, binaries, python, quick):
        self.binaries, self.python, self.quick = Path(binaries), python, quick
        self.commands = []  # as they were run, for the document

    def times(self, whole, quick):
        return quick if self.quick else whole

    def run(self, *command):
        """Standard output, and the processor's seconds and peak memory in MiB."""
        command = [str(each) for each in command]
        shown = " ".join(os.path.relpath(each, ROOT) if each.startswith(str(ROOT)) else each for each in command)
        shown = shown.replace(str(self.python), "PYTHON") if self.python else shown
        if shown not in self.commands:
            self.commands.append(shown)
        environment = {**os.environ, "TROUPE_LIBRARY": str(self.binaries.parent / "lib/libtroupe.so.0")}
        child = subprocess.Popen(command, stdout=subprocess.PIPE, cwd=ROOT, env=environment)
        output = child.stdout.read()
        _, status, used = os.wait4(child.pid, 0)
        child.returncode = os.waitstatus_to_exitcode(status)
        if child.returncode != 0:
            raise RuntimeError(f"{shown} ended with status {child.returncode}; what it said is above")
        return output.decode(), used.ru_utime + used.ru_stime, used.ru_maxrss / 1024

    def json(self, *command):
        return json.loads(self.run(*command)[0])

    def bench(self, *command):
        return self.json(self.binaries / "troupe", "bench", *command, "--json")

    def peer(self, script, *command):
        return self.json(self.python, ROOT / "scripts/peers" / script, *command, "--json")


def add(figures, name, value):
    figures.setdefault(name, []).append(round(value, 4 if abs(value) < 10 else 2))


def steps(tools):
    figures = {}
    for ranks in (2, 1):
        for _ in range(tools.times(5, 3)):
            for row in tools.bench("step", "--ranks", ranks):
                kind = f"{ranks} rank{'s' * (ranks > 1)}, overlap {'on' if row['overlap'] else 'off'}"
                add(figures, f"{kind}: step, ms", row["step_seconds"] * 1e3)
                add(figures, f"{kind}: exposed collectives, ms", row["exposed_communication_seconds"] * 1e3)
                if row["overlap"]:
                    add(figures, f"{kind}: share of collectives exposed",
                        row["exposed_communication_seconds"] / row["communication_seconds"])
                    add(figures, f"{kind}: gradient to launch, p50, µs", row["launch_p50_microseconds"])
                    add(figures, f"{kind}: gradient to launch, p99, µs", row["launch_p99_microseconds"])
                    add(figures, f"{kind}: messages per step", row["messages_per_step"])
            for row in tools.bench("step", "--ranks", ranks, "--busy"):
                kind = f"{ranks} rank{'s' * (ranks > 1)} that compute{'s' * (ranks == 1)}"
                if row["overlap"]:
                    add(figures, f"{kind}: gradient to launch, p50, µs", row["launch_p50_microseconds"])
                    add(figures, f"{kind}: gradient to launch, p99, µs", row["launch_p99_microseconds"])
    return figures


def strategies(tools):
    figures = {}
    for _ in range(tools.times(5, 3)):
        rows = tools.bench("step", "--strategy", "ddp,zero1,zero2,zero3", "--ranks", 2, "--steps", tools.times(60, 30))
        own = {row["strategy"]: row for row in rows if row["overlap"]}
        for name, row in own.items():
            add(figures, f"{name}: memory, MiB", row["device_bytes"] / 2**20)
            add(figures, f"{name}: step, of ddp's", row["step_seconds"] / own["ddp"]["step_seconds"])
    return figures


def collectives(tools):
    figures = {}
    for _ in range(tools.times(5, 3)):
        rows = tools.bench("collectives", "--ranks", "2,4", "--operations", "all_reduce,reduce_scatter,all_gather",
                           "--bytes", 64 << 20)
        seconds = {(row["operation"], row["ranks"], row["backend"]): row["seconds"] for row in rows}
        for (operation, ranks, backend), taken in seconds.items():
            if backend != "loopback":
                add(figures, f"{backend}, {operation}, {ranks} ranks: ms", taken * 1e3)
            if backend == "tcp":
                add(figures, f"tcp, {operation}, {ranks} ranks: of plain sockets' speed",
                    seconds[operation, ranks, "loopback"] / taken)
    return figures


def kernels(tools):
    figures = {}
    for _ in range(tools.times(5, 3)):
        for row in tools.json(tools.binaries / "bench_kernels", "--json"):
            add(figures, f"{row['kernel']}: of the triad", row["of_triad"])
    return figures


def checkpoints(tools):
    figures = {}
    kinds = {"short steps": (), "long steps": ("--layer-milliseconds", 20)}
    for kind, more in kinds.items():
        for _ in range(tools.times(5, 3) if kind == "short steps" else tools.times(3, 2)):
            row = tools.bench("checkpoint", "--mib", 384, "--staging-mib", 512, *more)
            add(figures, f"{kind}: step, ms", row["step_seconds"] * 1e3)
            add(figures, f"{kind}: stall, ms", row["stall_seconds"] * 1e3)
            add(figures, f"{kind}: stall, of memcpy", row["stall_seconds"] / row["memcpy_seconds"])
            add(figures, f"{kind}: stall above 0.3 of memcpy, ms",
                max(0, row["stall_seconds"] - 0.3 * row["memcpy_seconds"]) * 1e3)
            add(figures, f"{kind}: first stall, of later ones",
                row["first_stall_seconds"] / max(row["stall_seconds"], 1e-3))
            add(figures, f"{kind}: durable, of a plain write", row["durable_seconds"] / row["plain_write_seconds"])
            add(figures, f"{kind}: load, of a plain read", row["load_seconds"] / row["plain_read_seconds"])
    return figures


def loads(tools):
    figures = {}
    for row in tools.bench("load", "--mib", 192, "--repeats", 3):
        kind = f"{row['strategy']}, {row['ranks']} ranks, files {'cached' if row['cached'] else 'on the disk'}"
        add(figures, f"{kind}: each reads, ms", row["read_seconds"] * 1e3)
        add(figures, f"{kind}: exchanged, of that", row["exchange_seconds"] / row["read_seconds"])
    return figures


def experts(tools):
    figures = {}
    for _ in range(tools.times(5, 3)):
        row = tools.bench("moe", "--repeats", 31)
        add(figures, "dispatch and combine, of two plain exchanges", row["ratio"])
        add(figures, "dispatch, ms", row["dispatch_seconds"] * 1e3)
        add(figures, "combine, ms", row["combine_seconds"] * 1e3)
    return figures


def pipelines(tools):
    figures = {}
    for stages in (2, 4):
        for row in tools.bench("pipeline", "--stages", stages):
            add(figures, f"{row['schedule']}, {stages} stages: bubble, of the theory", row["bubble_to_theory"])
    return figures


def plans(tools):
    figures = {}
    for _ in range(tools.times(5, 3)):
        for row in tools.json(tools.binaries / "bench_plan", "--json"):
            add(figures, f"{row['form']}, {row['ranks']} ranks: s", row["total_seconds"])
            add(figures, f"{row['form']}, {row['ranks']} ranks: manifest, MB", row["manifest_bytes"] / 1e6)
    return figures


def simulator(tools):
    figures = {}
    for ranks, units in (64, 64), (256, 64), (1024, 64), (4096, 16):
        for _ in range(tools.times(5, 3) if ranks < 1024 else tools.times(2, 1)):
            _, seconds, mib = tools.run(tools.binaries / "troupe", "simulate", "--ranks", ranks, "--units", units,
                                        "--strategy", "zero3", "--steps", 1)
            add(figures, f"{ranks} ranks, {units} units of zero3: processor s", seconds)
            add(figures, f"{ranks} ranks, {units} units of zero3: memory, MiB", mib)
    return figures


def recoveries(tools):
    figures = {}
    found = tools.json(ROOT / "scripts/recovery_times", "--rounds", tools.times(20, 6), "--json")
    for way, taken in found.items():
        figures[f"{way}: ms"] = [round(each, 1) for each in taken]
    return figures


def torch_updates(tools):
    figures = {}
    for row in tools.peer("torch_updates.py", "--rounds", tools.times(5, 3))["rows"]:
        ranks = f"{row['ranks']} rank{'s' * (row['ranks'] > 1)}"
        for name, taken in row["milliseconds"].items():
            figures[f"{ranks}, {name}: ms"] = [round(each, 1) for each in taken]
        for name, ratios in row["of_torch"].items():
            figures[f"{ranks}, {name}: of torch's"] = [round(each, 3) for each in ratios]
    return figures


def torch_steps(tools):
    figures = {}
    for _ in range(tools.times(3, 2)):
        found = tools.peer("torch_steps.py", "--rounds", 1)["median_ms"]
        for name, taken in found.items():
            add(figures, f"{name}: ms", taken)
            peer = "DDP over Gloo" if name in ("troupe.torch ddp", "troupe.torch zero1") else "FSDP2 over Gloo"
            if name.startswith("troupe"):
                add(figures, f"{name}: times as fast as {peer}", found[peer] / taken)
    return figures


def torch_collectives(tools):
    figures = {}
    for over in ("automatic", "tcp"):
        where = "shared memory" if over == "automatic" else "tcp"
        for row in tools.peer("torch_collectives.py", "--over", over)["rows"]:
            kind = f"{where}, {row['operation']}, {row['size']}, {row['ranks']} ranks"
            figures[f"{kind}: µs"] = row["troupe_us"]
            add(figures, f"{kind}: times as fast as gloo", row["ratio"])
    return figures


def torch_saves(tools):
    figures = {}
    for _ in range(tools.times(3, 2)):
        found = tools.peer("torch_saves.py", "--mib", 128)
        for what, own, peer in (("a state by itself, call", "troupe", "dcp"), ("in training, call", "trainer_call", "fsdp_call"),
                                ("in training, step", "trainer_step", "fsdp_step")):
            add(figures, f"{what}: troupe's, ms", found[f"{own}_ms"])
            add(figures, f"{what}: DCP's, ms", found[f"{peer}_ms"])
            add(figures, f"{what}: times less than DCP's", found[f"{peer}_ms"] / found[f"{own}_ms"])
    return figures


AS_FAST_AS_GLOO = {f"{where}, {operation}, {size}, {ranks} ranks: times as fast as gloo": at_least(limit)
                   for where, limit in (("shared memory", 2), ("tcp", 1.5))
                   for operation in ("all_reduce", "all_gather", "reduce_scatter")
                   for size in ("4 KiB", "256 KiB", "64 MiB") for ranks in (2, 4)}

SECTIONS = [
    Section("step", "The runtime's own cost", "Twelve layers of 262,144 fp32 parameters, six buckets, ZeRO-1, `ordered` "
            "numerics, shared memory. A layer's forward computes for 1.5 ms and its backward for 3 ms with the processor "
            "free, as with an accelerator. \"Gradient to launch\" is the time from the trainer's call for the last gradient "
            "of a bucket to the launch of its collective, over buckets that no earlier launch held up; a processor that was "
            "free wakes late, so it is measured with trainers that compute meanwhile, too; two of these leave no processor "
            "for anything else on a machine with two.", steps,
            {"2 ranks, overlap on: share of collectives exposed": at_most(0.4),
             **{f"{ranks}: gradient to launch, p50, µs": at_most(15)
                for ranks in ("1 rank that computes", "2 ranks that compute")},
             **{f"{ranks}, overlap on: gradient to launch, p99, µs": at_most(100) for ranks in ("1 rank", "2 ranks")}}),
    Section("strategies", "Every strategy", "The same model, one unit per layer, two gathered, two ranks, with overlap.",
            strategies, {"zero1: step, of ddp's": at_most(1.05), "zero2: step, of ddp's": at_most(1.05),
                         "zero3: step, of ddp's": at_most(1.05)}),
    Section("collectives", "Collectives of 64 MiB", "`tcp` over loopback against plain sockets that move the same bytes "
            "between the same processes, from and to as much memory, interleaved in one run; fp32.", collectives,
            {f"tcp, {operation}, {ranks} ranks: of plain sockets' speed": at_least(0.7)
             for operation in ("all_reduce", "reduce_scatter", "all_gather") for ranks in (2, 4)}),
    Section("kernels", "Kernels", "64 MiB of fp32 per array, one thread, each run beside one of a STREAM-like triad. "
            "In-place kernels can exceed 1, because written lines are counted once.", kernels,
            {"add_squares f32: of the triad": at_least(0.7),
             **{f"cast {pair}: of the triad": at_least(0.8) for each in ("f16", "bf16", "f8_e4m3", "f8_e5m2")
                for pair in (f"f32 to {each}", f"{each} to f32")}}),
    Section("checkpoint", "Saving and loading", "One rank, 16 layers of fp32 with AdamW, 403 MB of state, 512 MiB of "
            "staging memory. Peers in the same run: one thread that copies as many bytes, writes them to one file and "
            "syncs, and reads them into fresh memory. Short steps have no compute, long ones 20 ms for a layer's "
            "forward.", checkpoints,
            {"long steps: stall above 0.3 of memcpy, ms": at_most(2),
             "short steps: first stall, of later ones": at_most(1.2),
             "short steps: durable, of a plain write": at_most(1.1),
             "short steps: load, of a plain read": at_most(1.1)}),
    Section("load", "Loading by several ranks", "192 MiB, processes on one host, shared memory: every rank reads what it "
            "needs, or each file is read once and exchanged. On one host the second reader finds the bytes in memory, so "
            "an exchange pays off only where ranks share a slower store.", loads),
    Section("experts", "Tokens to experts and back", "16 MiB of rows from each of two ranks to 16 experts and back, "
            "against two plain all_to_alls of the same contiguous rows. What is above 1 is the sums.", experts,
            {"dispatch and combine, of two plain exchanges": at_most(1.5)}),
    Section("pipeline", "Pipeline schedules", "In simulated time, with the runner, the links and the sessions that `gpt` "
            "uses; passes of 10 ms, messages of 1 MiB.", pipelines,
            {f"{schedule}, {stages} stages: bubble, of the theory": at_most(1.05)
             for schedule in ("gpipe", "1f1b", "interleaved", "zero_bubble") for stages in (2, 4)}),
    Section("plan", "Planning a checkpoint", "2,000 parameters of a transformer (7.3e9 elements, 50 padded buckets) and "
            "their two moments: 6,000 tensors, 88 GB. Processor seconds of one thread.", plans,
            {"ZeRO-1, 1024 ranks: s": at_most(2.5), "ZeRO-1, 1024 ranks: manifest, MB": at_most(64)}),
    Section("simulator", "The simulator", "One step of a whole job in one thread, with every check.", simulator,
            {"64 ranks, 64 units of zero3: processor s": at_most(1.5),
             "1024 ranks, 64 units of zero3: processor s": at_most(20),
             "1024 ranks, 64 units of zero3: memory, MiB": at_most(1024),
             "4096 ranks, 16 units of zero3: processor s": at_most(60),
             "4096 ranks, 16 units of zero3: memory, MiB": at_most(8192)}),
    Section("recovery", "The loss of a rank", "From SIGKILL of a random rank of `gpt` to the next committed step: four "
            "ranks, the smallest model, a checkpoint every 10 steps.", recoveries,
            {"spare: ms": at_most(100), "fewer: ms": at_most(100), "in-place: ms": at_most(120)}),
    Section("torch_updates", "A step without compute, beside PyTorch", "33.5 million fp32 parameters in 16 tensors: "
            "reduced gradients, their norm, clipping, AdamW, and zeros again, against torch's fused AdamW, "
            "`clip_grad_norm_()` and `zero_grad()`; with two ranks torch also reduces over Gloo.", torch_updates,
            {f"{ranks}, {strategy}: of torch's": at_most(0.8)
             for ranks in ("1 rank", "2 ranks") for strategy in ("ddp", "zero1")}, True),
    Section("torch_steps", "PyTorch models", "A Llama of transformers with 6.2 million parameters in fp32, 64 tokens per "
            "rank and step, AdamW and clipping, two ranks of one thread each.", torch_steps,
            {"troupe.torch ddp: times as fast as DDP over Gloo": at_least(1.05),
             "troupe.torch zero1: times as fast as DDP over Gloo": at_least(1.05),
             "troupe.torch zero3: times as fast as FSDP2 over Gloo": at_least(1.3)}, True),
    Section("torch_collectives", "Collectives of torch.distributed", "Calls that wait, fp32: the back-ends `troupe` and "
            "`gloo` serve groups of the same processes and take turns call by call. Times are quartiles.",
            torch_collectives, AS_FAST_AS_GLOO, True),
    Section("torch_saves", "The stall of a save, beside DCP", "128 MiB on each of two ranks. A state by itself: "
            "`troupe.checkpoint.save_async()` and DCP's `async_save()`, in turns. In training: `save()` of troupe.torch's "
            "trainer (zero3), and `async_save()` with FSDP2; how long the call takes, and how much longer the step is "
            "that begins with it. Where ranks share two processors, much of the latter is the writing.", torch_saves,
            {"a state by itself, call: times less than DCP's": at_least(1.5),
             "in training, call: times less than DCP's": at_least(10),
             "in training, step: times less than DCP's": at_least(1.5)}, True),
]
