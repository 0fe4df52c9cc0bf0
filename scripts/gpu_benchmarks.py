"""What scripts/gpu_check measures."""
import json
import math
import random
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


def write_grouped_model(folder, small):
    """A Qwen3 whose heads share keys in fours, with made-up weights: as large as the preset "350m", or small."""
    layers, heads, keys, head, width, inner, words = ((2, 8, 2, 8, 64, 96, 256) if small else
                                                      (24, 16, 4, 64, 1024, 2816, 50304))
    shapes = {"model.embed_tokens.weight": (words, width), "model.norm.weight": (width,)}
    for layer in range(layers):
        of_layer = {"input_layernorm": (width,), "post_attention_layernorm": (width,),
                    "self_attn.q_proj": (heads * head, width), "self_attn.k_proj": (keys * head, width),
                    "self_attn.v_proj": (keys * head, width), "self_attn.o_proj": (width, heads * head),
                    "self_attn.q_norm": (head,), "self_attn.k_norm": (head,), "mlp.gate_proj": (inner, width),
                    "mlp.up_proj": (inner, width), "mlp.down_proj": (width, inner)}
        shapes.update({f"model.layers.{layer}.{name}.weight": shape for name, shape in of_layer.items()})
    header, end = {}, 0
    for name, shape in shapes.items():
        begin, end = end, end + 2 * math.prod(shape)
        header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [begin, end]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    folder.mkdir(parents=True)
    made = random.Random(1)
    high = bytes(0x3C if byte % 2 else 0xBC for byte in range(256))  # of bf16: 0.008 to 0.03, and their negatives
    with open(folder / "model.safetensors", "wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for shape in shapes.values():
            count = math.prod(shape)
            values = bytearray(b"\x80\x3f" * count)  # norms are ones
            if len(shape) > 1:
                values[0::2], values[1::2] = made.randbytes(count), made.randbytes(count).translate(high)
            file.write(values)
    (folder / "config.json").write_text(json.dumps({
        "architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "hidden_size": width,
        "intermediate_size": inner, "num_hidden_layers": layers, "num_attention_heads": heads, "num_key_value_heads": keys, "head_dim": head, "vocab_size": words,
        "max_position_embeddings": 64 if small else 2048, "rms_norm_eps": 1e-6, "rope_theta": 1e6,
        "tie_word_embeddings": True, "hidden_act": "silu", "attention_bias": False}))


class Training:
    """Short runs of the model whose speed counts."""

    WARM_UP = 3  # steps

    def __init__(self, checks, binaries):
        self.checks, self.binaries = checks, binaries
        self.preset = "tiny" if checks.device == "host" else "350m"
        self.tokens_per_second = None

    def run(self, name, ranks, steps, figure, *more, model=None):
        """`figure` gets the steps after the warm-up; `model` is a directory in place of the preset."""
        folder = self.checks.out / re.sub(r"[^a-z0-9]+", "-", name)
        shutil.rmtree(folder, ignore_errors=True)
        begun = ["--model", str(model)] if model else ["--preset", self.preset]
        options = [*begun, "--batch", "4", "--lanes", "8", "--steps", str(steps), *more]
        self.checks.run(f"apps/gpt {'Qwen3' if model else self.preset}, {name}",
                        job(self.checks, self.binaries, ranks, *options, "--output", str(folder)), 90,
                        figure=lambda _: figure(records(folder)[0][self.WARM_UP:]))

    @staticmethod
    def rate(steps):
        step = sorted(steps, key=lambda step: step["step_seconds"])[len(steps) // 2]
        used = step.get("model_flop_utilisation")
        return step["tokens_per_second"], (
            f"{step['tokens_per_second']:.0f} tokens/s, step {step['step_seconds'] * 1e3:.0f} ms"
            + (f", {used:.1%} of peak" if used is not None else ""))

    def throughput(self):
        def figure(steps):
            self.tokens_per_second, text = self.rate(steps)
            return text

        self.run("1 rank", 1, 10, figure)

    def other_models(self):
        """Heads that share keys and values, with norms; and experts."""
        small = self.checks.device == "host"
        folder = self.checks.out / "grouped-model"
        shutil.rmtree(folder, ignore_errors=True)
        write_grouped_model(folder, small)
        self.run("heads share keys in fours, 1 rank", 1, 10, lambda steps: self.rate(steps)[1], model=folder)
        shutil.rmtree(folder, ignore_errors=True)
        self.run("8 experts, 1 rank", 1, 10, lambda steps: self.rate(steps)[1], "--experts", "8",
                 "--expert-feed-forward", "16" if small else "704")

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
    training.other_models()
    training.saves()
    training.overlap(gpus)
    training.peers()
