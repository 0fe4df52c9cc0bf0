"""Trains unmodified PyTorch models over Troupe: `Trainer` owns gradients, optimizer, sharding and checkpoints.

    import troupe.torch

    with troupe.torch.Trainer(model, strategy="zero1", lanes=4, lr=3e-4, checkpoints="run") as trainer:
        trainer.restore()
        while trainer.next_step < 1000:
            with trainer.step() as step:
                for lane in step:
                    x, y = batch(step.index, lane)
                    step.backward(loss_of(model(x), y))
            if trainer.next_step % 100 == 0:
                trainer.save()

Needs PyTorch 2.4 or newer; the model is on the CPU or on a GPU.
"""

try:
    import torch as _torch
except ImportError as _error:
    raise ImportError("troupe.torch needs PyTorch 2.4 or newer, and this Python has none: pip install torch") from _error

if tuple(int(part) for part in _torch.__version__.split("+")[0].split(".")[:2]) < (2, 4):
    raise ImportError(f"troupe.torch needs PyTorch 2.4 or newer, found {_torch.__version__}: pip install -U torch")

from troupe.errors import Error, Status  # noqa: E402
from troupe.session import Outcome, Restored, SaveResult  # noqa: E402
from troupe.torch import functional  # noqa: E402
from troupe.torch.batch import Batch  # noqa: E402
from troupe.torch.step import Step  # noqa: E402
from troupe.torch.trainer import Trainer  # noqa: E402

__all__ = ["Batch", "Error", "Outcome", "Restored", "SaveResult", "Status", "Step", "Trainer", "functional"]

if hasattr(getattr(_torch.distributed, "Backend", None), "_ensure_backend_registered"):  # PyTorch 2.14
    from troupe.torch import process_group as _process_group  # noqa: E402

    _process_group.register()
