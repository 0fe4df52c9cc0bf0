#!/usr/bin/env python3
"""Checkpoints of PyTorch in the forms that people have go into Troupe's and back:  dcp_forms_test.py TROUPE

Each is written by torch.distributed.checkpoint, Accelerate's names for it, or torch.save, and read by PyTorch again after
`import` and `export --to dcp`.
"""

import datetime
import json
import math
import subprocess
import sys
import tempfile
import unittest
import warnings
from pathlib import Path

import torch
import torch.distributed.checkpoint as dcp
from safetensors.torch import load_file
from torch.distributed.checkpoint.format_utils import dcp_to_torch_save
from torch.distributed.checkpoint.state_dict import get_optimizer_state_dict, get_state_dict, set_state_dict

TROUPE = sys.argv.pop(1) if len(sys.argv) > 1 else ""


def run(*arguments, code=0):
    done = subprocess.run([TROUPE, "checkpoint", *map(str, arguments)], capture_output=True, text=True, check=False)
    if done.returncode != code:
        raise AssertionError(f"{arguments} exits with {done.returncode}:\n{done.stdout}{done.stderr}")
    return done


def bits(tensor):
    tensor = tensor.detach().contiguous()
    return tensor.reshape(-1).view(torch.uint8).numpy().tobytes() if tensor.numel() else b""


def assert_same(test, found, expected, at="state"):
    """Types, nesting, values and every bit."""
    if isinstance(expected, torch.Tensor):
        test.assertIsInstance(found, torch.Tensor, at)
        test.assertEqual((found.dtype, found.shape), (expected.dtype, expected.shape), at)
        test.assertEqual(bits(found), bits(expected), at)
    elif isinstance(expected, dict):
        test.assertIsInstance(found, dict, at)
        test.assertEqual(set(found), set(expected), at)
        for key, value in expected.items():
            assert_same(test, found[key], value, f"{at}.{key}")
    elif isinstance(expected, list):
        test.assertIsInstance(found, list, at)
        test.assertEqual(len(found), len(expected), at)
        for i, value in enumerate(expected):
            assert_same(test, found[i], value, f"{at}.{i}")
    elif isinstance(expected, float) and math.isnan(expected):
        test.assertTrue(math.isnan(found), at)
    else:
        test.assertEqual((type(found), found), (type(expected), expected), at)


def whole(directory):
    """What PyTorch makes of a checkpoint, nested."""
    with tempfile.TemporaryDirectory() as folder:
        dcp_to_torch_save(directory, f"{folder}/whole.pt")
        return torch.load(f"{folder}/whole.pt", weights_only=False)


def metadata(directory):
    return dcp.FileSystemReader(directory).read_metadata()


def trained(steps=3, make_optimizer=None, module=None):
    torch.manual_seed(0)
    model = module or torch.nn.Sequential(torch.nn.Linear(8, 4), torch.nn.Linear(4, 2))
    optimizer = (make_optimizer or (lambda p: torch.optim.AdamW(p, lr=1e-3)))(model.parameters())
    for _ in range(steps):
        optimizer.zero_grad()
        model(torch.randn(5, 8)).square().mean().backward()
        optimizer.step()
    return model, optimizer


PLAIN = {"int": 7, "large": -(1 << 60), "float": 0.1, "nan": math.nan, "inf": -math.inf, "text": "\u00e9\n", "none": None,
         "true": True, "false": False, "bytes": b"\x00\xff\x80", "list": [1, 2.5, "a", None, True], "empty_list": [],
         "tuple": (1, "a", (2.5, None)), "list_of_lists": [[1, 2], []], "size": (2, 3)}


class Forms(unittest.TestCase):
    def setUp(self):
        warnings.simplefilter("ignore")
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.path = Path(folder.name)

    def save(self, state, name="dcp"):
        dcp.save(state, checkpoint_id=self.path / name, no_dist=True)
        return self.path / name

    def tensors(self, checkpoint):
        """All tensors of a checkpoint of Troupe of one rank; those without elements are in no file."""
        files = list(Path(checkpoint).glob("*.safetensors"))
        self.assertEqual(len(files), 1)
        return load_file(files[0])

    def imported(self, source, *options, name="own"):
        report = json.loads(run("import", source, self.path / name, "--json", *options).stdout)
        return Path(report["path"]), report

    def there_and_back(self, state, *options):
        source = self.save(state)
        own, _ = self.imported(source, *options)
        run("export", own, self.path / "back", "--to", "dcp")
        before, after = metadata(source), metadata(self.path / "back")
        self.assertEqual(set(after.state_dict_metadata), set(before.state_dict_metadata))
        self.assertEqual(after.planner_data, before.planner_data)
        assert_same(self, whole(self.path / "back"), whole(source))
        return own

    # Lossless round trips.

    def test_a_flat_state_with_plain_values(self):
        model, _ = trained()
        own = self.there_and_back({**model.state_dict(), "step": 7, "lr": 0.1, "tag": "x"})
        self.assertEqual(own.name, "step_00000007")

    def test_a_nested_state_with_plain_values(self):
        model, optimizer = trained()
        model_state, optimizer_state = get_state_dict(model, optimizer)
        self.there_and_back({"model": model_state, "optim": optimizer_state, "trainer": {"global_step": 12, "plain": PLAIN},
                             "numbered": [torch.arange(3), {"a": torch.ones(2), "b": "c"}], "empty": torch.zeros(0, 3)})

    def test_a_nested_state_whose_optimizer_continues(self):
        model, optimizer = trained()
        model_state, optimizer_state = get_state_dict(model, optimizer)
        self.there_and_back({"model": model_state, "optim": optimizer_state, "step": 7, "plain": PLAIN},
                            "--optimizer", "torch")

    def test_states_of_other_optimizers(self):
        for make in (lambda p: torch.optim.AdamW(p, amsgrad=True), lambda p: torch.optim.SGD(p, 0.1, momentum=0.9),
                     lambda p: torch.optim.Adam(p, foreach=False, capturable=False)):
            with self.subTest(optimizer=make([torch.nn.Parameter(torch.ones(1))])), tempfile.TemporaryDirectory() as folder:
                self.path = Path(folder)
                model, optimizer = trained(make_optimizer=make)
                self.there_and_back({"model": model.state_dict(), "optim": get_optimizer_state_dict(model, optimizer)},
                                    "--optimizer", "torch")

    def test_dots_in_keys_and_other_containers(self):
        self.there_and_back({"a.b": {"c.d": torch.arange(4), "e": {"f": 1}}, "a": {"x": 2.0}, "list": [[torch.ones(2)], []]})

    def test_set_state_dict_takes_what_comes_back(self):
        model, optimizer = trained()
        model_state, optimizer_state = get_state_dict(model, optimizer)
        own = self.there_and_back({"model": model_state, "optim": optimizer_state}, "--optimizer", "torch", "--mesh", 2)
        self.assertEqual(own.name, "step_00000003")
        other, other_optimizer = trained(steps=1)
        model_state, optimizer_state = get_state_dict(other, other_optimizer)
        state = {"model": model_state, "optim": optimizer_state}
        dcp.load(state, checkpoint_id=self.path / "back", no_dist=True)
        set_state_dict(other, other_optimizer, model_state_dict=state["model"], optim_state_dict=state["optim"])
        assert_same(self, other.state_dict(), dict(model.state_dict()))
        assert_same(self, other_optimizer.state_dict(), optimizer.state_dict())

    def test_steps_are_read_where_they_are(self):
        cases = {"step": ({"step": 7}, 7), "global": ({"trainer": {"global_step": 9}}, 9),
                 "tensor": ({"train_state": {"step": torch.tensor(11, dtype=torch.int32)}}, 11),
                 "none": ({"epoch": 3}, 0), "two": ({"step": 4, "iteration": 5}, 0)}
        for name, (state, steps) in cases.items():
            with self.subTest(case=name):
                source = self.save({"w": torch.ones(2), **state}, name)
                own, report = self.imported(source, name="own_" + name)
                self.assertEqual(own.name, f"step_{steps:08}", report)

    # Tensors whose elements lie apart.

    def apart(self):
        base = torch.arange(24, dtype=torch.float32)
        return {"transposed": base.reshape(4, 6).t(), "every_second": base.reshape(6, 4)[::2], "view": base[5:11],
                "channels_last": base.reshape(1, 3, 2, 4).to(memory_format=torch.channels_last),
                "expanded": torch.tensor([[1.5]]).expand(3, 5), "columns": base.reshape(4, 6)[:, 1:4],
                "permuted": base.reshape(2, 3, 4).permute(2, 0, 1).to(torch.bfloat16).permute(1, 2, 0),
                "three_dimensional": base.reshape(1, 2, 3, 2, 2).to(memory_format=torch.channels_last_3d),
                "row_expanded": base[:6].to(torch.int16).expand(4, 6), "scalar_of_many": base[7], "flipped": base.flip(0),
                "bool": (base.reshape(4, 6) > 7).t(), "diagonal": base.reshape(4, 6).diagonal(),
                "overlapping": base.unfold(0, 4, 2), "empty": base.reshape(4, 6)[:, :0].t()}

    def test_strided_tensors_in_dcp(self):
        state = self.apart()
        self.there_and_back(state)
        state.pop("empty")
        assert_same(self, self.tensors(self.path / "own/step_00000000"), state)

    def test_strided_tensors_in_files(self):
        torch.save({"model": self.apart(), "step": 5}, self.path / "file.pt")
        own, _ = self.imported(self.path / "file.pt")
        self.assertEqual(own.name, "step_00000005")
        found = self.tensors(own)
        assert_same(self, found, {f"model.{name}": tensor for name, tensor in self.apart().items() if tensor.numel()})

    def test_negated_and_conjugated_tensors_are_left_out_by_name(self):
        negated, conjugated = torch.ones(2, dtype=torch.complex64).conj().imag, torch.ones(3, dtype=torch.complex64).conj()
        state = {"neg": negated, "conj": conjugated, "w": torch.ones(2)}
        torch.save(state, self.path / "f.pt")
        # torch.distributed.checkpoint stores a view's elements as they are meant.
        for source, expected in ((self.path / "f.pt", {"neg", "conj"}), (self.save(state), {"conj"})):
            own, report = self.imported(source, name="own" + source.name)
            self.assertEqual({one["key"] for one in report["left_out"]}, expected)
            assert_same(self, self.tensors(own), {key: state[key] for key in set(state) - expected})

    # What Troupe lacks is carried.

    def foreign(self):
        bytes_of = torch.arange(64, dtype=torch.uint8).reshape(4, 16)
        pairs = torch.randn(6, 8, dtype=torch.complex64)
        return {"w": torch.ones(2), "complex": {"64": pairs, "128": pairs.to(torch.complex128), "32": bytes_of.view(torch.complex32),
                                                "transposed": pairs.t(), "part": pairs[1:3, ::2], "scalar": pairs[0, 0],
                                                "empty": pairs[:0]},
                "narrow": {str(dtype): bytes_of.view(dtype) for dtype in (
                    torch.float8_e8m0fnu, torch.float8_e4m3fnuz, torch.float8_e5m2fnuz, torch.float4_e2m1fn_x2)}}

    def objects(self):
        return {"path": Path("of/a/class"), "nested": {"set": {1, 2}, "date": datetime.datetime(2025, 1, 2),
                                                       "range": range(3), "dtype": torch.bfloat16}}

    def test_dtypes_and_objects_that_troupe_lacks_come_back(self):
        model, optimizer = trained()
        model_state, optimizer_state = get_state_dict(model, optimizer)
        state = {**self.foreign(), **self.objects(), "model": model_state, "optim": optimizer_state, "step": 7, "plain": PLAIN}
        for options in ([], ["--optimizer", "torch"], ["--mesh", 5], ["--mesh", 2, "--optimizer", "torch"],
                        ["--rename", "model.=net."]):
            with self.subTest(options=options), tempfile.TemporaryDirectory() as folder:
                self.path = Path(folder)
                self.there_and_back(state, *options)
                _, report = self.imported(self.path / "dcp", name="again")
                self.assertEqual(report["left_out"], [])
                notes = "\n".join(report["notes"])
                for word in ("'complex.64', as Troupe has no complex64", "float8_e8m0fnu", "'nested.set'", "'path'"):
                    self.assertIn(word, notes)

    def test_complex_moments_come_back(self):
        parameter = torch.nn.Parameter(torch.randn(3, 2, dtype=torch.complex64))
        optimizer = torch.optim.AdamW([parameter, torch.nn.Parameter(torch.ones(2))])
        parameter.abs().sum().backward()
        optimizer.step()
        state = {"model": {"rotation": parameter.detach()}, "optim": {"state": {"rotation": optimizer.state[parameter]}}}
        self.there_and_back(state, "--optimizer", "torch")

    def test_dtypes_that_troupe_lacks_come_back_from_a_file(self):
        torch.save(self.foreign(), self.path / "f.pt")
        own, report = self.imported(self.path / "f.pt")
        self.assertEqual(report["left_out"], [])
        run("export", own, self.path / "back", "--to", "dcp")
        assert_same(self, whole(self.path / "back"), torch.load(self.path / "f.pt"))

    def test_other_forms_leave_them_out_by_name(self):
        own, _ = self.imported(self.save({**self.foreign(), **self.objects()}))
        run("export", own, self.path / "plain", "--to", "dcp", "--optimizer", "as-is")
        self.assertEqual(set(metadata(self.path / "plain").state_dict_metadata) - {"troupe_checkpoint"},
                         set(metadata(self.path / "dcp").state_dict_metadata))
        for name, options in (("model", ["--to", "huggingface"]), ("files", ["--to", "dcp", "--form", "safetensors"])):
            done = run("export", own, self.path / name, *options)
            self.assertIn("left out 'complex.64'", done.stderr)
            self.assertIn("left out 'nested.set'", done.stderr)

    # What wrappers put into names.

    def wrapped(self, *prefixes):
        model, optimizer = trained()
        names = {name: prefixes[0] + name.replace("0.", "0." + prefixes[1]) for name in model.state_dict()}
        state = {names[key]: value for key, value in model.state_dict().items()}
        return model, state, {"state": {names[key]: value for key, value in get_optimizer_state_dict(model, optimizer)[
            "state"].items()}}

    def test_wrappers_go_and_come_back(self):
        for prefixes in (("_orig_mod.", ""), ("", "_orig_mod."), ("", "_checkpoint_wrapped_module."), ("module.", ""),
                         ("_fsdp_wrapped_module.", "_fsdp_wrapped_module._checkpoint_wrapped_module."),
                         ("_orig_mod.module.", ""), ("module._orig_mod.", "_checkpoint_wrapped_module.")):
            with self.subTest(prefixes=prefixes), tempfile.TemporaryDirectory() as folder:
                self.path = Path(folder)
                model, state, optimizer = self.wrapped(*prefixes)
                own = self.there_and_back({"model": state, "optim": optimizer}, "--optimizer", "torch")
                found = self.tensors(own)
                assert_same(self, {name: found[name] for name in model.state_dict()}, dict(model.state_dict()))
                self.assertIn("optimizer.state.exp_avg.0.weight", found)
                _, report = self.imported(self.path / "dcp", "--keep-wrappers", name="kept")
                self.assertIn("model." + next(iter(state)), self.tensors(report["path"]))

    def test_a_module_that_is_called_module_keeps_its_name(self):
        state = {"module.weight": torch.ones(2), "head.module.weight": torch.ones(3)}
        own, _ = self.imported(self.save(state))
        assert_same(self, self.tensors(own), state)

    def test_names_that_would_be_one_are_refused(self):
        done = run("import", self.save({"a.w": torch.ones(1), "a._orig_mod.w": torch.ones(1)}), self.path / "own", code=2)
        self.assertIn("--keep-wrappers", done.stderr)

    # Optimizers.

    def test_flattened_states_and_rates_that_are_tensors(self):
        from torch.distributed.checkpoint.state_dict import StateDictOptions
        model, optimizer = trained(make_optimizer=lambda p: torch.optim.AdamW(p, lr=torch.tensor(1e-3)))
        options = StateDictOptions(flatten_optimizer_state_dict=True)
        flat = get_optimizer_state_dict(model, optimizer, options=options)
        for name, state in (("flat", flat), ("nested", get_optimizer_state_dict(model, optimizer))):
            with self.subTest(form=name), tempfile.TemporaryDirectory() as folder:
                self.path = Path(folder)
                own = self.there_and_back({"model": model.state_dict(), "optim": state, "step": 7}, "--optimizer", "torch")
                self.assertIn("optimizer.state.exp_avg.0.weight", self.tensors(own))
                run("export", own, self.path / "model", "--to", "huggingface")
                index = json.loads((self.path / "model/model.safetensors.index.json").read_text())
                self.assertEqual(set(index["weight_map"]), set(model.state_dict()))

    def test_a_prefix_is_taken_off_once(self):
        model, optimizer = trained(module=Below())
        model_state, optimizer_state = get_state_dict(model, optimizer)
        source = self.save({"model": model_state, "optim": optimizer_state})
        for name, options in (("plain", []), ("renamed", ["--rename", "model.="])):
            own, _ = self.imported(source, "--optimizer", "torch", *options, name=name)
            found = self.tensors(own)
            self.assertIn("model.inner.weight", found)
            self.assertIn("optimizer.state.exp_avg.model.inner.weight", found)
        own, _ = self.imported(source, "--optimizer", "torch", "--rename", "model.model.=net.", name="other")
        self.assertLessEqual({"net.inner.weight", "optimizer.state.exp_avg.net.inner.weight"}, set(self.tensors(own)))

    def test_state_that_only_some_have(self):
        for frozen, steps in ((5, None), (2, 3), (4, 1)):
            with self.subTest(frozen=frozen), tempfile.TemporaryDirectory() as folder:
                self.path = Path(folder)
                state = self.state_of_some(frozen)
                own = self.there_and_back(state, "--optimizer", "torch")
                self.assertEqual(own.name, "step_00000005")
                found = self.tensors(own)
                moments = found["optimizer.state.exp_avg_sq.router.weight"]
                self.assertEqual(moments.shape, (4, 8))
                self.assertEqual(moments.any().item(), steps is not None)
                done = run("import", self.path / "dcp", self.path / "again", "--optimizer", "torch")
                self.assertIn("router.weight" if steps is None else f"router.weight ({steps})", done.stderr)

    def state_of_some(self, frozen):
        torch.manual_seed(0)
        model = torch.nn.ModuleDict({"body": torch.nn.Linear(8, 8), "router": torch.nn.Linear(8, 4, bias=False)})
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
        for step in range(5):
            optimizer.zero_grad()
            x = model["body"](torch.randn(3, 8))
            (model["router"](x) if step >= frozen else x).square().mean().backward()
            optimizer.step()
        names = [name for name, _ in model.named_parameters()]
        state = {names[i]: entry for i, entry in optimizer.state_dict()["state"].items()}
        return {"model": model.state_dict(), "optim": {"state": state}}

    def test_parameters_by_number(self):
        model, optimizer = trained()
        source = self.save({"model": model.state_dict(), "optim": optimizer.state_dict()})
        own, _ = self.imported(source, "--optimizer", "torch")
        found = self.tensors(own)
        for number, name in enumerate(model.state_dict()):
            self.assertEqual(bits(found[f"optimizer.state.exp_avg.{name}"]), bits(optimizer.state_dict()["state"][number][
                "exp_avg"]), name)

    def test_parameters_by_number_in_two_groups(self):
        def make(_):
            matrices = [p for p in model.parameters() if p.dim() > 1]
            others = [p for p in model.parameters() if p.dim() == 1]
            return torch.optim.AdamW([{"params": matrices, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}])
        model = torch.nn.Sequential(torch.nn.Linear(8, 4), torch.nn.Linear(4, 4))
        model, optimizer = trained(make_optimizer=make, module=model)
        torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict(), "global_step": 3}, self.path / "f.ckpt")
        own, _ = self.imported(self.path / "f.ckpt", "--optimizer", "torch")
        found = self.tensors(own)
        by_parameter = {parameter: optimizer.state[parameter] for parameter in model.parameters()}
        for name, parameter in model.named_parameters():
            self.assertEqual(bits(found[f"optimizer.state.exp_avg_sq.{name}"]), bits(by_parameter[parameter]["exp_avg_sq"]))

    def test_weights_for_hugging_face_are_weights(self):
        model, optimizer = trained(module=Below())
        model_state, optimizer_state = get_state_dict(model, optimizer)
        source = self.save({"model": model_state, "optim": optimizer_state, "step": 2})
        run("export", source, self.path / "direct", "--to", "huggingface")
        own, _ = self.imported(source)
        run("export", own, self.path / "over", "--to", "huggingface")
        for name in ("direct", "over"):
            index = json.loads((self.path / name / "model.safetensors.index.json").read_text())
            self.assertEqual(set(index["weight_map"]), set(model.state_dict()))

    # Two directories side by side.

    def accelerate(self, optimizer_state, full):
        model, _ = trained()
        top = self.path / "accelerate"
        top.mkdir()
        if full:
            torch.save(model.state_dict(), top / "pytorch_model_fsdp.bin")
            torch.save(optimizer_state, top / "optimizer.bin")
        else:
            dcp.save({"model": model.state_dict()}, checkpoint_id=top / "pytorch_model_fsdp_0", no_dist=True)
            dcp.save({"optimizer": optimizer_state}, checkpoint_id=top / "optimizer_0", no_dist=True)
        (top / "trainer_state.json").write_text('{"global_step": 30}')
        torch.save({"last_epoch": 3}, top / "scheduler.bin")
        return model, top

    def test_what_accelerate_saves_continues(self):
        model, optimizer = trained()
        by_name = get_optimizer_state_dict(model, optimizer)
        for full in (False, True):
            for kind, state in (("name", by_name), ("number", optimizer.state_dict())):
                with self.subTest(full=full, kind=kind), tempfile.TemporaryDirectory() as folder:
                    self.path = Path(folder)
                    model, top = self.accelerate(state, full)
                    own, _ = self.imported(top, "--optimizer", "torch")
                    self.assertEqual(own.name, "step_00000030")
                    found = self.tensors(own)
                    for name, tensor in model.state_dict().items():
                        self.assertEqual(bits(found[name]), bits(tensor))
                        expected = by_name["state"][name]["exp_avg"]
                        self.assertEqual(bits(found[f"optimizer.state.exp_avg.{name}"]), bits(expected))
                    run("export", own, self.path / "back", "--to", "dcp")
                    state = whole(self.path / "back")
                    assert_same(self, state["model"], dict(model.state_dict()))
                    self.assertEqual(set(state), {"model", "optimizer"})

    def test_only_a_model_of_accelerate(self):
        model, top = self.accelerate({}, True)
        (top / "optimizer.bin").unlink()
        own, report = self.imported(top)
        self.assertIn("there is no optimizer with the model", report["notes"])
        assert_same(self, self.tensors(own), {f"model.{k}": v for k, v in model.state_dict().items()})

    # What is left out, and what is refused.

    # Covers save-30.
    def test_nothing_in_a_file_is_executed(self):
        torch.save({"w": torch.ones(2), "bad": Trap(self.path / "sprung")}, self.path / "f.pt")
        _, report = self.imported(self.path / "f.pt")
        self.assertEqual([one["key"] for one in report["left_out"]], ["bad"])
        own, _ = self.imported(self.save({"w": torch.ones(2), "bad": Trap(self.path / "sprung")}), name="two")
        run("export", own, self.path / "back", "--to", "dcp")
        self.assertFalse((self.path / "sprung").exists())

    def test_files_of_another_kind_are_refused_with_what_they_are(self):
        torch.save(torch.nn.Linear(2, 2), self.path / "module.pt")
        self.assertIn("state dict", run("import", self.path / "module.pt", self.path / "own", code=2).stderr)
        torch.save({"w": torch.ones(2)}, self.path / "old.pt", _use_new_zipfile_serialization=False)
        self.assertIn("before 1.6", run("import", self.path / "old.pt", self.path / "own", code=2).stderr)

    def test_files_that_nothing_points_to_are_named(self):
        source = self.save({"w": torch.ones(2)})
        (source / "__7_0.distcp").write_bytes(b"")
        _, report = self.imported(source)
        self.assertTrue(any("__7_0.distcp" in note for note in report["notes"]), report)
        (source / "__0_0.distcp").write_bytes(b"")
        self.assertIn("__0_0.distcp", run("import", source, self.path / "again", code=1).stderr)
        (source / "__0_0.distcp").unlink()
        self.assertIn("__0_0.distcp", run("import", source, self.path / "again", code=1).stderr)


class Below(torch.nn.Module):
    """Its parameters are below "model", as those of transformers are."""

    def __init__(self):
        super().__init__()
        self.model = torch.nn.ModuleDict({"inner": torch.nn.Linear(8, 2)})

    def forward(self, x):
        return self.model["inner"](x)


class Trap:
    def __init__(self, path):
        self.path = str(path)

    def __reduce__(self):
        return (open, (self.path, "w"))


if __name__ == "__main__":
    unittest.main()
