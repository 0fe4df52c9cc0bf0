#!/usr/bin/env python3
"""Ray Train runs its workers over the back-end "troupe", on two of its nodes, and troupe.torch's trainer in them."""

import json
import os
import tempfile
import unittest
from pathlib import Path

import ranks  # noqa: F401  first: it says where troupe is
import models

FOLDER = tempfile.TemporaryDirectory(prefix="troupe-ray")
# What installing the package leaves behind: the entry point that makes the back-end known.
METADATA = Path(FOLDER.name, "site", "troupe-0.dist-info")
METADATA.mkdir(parents=True)
METADATA.joinpath("METADATA").write_text("Metadata-Version: 2.1\nName: troupe\nVersion: 0\n")
METADATA.joinpath("entry_points.txt").write_text(
    "[torch.distributed.backends]\ntroupe = troupe.torch.process_group:register\n")
HERE = Path(__file__).resolve().parent
os.environ.update(RAY_TMPDIR=FOLDER.name, RAY_USAGE_STATS_ENABLED="0", RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO="0",
                  PYTHONPATH=os.pathsep.join([str(HERE.parents[1] / "python" / "src"), str(METADATA.parent), str(HERE)]))

import ray  # noqa: E402
import ray.train  # noqa: E402
import torch  # noqa: E402
from ray.cluster_utils import Cluster  # noqa: E402
from ray.train import ScalingConfig  # noqa: E402
from ray.train.torch import TorchConfig, TorchTrainer  # noqa: E402

STEPS = 5


def in_worker(config):
    """DDP as Ray prepares it, and afterwards troupe.torch, beside the process group."""
    import models
    import ray.train.torch
    import torch
    import torch.distributed as dist
    from troupe.torch import Trainer

    model = ray.train.torch.prepare_model(models.Classifier().eval())
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    losses = []
    for step in range(STEPS):
        optimizer.zero_grad()
        loss = models.mean_loss(model, step, dist.get_rank())
        loss.backward()
        optimizer.step()
        mean = loss.detach().clone()
        dist.all_reduce(mean)
        losses.append(mean.item() / dist.get_world_size())
    with Trainer(models.Classifier().eval(), strategy="zero3", lanes=2, lr=1e-3) as trainer:
        of_engine = models.train(trainer, models.mean_loss, STEPS)
    Path(config["folder"], str(dist.get_rank())).write_text(json.dumps({
        "losses": losses, "of_engine": of_engine, "backend": dist.get_backend(),
        "node": ray.get_runtime_context().get_node_id()}))


def over_one_process():
    model = models.Classifier().eval()
    return models.plain(model, models.mean_loss, STEPS, torch.optim.AdamW(model.parameters(), lr=1e-3), clip=1e9, lanes=2)


class Ray(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        node = {"num_cpus": 1, "node_ip_address": "127.0.0.1", "object_store_memory": 80 << 20}
        # Otherwise Ray looks for an address that other hosts could reach.
        ray._private.services.get_node_ip_address = lambda address=None: "127.0.0.1"
        cls.cluster = Cluster(initialize_head=True, head_node_args={**node, "include_dashboard": False})
        cls.cluster.add_node(**node)
        ray.init(address=cls.cluster.address, log_to_driver=False, logging_level="error")

    @classmethod
    def tearDownClass(cls):
        ray.shutdown()
        cls.cluster.shutdown()

    def test_trains_over_troupe_on_two_nodes(self):
        with tempfile.TemporaryDirectory(dir=FOLDER.name) as folder:
            TorchTrainer(in_worker, train_loop_config={"folder": folder}, torch_config=TorchConfig(backend="troupe"),
                         scaling_config=ScalingConfig(num_workers=2, placement_strategy="STRICT_SPREAD"),
                         run_config=ray.train.RunConfig(storage_path=folder)).fit()
            found = [json.loads(Path(folder, rank).read_text()) for rank in "01"]
        self.assertEqual({each["backend"] for each in found}, {"troupe"})
        self.assertNotEqual(found[0]["node"], found[1]["node"])
        expected = over_one_process()
        for each in found:
            for losses in (each["losses"], each["of_engine"]):
                for loss, wanted in zip(losses, expected, strict=True):
                    self.assertAlmostEqual(loss, wanted, delta=1e-5)


if __name__ == "__main__":
    try:
        unittest.main()
    finally:
        FOLDER.cleanup()
