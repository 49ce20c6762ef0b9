"""What is not a tensor: DCP's planner pickles it, Holdfast stores it as a tree. Nothing is unpickled without limits."""

from __future__ import annotations

import io
import pickle
from typing import Any

import torch

from holdfast.errors import UnsupportedState


def unpickled(data: io.BytesIO, path: str) -> Any:
    """The value that a planner pickled, if it consists of plain data; raises UnsupportedState with its path."""
    data.seek(0)
    try:
        return torch.load(data, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        raise UnsupportedState(
            f"{path} is an object that would need pickle, which Holdfast does not store ({_reason(error)}). Give it a "
            "state_dict() of plain values (numbers, strings, tensors, lists, tuples, sets, dicts), or leave it out of "
            "the state dict"
        ) from error


def _reason(error: pickle.UnpicklingError) -> str:
    """Torch's own words, in which several lines of advice surround the one that names the class."""
    lines = (line.strip() for line in str(error).splitlines())
    return next((line for line in lines if "GLOBAL" in line or "Unsupported" in line), "not plain data")


def pickled(value: Any) -> io.BytesIO:
    """The bytes that DCP's planner unpickles when it loads a value."""
    data = io.BytesIO()
    torch.save(value, data)
    data.seek(0)
    return data
