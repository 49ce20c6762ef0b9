"""Tensors in tiles, as a state tree names them."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch

from holdfast.errors import DamagedData
from holdfast.format.boxes import Box
from holdfast.format.scattered import Scattered, Tile
from holdfast.format.tree import decode_tree, encode_tree, tiles_in

HALVES = Scattered(
    dtype="F32",
    shape=(3, 2),
    tiles=(
        Tile(rank=0, place=2, box=Box(offsets=(0, 0), sizes=(2, 2))),
        Tile(rank=1, place=1, box=Box(offsets=(2, 0), sizes=(1, 2))),
    ),
)


def test_a_scattered_tensor_comes_back_from_a_tree() -> None:
    encoded = encode_tree({"a": HALVES, "b": torch.ones(2)}, tiles=2)
    assert tiles_in(encoded.skeleton) == 2
    tree = decode_tree(encoded.skeleton, [*encoded.tensors, None, None])
    assert tree["a"] == HALVES and tree["b"].tolist() == [1.0, 1.0]


def test_a_tree_without_tiles_has_the_bytes_that_it_always_had() -> None:
    skeleton = encode_tree({"b": torch.ones(2)}).skeleton
    assert "tiles" not in json.loads(skeleton) and tiles_in(skeleton) == 0


@pytest.mark.parametrize("tensors", [0, 1, 3])
def test_a_tree_with_another_number_of_tensors_is_damaged(tensors: int) -> None:
    encoded = encode_tree({"a": HALVES}, tiles=2)
    with pytest.raises(DamagedData, match="refers to 2 tensors"):
        decode_tree(encoded.skeleton, [None] * tensors)


@pytest.mark.parametrize(
    "payload",
    [
        ["F32", [3, 2]],
        ["F31", [3, 2], [[0, 1, [0, 0], [3, 2]]]],
        ["F32", [3, -2], [[0, 1, [0, 0], [3, 2]]]],
        ["F32", [3, 2], [[0, 0, [0, 0], [3, 2]]]],
        ["F32", [3, 2], [[0, 1, [0, 0], [2, 2]]]],
        ["F32", [3, 2], [[0, 1, [0], [3]]]],
        ["F32", [3, 2], [[True, 1, [0, 0], [3, 2]]]],
        ["F32", "32", []],
    ],
)
def test_what_is_no_scattered_tensor_is_damaged(payload: Any) -> None:
    skeleton = json.dumps({"tree": 1, "tensors": 0, "root": {"scattered": payload}}).encode()
    with pytest.raises(DamagedData, match="no valid state tree"):
        decode_tree(skeleton, [])


@pytest.mark.parametrize("tiles", [-1, 1.0, True, "1", None])
def test_a_number_of_tiles_is_a_count(tiles: Any) -> None:
    skeleton = json.dumps({"tree": 1, "tensors": 0, "root": None, "tiles": tiles}).encode()
    with pytest.raises(DamagedData, match="no valid state tree"):
        tiles_in(skeleton)
