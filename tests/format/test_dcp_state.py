"""State trees of DCP: what is written comes back, and nothing malformed is believed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from holdfast.errors import DamagedData, RunError
from holdfast.format.dcp_state import DcpPiece, DcpState, DcpTensor, is_dcp, sections_of
from holdfast.format.state import SavedState
from holdfast.format.tree import decode_tree, encode_tree

DIGEST = bytes(range(32))


def state() -> DcpState:
    piece = DcpPiece(offsets=(2, 0), tensor=torch.ones(2, 3), digests=(DIGEST,))
    return DcpState(
        step=4,
        values={"epoch": 3, "pair": (1, torch.zeros(2))},
        tensors={"w": DcpTensor(dtype="F32", size=(4, 3), pieces=(piece,))},
        planner={"w": ("model", "w")},
        folders={"s000000000001-t00001-0a": 24},
    )


def test_what_is_written_comes_back() -> None:
    encoded = encode_tree(state().to_tree())
    tree = decode_tree(encoded.skeleton, encoded.tensors)
    assert is_dcp(tree)
    found = DcpState.from_tree(tree, name="it")
    assert (found.step, found.planner, found.folders) == (4, state().planner, state().folders)
    ((name, piece),) = found.pieces()
    assert (name, piece.offsets, piece.digests, tuple(piece.tensor.shape)) == ("w", (2, 0), (DIGEST,), (2, 3))


@pytest.mark.parametrize(
    ("length", "lengths"),
    [
        (0, []),
        (5, [5]),
        (2 << 20, [2 << 20]),
        (6 << 20, [2 << 20] * 3),
        ((2 << 20) + 4, [(1 << 20) + (128 << 10), (1 << 20) - (128 << 10) + 4]),
    ],
)
def test_sections_of_one_length_cover_a_piece(length: int, lengths: list[int]) -> None:
    found = sections_of(length)
    assert [size for _, size in found] == lengths
    assert [start for start, _ in found] == [sum(lengths[:number]) for number in range(len(lengths))]


def dcp(tree: Any) -> Any:
    return tree["dcp"]


SPOILT: dict[str, Callable[[Any], object]] = {
    "a negative step": lambda tree: tree.update(step=-1),
    "a field more": lambda tree: dcp(tree).update(more=1),
    "a field less": lambda tree: dcp(tree).pop("planner"),
    "values without names": lambda tree: dcp(tree).update(values=[1]),
    "a type that is none": lambda tree: dcp(tree)["tensors"]["w"].update(dtype="F31"),
    "a size that is none": lambda tree: dcp(tree)["tensors"]["w"].update(size=(4, -3)),
    "a piece outside of its tensor": lambda tree: dcp(tree)["tensors"]["w"].update(size=(3, 3)),
    "a piece of other dimensions": lambda tree: dcp(tree)["tensors"]["w"].update(size=(12,)),
    "a piece that is no tensor": lambda tree: dcp(tree)["tensors"]["w"].update(pieces=[((0, 0), [1], DIGEST)]),
    "half a digest": lambda tree: dcp(tree)["tensors"]["w"].update(pieces=[((0, 0), torch.ones(1, 1), DIGEST[:16])]),
    "bytes below zero": lambda tree: dcp(tree).update(folders={"s": -1}),
}


@pytest.mark.parametrize("how", SPOILT)
def test_malformed_states_are_refused(how: str) -> None:
    tree = state().to_tree()
    SPOILT[how](tree)
    with pytest.raises(DamagedData, match="it: holds a malformed state of DCP"):
        DcpState.from_tree(tree, name="it")


def test_a_trainer_is_told_what_it_is() -> None:
    with pytest.raises(RunError, match="it was saved by torch"):
        SavedState.from_tree(state().to_tree(), name="it")
