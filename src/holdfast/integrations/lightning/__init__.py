"""Lightning: a callback that resumes a ``Trainer``, runs for its own checkpoints. Needs ``holdfast[lightning]``."""

from __future__ import annotations

from importlib.util import find_spec

from holdfast.errors import ConfigurationError

if find_spec("lightning") is None:
    raise ConfigurationError("hf.lightning needs Lightning: pip install 'holdfast[lightning]'")

from holdfast.integrations.lightning.checkpoint_io import CheckpointIO
from holdfast.integrations.lightning.guard import Guard

__all__ = ["CheckpointIO", "Guard"]
