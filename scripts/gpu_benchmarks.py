"""What scripts/gpu_check measures."""
import json
import re
import shutil

from gpu_checks import NOT_FOUND, ROOT, job, python, records


def run_kernels(checks, binaries):
    def times_of(text):
        return {time["name"]: time for time in json.loads(text.splitlines()[-1])["kernels"]}

    def figure(text):
        return ", ".join(f"{name} {time['bytes'] / time['seconds'] / 1e9:.0f} GB/s ({time['ratio']:.0%})"
                         for name, time in times_of(text).items())

    good, text = checks.run("kernels against the device's copy",
                            [str(binaries / "troupe"), "bench", "kernels", "--device", checks.device,
                             "--mib", "16" if checks.device == "host" else "256", "--json"], 60, figure=figure)
    if not good:
        return
    times = times_of(text)
    plain, chunks = "copy to staging", "copy to staging in chunks"
    slowest = min((time for name, time in times.items() if name not in ("copy", plain, chunks)),
                  key=lambda time: time["ratio"])
    checks.goal(f"the slowest kernel ({slowest['name']}) against a copy", slowest["ratio"], least=0.85)
    checks.goal("staging in chunks against one copy to pinned memory", times[chunks]["ratio"], least=0.95)


def median(values):
    return sorted(values)[len(values) // 2]


class Training:
    """Short runs of the model whose speed counts."""

    WARM_UP = 3  # steps

    def __init__(self, checks, binaries):
        self.checks, self.binaries = checks, binaries
        self.preset = "tiny" if checks.device == "host" else "350m"
        self.tokens_per_second = None

    def run(self, name, ranks, steps, figure, *more):
        """`figure` gets the steps after the warm-up."""
        folder = self.checks.out / re.sub(r"[^a-z0-9]+", "-", name)
        shutil.rmtree(folder, ignore_errors=True)
        model = ["--preset", self.preset, "--batch", "4", "--lanes", "8", "--steps", str(steps), *more]
        self.checks.run(f"apps/gpt {self.preset}, {name}",
                        job(self.checks, self.binaries, ranks, *model, "--output", str(folder)), 90,
                        figure=lambda _: figure(records(folder)[0][self.WARM_UP:]))

    def throughput(self):
        def figure(steps):
            step = sorted(steps, key=lambda step: step["step_seconds"])[len(steps) // 2]
            self.tokens_per_second = step["tokens_per_second"]
            used = step.get("model_flop_utilisation")
            return (f"{self.tokens_per_second:.0f} tokens/s, step {step['step_seconds'] * 1e3:.0f} ms"
                    + (f", {used:.1%} of peak" if used is not None else ""))

        self.run("1 rank", 1, 10, figure)

    def overlap(self, gpus):
        def figure(steps):
            milliseconds = [1e3 * median([step[key] for step in steps]) for key in
                            ("step_seconds", "communication_seconds", "exposed_communication_seconds")]
            return "step {:.1f} ms, communication {:.1f} ms, exposed {:.1f} ms ({:.1%} of the step)".format(
                *milliseconds, milliseconds[2] / milliseconds[0])

        ranks = max(2, min(gpus, 8))
        ways = [("with overlap", ()), ("without overlap", ("--no-overlap",))]
        if self.checks.device != "host":
            ways.append(("with overlap and registered memory", ("--register-memory",)))
        for name, more in ways:
            self.run(f"{ranks} ranks, {name}", ranks, 8, figure, *more)

    def saves(self):
        """The step after a save runs beside its copies out of the device."""
        saved = self.checks.out / "train-saved"
        shutil.rmtree(saved, ignore_errors=True)
        every, count = 8, 3
        stalls = []

        def figure(steps):
            seconds = {step["step"]: step["step_seconds"] for step in steps}
            usual = median([time for step, time in seconds.items() if step < every])
            beside = [seconds[every * save] for save in range(1, count)]
            stalls.append(sum(beside) / len(beside) / usual - 1)
            return f"step {usual * 1e3:.1f} ms, beside copies {', '.join(f'{time * 1e3:.1f}' for time in beside)} ms"

        self.run("saving every 8 steps", 1, every * count, figure, "--save-every", str(every),
                 "--checkpoints", str(saved), "--staging-mib", "64" if self.checks.device == "host" else "16384")
        shutil.rmtree(saved, ignore_errors=True)
        for stall in stalls:
            self.checks.goal("what a save adds to the step beside it", stall, most=0.01)

    def peers(self):
        if python(self.checks.environment, "import torch") is None:
            return self.checks.note("PyTorch", NOT_FOUND)

        def figure(text):
            found = json.loads(text.splitlines()[-1])
            rates.append(found["tokens_per_second"])
            used = found["model_flop_utilisation"]
            return (f"{found['program']}: {rates[-1]:.0f} tokens/s, step {found['step_seconds'] * 1e3:.0f} ms"
                    + (f", {used:.1%} of peak" if used is not None else ""))

        rates = []
        peer = ["python3", str(ROOT / "scripts/peers/torch_gpt.py"), "--preset", self.preset, "--batch", "4",
                "--microbatches", "8", "--device", "cpu" if self.checks.device == "host" else "cuda"]
        for name, more in (("eager", ()), ("compiled", ("--compile",))):
            self.checks.run(f"PyTorch, the same model, {name}", [*peer, *more], 120, figure=figure)
        if rates and self.tokens_per_second is not None:
            self.checks.goal("tokens/s against PyTorch's best", self.tokens_per_second / max(rates), least=1)


def run(checks, binaries, gpus, trains):
    run_kernels(checks, binaries)
    if not trains:
        return
    training = Training(checks, binaries)
    training.throughput()
    training.saves()
    training.overlap(gpus)
    training.peers()
