"""Checkpoints written by others: ``torch.save``, safetensors and DCP. Nothing in them is ever executed."""

from __future__ import annotations

from pathlib import Path

from holdfast.checkpoint.transfer.foreign.dcp import METADATA, open_dcp
from holdfast.checkpoint.transfer.foreign.files import open_safetensors, open_torch
from holdfast.checkpoint.transfer.foreign.selection import Selection, select
from holdfast.checkpoint.transfer.foreign.tensors import ForeignCheckpoint, ForeignTensor
from holdfast.errors import ConfigurationError

__all__ = ["ForeignCheckpoint", "ForeignTensor", "Selection", "open_foreign", "select"]


def open_foreign(path: Path) -> ForeignCheckpoint:
    """Open a ``torch.save`` file, a safetensors file or folder, or a DCP folder, told by its content."""
    if path.is_dir():
        return _open_folder(path)
    if not path.is_file():
        raise ConfigurationError(f"{path}: no such file or folder")
    with path.open("rb") as file:
        start = file.read(9)
    if start[8:] == b"{":  # the header, after its length
        return open_safetensors(path)
    if start.startswith(b"PK\x03\x04"):
        return open_torch(path, archive=True)
    if start.startswith(b"\x80"):  # a pickle, as torch wrote them before 1.6
        return open_torch(path, archive=False)
    raise ConfigurationError(
        f"{path} is neither a torch.save file nor a safetensors file; other formats are not supported"
    )


def _open_folder(path: Path) -> ForeignCheckpoint:
    if (path / METADATA).is_file():
        return open_dcp(path)
    if any(path.glob("*.safetensors")):
        return open_safetensors(path)
    raise ConfigurationError(f"{path} holds neither *.safetensors files nor the {METADATA} file of a DCP checkpoint")
