"""The rows of scripts/gpu_check: the most valuable first, in case time runs out."""
import os
import re
import shutil

import gpu_benchmarks
from gpu_checks import NO_TIME, NOT_FOUND, Row, Section, command_row, judged, records, slug
from gpu_pack import LIBRARY

# In a rehearsal: takes the place of compute-sanitizer and its eight words of options.
STAND_IN = """#!/bin/sh
shift 8
"$@"
status=$?
echo "========= ERROR SUMMARY: 0 errors"
exit $status
"""

# Once the first checkpoint is there, rank 1, which is a child of the launcher, gets the signal.
HURT_A_RANK = r"""
"$@" &
launcher=$!
while kill -0 "$launcher" 2>/dev/null && ! ls "$SAVED"/step_*/manifest.json >/dev/null 2>&1; do sleep 0.05; done
for stat in /proc/[0-9]*/stat; do
  read -r pid name state parent rest <"$stat" 2>/dev/null || continue
  [ "$name" = "(troupe-gpt)" ] && [ "$parent" = "$launcher" ] || continue
  if tr '\0' '\n' <"/proc/$pid/environ" | grep -qx RANK=1; then rank=$pid; fi
done
kill -"$SIGNAL" "$rank"
wait "$launcher"
"""

# What becomes of a lost rank: how the job of three ranks is started, and what the launcher says.
MENDS = {"is started again": (("--max-restarts=1",), "the others stay: restart 1 of 1"),
         "is played by a spare": (("--spares=1",), "is rank 1 now, the others stay"),
         "is left out": (("--nproc-per-node=2:3",), "the job goes on with 2 ranks")}

CONTRACTS = (("contract of devices", "*DeviceContract*cuda*"),
             ("beside a trainer", "*CudaBesideATrainer*"),
             ("kernels", "*cuda*:*Cuda*-*DeviceContract*:*BesideATrainer*:*OnGpu*"))
SPLIT = ("--pipeline-schedule", "zero-bubble")
STAGES = ("--pipeline-parallel", "2")
LAYERS = ("--tensor-parallel", "2")
SEQUENCES = ("--context-parallel", "2")
SHARED = (LAYERS, SEQUENCES, (*LAYERS, "--sequence-parallel"), (*LAYERS, "--experts", "4"), (*SEQUENCES, "--experts", "4"))


def tests_passed(text):
    """The tests ran, and none was skipped for want of a GPU."""
    ran = re.search(r"\[  PASSED  \] (\d+) test", text)
    return ran is not None and int(ran.group(1)) > 0 and "[  SKIPPED ]" not in text


def tests_figure(text):
    return re.search(r"\[  PASSED  \] (\d+) test", text).group(1) + " tests"


def is_clean(text, processes):
    """Every process ended with a summary, and none had an error."""
    counts = re.findall(r"ERROR SUMMARY: (\d+) error", text)
    return len(counts) >= processes and all(count == "0" for count in counts)


def close(found, expected):
    """Losses within 1e-5 of others, relative."""
    return all(abs(loss - other) <= 1e-5 * other for loss, other in zip(found, expected))


class Rows:
    """`root` is where the pack was unpacked; `has` says what the machine has: gpu, nccl, cublas, torch."""

    def __init__(self, checks, root, has, sanitizer):
        self.checks, self.root, self.has, self.sanitizer = checks, root, has, sanitizer
        self.ends = {}  # of jobs in which ranks are lost
        self.losses = {}  # of jobs that ended, by what makes their model and then by their options
        self.named = set()

    def program(self, name):
        return str(self.root / "bin" / name)

    def job(self, ranks, *arguments, under=(), launch=()):
        """apps/gpt as a job of `ranks` on the GPUs of this machine. Ranks that share one are slow."""
        return [self.program("troupe"), "launch", "--standalone", "--nproc-per-node", str(ranks), *launch, "--", *under,
                self.program("troupe-gpt"), "--device", "cuda", "--sample-bytes", "0", "--evaluate-every", "0", "--text",
                str(self.root / "text.txt"), *map(str, arguments)]

    def needing(self, needs, row):
        """The row, or one that says what it lacks."""
        missing = [name for name in needs if not self.has.get(name)]
        if missing:
            row.make = lambda checks, limit: (NOT_FOUND, f"needs {', '.join(missing)}")
        return row

    def tests(self, name, program, suite, limit, needs=("gpu",), under=(), **more):
        command = [*under, self.program(program), *([f"--gtest_filter={suite}"] if suite else [])]
        return self.needing(needs, command_row(name, command, limit, passed=more.pop("passed", tests_passed),
                                               figure=tests_figure, **more))

    def groups(self, ranks):
        return self.tests(f"groups over NCCL, {ranks} ranks on one GPU", "gpu_tests", f"*OnGpu*{ranks}_ranks*", 40,
                          ("gpu", "nccl"))

    # Equal bits.

    def bits(self, dtype, ranks, *more, model=()):
        """A short run; its losses are kept."""
        # Ranks that share a GPU take turns on it, and those of one model wait for each other in every layer.
        steps = 4 if self.checks.emulated or model in SHARED else 20
        name = " ".join([f"apps/gpt {dtype}, {ranks} rank{'s' if ranks > 1 else ''}", *model, *more])
        folder = self.checks.work / slug("gpt", dtype, ranks, *model, *more)

        def figure(_):
            found, end = records(folder)
            self.losses.setdefault((dtype, *model), {})[(ranks, *more)] = [step["loss"] for step in found]
            return f"loss {found[0]['loss']:.4f} to {found[-1]['loss']:.4f}, {end}"

        return self.needing(("gpu", "nccl", "cublas"), command_row(
            name, self.job(ranks, "--preset", "tiny", "--steps", steps, "--seed", 7, "--dtype", dtype, "--output",
                           folder, *model, *more), 45, figure=figure,
            before=lambda: shutil.rmtree(folder, ignore_errors=True)))

    def equal(self, dtype, jobs, claim, model=()):
        """Rows of jobs that train the same model, and one that says whether they came to the same. A job that is in
        several claims runs once."""
        rows = []
        for ranks, more in jobs:
            row = self.bits(dtype, ranks, *more, model=model)
            if row.name not in self.named:
                rows.append(row)
                self.named.add(row.name)

        def judge():
            found = self.losses.get((dtype, *model), {})
            done = [found[(ranks, *more)] for ranks, more in jobs if (ranks, *more) in found]
            if any(losses != done[0] for losses in done):
                return "FAILED", "losses differ: see the rows of these jobs"
            if len(done) == len(jobs):
                return "passed", f"{len(jobs)} jobs"
            return NO_TIME, f"{len(done)} of {len(jobs)} jobs ended, with the same losses" if len(done) > 1 else ""
        return [*rows, judged(f"{dtype}: {claim}", judge)]

    def near(self, what, way):
        def judge():
            found, whole = self.losses.get(("f32", *way), {}).get((2,)), self.losses.get(("f32",), {}).get((1,))
            if found is None or whole is None:
                return NO_TIME, ""
            return ("passed" if close(found, whole) else "FAILED"), ""
        return judged(f"f32: losses with shared {what} within 1e-5 of those of whole ones", judge)

    def core_bits(self):
        ranks = [(count, ()) for count in (1, 2, 4)]
        strategies = [(1, ()), (2, ("--strategy", "zero3")), (4, ("--strategy", "zero3")), (2, ("--strategy", "zero2")),
                      (2, STAGES), (4, ("--strategy", "hfsdp", "--optimizer-instances", "2"))]
        rows = []
        for jobs, claim in ((ranks, "the same bits on 1, 2 and 4 ranks"),
                            (strategies, "the same bits whatever is sharded, and in stages")):
            for dtype in ("f32", "bf16"):
                rows += self.equal(dtype, jobs, claim)
        return rows

    def more_bits(self):
        rows = []
        for dtype in ("bf16", "f32"):
            rows += self.equal(dtype, [(2, ()), (4, ("--expert-parallel", "4", "--strategy", "zero3")), (1, ()),
                                       (2, ("--expert-parallel", "2")), (2, STAGES),
                                       (4, (*STAGES, *SPLIT, "--expert-parallel", "2", "--strategy", "zero3"))],
                               "the same bits wherever experts are", ("--experts", "4"))
            for what, way in (("layers", LAYERS), ("sequences", SEQUENCES),
                              ("layers and rows", (*LAYERS, "--sequence-parallel"))):
                rows += self.equal(dtype, [(2, ()), (4, ("--strategy", "zero3")), (4, STAGES), (4, (*STAGES, *SPLIT))],
                                   f"shared {what} have the same bits in any strategy, and in stages", way)
                if dtype == "f32":
                    rows.append(self.near(what, way))
            rows += self.equal(dtype, [(1, ()), (2, (*STAGES, *SPLIT)), (4, (*STAGES, *SPLIT, "--strategy", "zero3")),
                                       (2, (*STAGES, "--pipeline-schedule", "gpipe")), (2, ("--register-memory",)),
                                       (2, ("--strategy", "zero3", "--register-memory"))],
                               "the same bits in any schedule, and with registered memory")
            rows += self.equal(dtype, [(1, ()), (2, ()), (4, ("--strategy", "zero3"))],
                               "the same bits with gradients sent as bf16", ("--wire-dtype", "bf16"))
        rows += self.equal("bf16", [(1, ()), (2, ()), (4, ("--strategy", "zero3"))],
                           "the same bits with fp8 blocks gathered", ("--gather-dtype", "f8_e4m3"))
        for what, way in (("layers", LAYERS), ("sequences", SEQUENCES)):
            rows += self.equal("bf16", [(2, ()), (4, ("--strategy", "zero3"))],
                               f"experts and shared {what} have the same bits in any strategy",
                               (*way, "--experts", "4"))
        return rows

    # Models of PyTorch.

    def of_pytorch(self):
        needs = ("libtroupe on a GPU", "gpu", "nccl", "torch", "transformers")
        environment = {"TROUPE_LIBRARY": str(self.root / "native" / LIBRARY), "PYTHONDONTWRITEBYTECODE": "1"}

        def ran(text):
            return int(re.search(r"^Ran (\d+) tests", text, re.MULTILINE).group(1))

        return [self.needing(needs, command_row(
                    "troupe.torch: models of PyTorch", ["python3", self.root / "tests/python/torch_gpu_test.py"], 120,
                    environment=environment, figure=lambda text: f"{ran(text)} tests",
                    passed=lambda text: ran(text) > 0 and "skipped" not in text)),
                self.needing(needs, command_row(
                    "troupe.torch beside PyTorch alone",
                    ["python3", self.root / "scripts/peers/torch_gpu_steps.py", "--rounds", 1], 150,
                    environment=environment, figure=lambda text: ", ".join(text.split("\n")[-5:]).strip(", ")))]

    # Failures.

    def long_job(self, name, ranks, *more, launch=(), limit=60, hurt="", said=""):
        """Its parameters at the end are kept. What is hurt must go on to its end, which even on fast machines is a second
        away."""
        folder, saved = self.checks.work / slug(name), self.checks.work / slug(name, "saved")
        steps, every = (12, 4) if self.checks.emulated else (200, 20)
        command = self.job(ranks, "--preset", "tiny", "--steps", steps, "--seed", 7, "--checkpoints", saved, "--save-every",
                           every, "--output", folder, *more, launch=launch)

        def passed(text):
            return said in text and text.count("this process goes on in epoch 2") == (ranks - 1 if hurt else 0)

        def figure(_):
            self.ends[name] = records(folder)[1]
            return self.ends[name]

        def before():
            for each in (folder, saved):
                shutil.rmtree(each, ignore_errors=True)

        return self.needing(("gpu", "nccl", "cublas"), command_row(
            name, ["bash", "-c", HURT_A_RANK, "job", *command] if hurt else command, limit, passed=passed, figure=figure,
            environment={"SAVED": str(saved), "SIGNAL": hurt}, before=before))

    def losses_of_ranks(self):
        """The other ranks keep their processes and devices."""
        rows = [self.long_job("a job whose ranks are not hurt", 1)]
        for signal, how, strategy in (("KILL", "is started again", "ddp"), ("STOP", "is played by a spare", "zero3"),
                                      ("KILL", "is left out", "zero1"), ("STOP", "is started again", "ddp"),
                                      ("KILL", "is played by a spare", "ddp")):
            launch, said = MENDS[how]
            rows.append(self.long_job(f"SIG{signal}, {strategy}: rank 1 {how}, the others stay", 3, "--strategy", strategy,
                                      launch=launch, hurt=signal, said=said))

        def judge():
            found = [self.ends[row.name] for row in rows if row.name in self.ends]
            if any(end != found[0] for end in found):
                return "FAILED", "parameters differ: see the rows of these jobs"
            return ("passed", f"{len(found)} jobs") if len(found) == len(rows) else (NO_TIME, "")
        return [*rows, judged("the same parameters whichever rank is lost", judge)]

    # Memory errors.

    def sanitized(self):
        """In the contracts' suites and in short jobs. What calls return does not count: tests provoke it."""
        tool = self.sanitizer
        if self.checks.emulated:
            tool = str(self.checks.work / "stand-in-for-compute-sanitizer")
            with open(tool, "w") as file:
                file.write(STAND_IN)
            os.chmod(tool, 0o755)
        memcheck = [tool, "--tool", "memcheck", "--target-processes", "all", "--report-api-errors", "no",
                    "--error-exitcode", "9"]
        self.has["compute-sanitizer"] = tool is not None
        # Tests of a program's death start it anew, which takes minutes under the tool.
        rows = [self.tests(f"compute-sanitizer: {name}", "gpu_tests", suite + (":" if "-" in suite else "-") + "*Refuse*",
                           60, ("gpu", "compute-sanitizer"), memcheck,
                           passed=lambda text: is_clean(text, 1) and tests_passed(text), refusal="Device not supported")
                for name, suite in (CONTRACTS[0], CONTRACTS[2])]
        for ranks in (1, 2):
            job = self.job(ranks, "--preset", "tiny", "--steps", 3, "--lanes", 4, "--batch", 1, under=memcheck)
            rows.append(self.needing(("gpu", "nccl", "cublas", "compute-sanitizer"), command_row(
                f"compute-sanitizer: apps/gpt, {ranks} rank{'s' if ranks > 1 else ''}", job, 60,
                passed=lambda text, ranks=ranks: is_clean(text, ranks), figure=lambda _: "3 steps",
                refusal="Device not supported")))
        return rows

    def sections(self):
        benchmarks = gpu_benchmarks.Benchmarks(self)
        at_once = max(1, min(4, (os.cpu_count() or 1) // 4))
        models, beside_pytorch = self.of_pytorch()
        return [
            Section(15, [command_row("troupe doctor", [self.program("troupe"), "doctor"], 30),
                         *(self.tests(name, "gpu_tests", suite, 40) for name, suite in CONTRACTS)]),
            Section(12, [self.groups(ranks) for ranks in (1, 2, 4)]),
            Section(65, self.core_bits(), at_once),
            Section(45, [models]),
            Section(8, [self.tests("apps/gpt: kernels and model against the host's", "apps_gpt_gpu_tests", None, 60,
                                   ("gpu", "cublas"))]),
            Section(45, benchmarks.rows()),
            Section(80, self.losses_of_ranks()),
            Section(130, self.more_bits(), at_once),
            Section(60, benchmarks.more_rows()),
            Section(40, [beside_pytorch]),
            Section(70, benchmarks.compiled_rows()),
            Section(40, self.sanitized()),
        ]
