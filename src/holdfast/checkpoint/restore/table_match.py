"""Whether the tables of a checkpoint are those of a model; if not, in which words."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from holdfast.errors import ModelMismatch
from holdfast.format.dtypes import code_of
from holdfast.types import TableSpec


def require_same_tables(stored: Mapping[str, TableSpec], live: Mapping[str, Tensor], *, otherwise: str) -> None:
    """Raise ModelMismatch unless names, shapes and types are the same; ``otherwise``: what strict=False would do."""
    missing, unexpected = sorted(live.keys() - stored.keys()), sorted(stored.keys() - live.keys())
    if missing or unexpected:
        raise ModelMismatch(
            f"tables missing from the checkpoint: {missing or 'none'}; tables missing from the model: "
            f"{unexpected or 'none'}. Rename them, or pass strict=False to {otherwise}"
        )
    for name, spec in stored.items():
        if problem := shape_problem(spec, live[name]):
            raise ModelMismatch(f"{problem}; strict=False skips it")
        if problem := _dtype_problem(spec, live[name]):
            raise ModelMismatch(f"{problem}; strict=False converts it")


def shape_problem(spec: TableSpec, live: Tensor) -> str | None:
    """How the shapes of a stored table and of a live one differ."""
    shape = tuple(live.shape)
    if spec.shape == shape:
        return None
    return f"table {spec.name} has shape {spec.shape} in the checkpoint and {shape} in the model"


def _dtype_problem(spec: TableSpec, live: Tensor) -> str | None:
    stored, dtype = spec.weight.dtype, code_of(live.dtype)
    return None if stored == dtype else f"table {spec.name} is {stored} in the checkpoint and {dtype} in the model"
