"""What scripts/gpu_check measures."""
import json
import math
import random
import shutil

from gpu_checks import ROOT, command_row, records, slug


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


class Benchmarks:
    """Kernels, and short runs of the model whose speed counts."""

    WARM_UP = 3  # steps

    def __init__(self, rows):
        self.of, self.checks = rows, rows.checks
        self.small = self.checks.emulated
        self.preset = "tiny" if self.small else "350m"
        self.times = {}  # of kernels
        self.tokens_per_second = None
        self.peers = []
        self.stalls = []

    def rows(self):
        return [self.kernels(),
                self.checks.goal("the slowest kernel against a copy", self.slowest_kernel, least=0.85),
                self.checks.goal("staging in chunks against one copy to pinned memory", self.staging, least=0.95),
                self.throughput(), self.peer("eager"),
                self.against_torch("tokens/s against PyTorch, eager")]

    def compiled_rows(self):
        return [self.peer("compiled", "--compile"), self.against_torch("tokens/s against PyTorch's best")]

    def more_rows(self):
        return [self.saves(),
                self.checks.goal("what a save adds to the step beside it", lambda: max(self.stalls, default=None),
                                 most=0.01),
                *self.other_models(), *self.overlap(), self.registered()]

    # Kernels.

    def kernels(self):
        def figure(text):
            self.times = {time["name"]: time for time in json.loads(text.splitlines()[-1])["kernels"]}
            return ", ".join(f"{name} {time['bytes'] / time['seconds'] / 1e9:.0f} GB/s ({time['ratio']:.0%})"
                             for name, time in self.times.items())

        command = [self.of.program("troupe"), "bench", "kernels", "--device", "cuda", "--mib",
                   "1" if self.small else "256", "--json"]
        return self.of.needing(("gpu",), command_row("kernels against the device's copy", command, 40, figure=figure))

    def slowest_kernel(self):
        apart = ("copy", "copy to staging", "copy to staging in chunks")
        return min((time["ratio"] for name, time in self.times.items() if name not in apart), default=None)

    def staging(self):
        return self.times["copy to staging in chunks"]["ratio"] if self.times else None

    # Training.

    def train(self, name, ranks, steps, figure, *more, model=None, before=lambda: None):
        """`figure` gets the steps after the warm-up; `model` is a directory in place of the preset."""
        folder = self.checks.work / slug("train", name)

        def prepare():
            shutil.rmtree(folder, ignore_errors=True)
            before()

        begun = ["--model", model] if model else ["--preset", self.preset]
        options = [*begun, "--batch", 4, "--lanes", 8, "--steps", steps, *more]
        return self.of.needing(("gpu", "nccl", "cublas"), command_row(
            f"apps/gpt {'Qwen3' if model else self.preset}, {name}",
            self.of.job(ranks, *options, "--output", folder), 60, before=prepare,
            figure=lambda _: figure(records(folder)[0][self.WARM_UP:])))

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

        return self.train("1 rank", 1, 10, figure)

    def against_peers(self):
        if not self.peers or self.tokens_per_second is None:
            return None
        return self.tokens_per_second / max(self.peers)

    def against_torch(self, name):
        return self.of.needing(("torch",), self.checks.goal(name, self.against_peers, least=1))

    def other_models(self):
        """Heads that share keys and values, with norms; and experts."""
        folder = self.checks.work / "grouped-model"

        def write():
            shutil.rmtree(folder, ignore_errors=True)
            write_grouped_model(folder, self.small)

        return [self.train("8 experts, 1 rank", 1, 10, lambda steps: self.rate(steps)[1], "--experts", 8,
                           "--expert-feed-forward", 16 if self.small else 704),
                self.train("heads share keys in fours, 1 rank", 1, 10, lambda steps: self.rate(steps)[1], model=folder,
                           before=write)]

    @staticmethod
    def exposed(steps):
        milliseconds = [1e3 * median([step[key] for step in steps]) for key in
                        ("step_seconds", "communication_seconds", "exposed_communication_seconds")]
        return "step {:.1f} ms, communication {:.1f} ms, exposed {:.1f} ms ({:.1%} of the step)".format(
            *milliseconds, milliseconds[2] / milliseconds[0])

    def overlap(self):
        ranks = max(2, min(self.of.has.get("gpu") or 1, 8))
        return [self.train(f"{ranks} ranks, {name}", ranks, 6, self.exposed, *more)
                for name, more in (("with overlap", ()), ("without overlap", ("--no-overlap",)))]

    def registered(self):
        ranks = max(2, min(self.of.has.get("gpu") or 1, 8))
        return self.train(f"{ranks} ranks, with overlap and registered memory", ranks, 6, self.exposed,
                          "--register-memory")

    def saves(self):
        """The step after a save runs beside its copies out of the device."""
        saved = self.checks.work / "train-saved"
        every, count = 8, 3

        def figure(steps):
            seconds = {step["step"]: step["step_seconds"] for step in steps}
            usual = median([time for step, time in seconds.items() if step < every])
            beside = [seconds[every * save] for save in range(1, count)]
            self.stalls.append(sum(beside) / len(beside) / usual - 1)
            shutil.rmtree(saved, ignore_errors=True)
            return f"step {usual * 1e3:.1f} ms, beside copies {', '.join(f'{time * 1e3:.1f}' for time in beside)} ms"

        return self.train("saving every 8 steps", 1, every * count, figure, "--save-every", every, "--checkpoints",
                          saved, "--staging-mib", 64 if self.small else 16384,
                          before=lambda: shutil.rmtree(saved, ignore_errors=True))

    def peer(self, name, *more):
        def figure(text):
            found = json.loads(text.splitlines()[-1])
            self.peers.append(found["tokens_per_second"])
            used = found["model_flop_utilisation"]
            return (f"{found['program']}: {self.peers[-1]:.0f} tokens/s, step {found['step_seconds'] * 1e3:.0f} ms"
                    + (f", {used:.1%} of peak" if used is not None else ""))

        command = ["python3", ROOT / "scripts/peers/torch_gpt.py", "--preset", self.preset, "--batch", 4,
                   "--microbatches", 8, "--device", "cpu" if self.small else "cuda", *more]
        return self.of.needing(("torch",), command_row(f"PyTorch, the same model, {name}", command, 150,
                                                       figure=figure))
