"""Lightning: a callback that saves and resumes a ``Trainer``. Needs ``holdfast[lightning]``."""

from __future__ import annotations

from importlib.util import find_spec

from holdfast.errors import ConfigurationError

if find_spec("lightning") is None:
    raise ConfigurationError("hf.lightning needs Lightning: pip install 'holdfast[lightning]'")

from holdfast.integrations.lightning.guard import Guard

__all__ = ["Guard"]
