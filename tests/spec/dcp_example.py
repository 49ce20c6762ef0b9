"""The example of docs/spec/dcp.md: what two ranks saved of one tensor."""

from __future__ import annotations

import hashlib
import json

import torch

from holdfast.format.dcp_state import DcpPiece, DcpState, DcpTensor
from holdfast.format.tree import encode_tree


def dcp_skeleton() -> str:
    """The skeleton of its state tree."""
    rows = torch.arange(6, dtype=torch.float32).reshape(3, 2)
    pieces = tuple(
        DcpPiece(offsets=(start, 0), tensor=own, digests=(hashlib.sha256(own.numpy().tobytes()).digest(),))
        for start, own in ((0, rows[:2]), (2, rows[2:]))
    )
    state = DcpState(
        step=7,
        values={"epoch": 3},
        tensors={"model.w": DcpTensor(dtype="F32", size=(3, 2), pieces=pieces)},
        planner={"model.w": ("model", "w"), "epoch": ("epoch",)},
        folders={},
    )
    return json.dumps(json.loads(encode_tree(state.to_tree()).skeleton))
