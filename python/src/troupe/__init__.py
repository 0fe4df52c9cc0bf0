"""Troupe from Python: `troupe.torch` trains PyTorch models, `troupe.session` is the C interface with types and
exceptions, and `python -m troupe.launch` starts the ranks of a job. Importing this loads no library yet."""

from troupe.errors import Error, Status

__all__ = ["Error", "Status", "__version__"]
__version__ = "0.1.0"
