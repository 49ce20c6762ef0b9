from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from holdfast.checkpoint.training.rng import capture_rng
from holdfast.errors import DamagedData
from holdfast.format.state import JobState, RankState, SavedState, SharedState, rows_tree, weights_only_tree
from holdfast.format.tree import decode_tree, encode_tree
from holdfast.types import DeltaSizes

JOB = JobState(deltas=DeltaSizes.of(0.1, 0.25), restores=3, coarsest={"emb": 4}, pls={"pls": 0.1})
STATES = {
    "first": SavedState(
        rank=RankState(step=7, reader={"epoch": 1}, rng=capture_rng()),
        shared=SharedState(job=JOB, training=weights_only_tree({"bias": torch.ones(2)})),
    ),
    "own": SavedState(rank=RankState(step=7)),
}


def stored(state: SavedState) -> Any:
    encoded = encode_tree(state.to_tree())
    return decode_tree(encoded.skeleton, encoded.tensors)


@pytest.mark.parametrize("state", STATES.values(), ids=STATES)
def test_a_state_comes_back_from_its_tree(state: SavedState) -> None:
    found = SavedState.from_tree(stored(state), name="x")
    assert repr(found) == repr(state)


def test_the_state_of_a_priority_save_is_its_step() -> None:
    assert SavedState.from_tree(rows_tree(3), name="x") == SavedState(rank=RankState(step=3))


def put(*path: Any, value: Any) -> Callable[[Any], None]:
    def change(tree: Any) -> None:
        for key in path[:-1]:
            tree = tree[key]
        tree[path[-1]] = value

    return change


def drop(*path: Any) -> Callable[[Any], None]:
    def change(tree: Any) -> None:
        for key in path[:-1]:
            tree = tree[key]
        del tree[path[-1]]

    return change


@pytest.mark.parametrize(
    "change",
    [
        put("step", value="7"),
        put("step", value=-1),
        put("step", value=True),
        put("more", value=1),
        put("reader", value=[]),
        put("rng", value={}),
        put("rng", "torch", value=torch.ones(3)),
        put("rng", "python", "words", value=[1, 2]),
        put("rng", "cuda", value={"0": torch.zeros(2, dtype=torch.uint8)}),
        put("job", value=None),
        put("job", "restores", value=1.5),
        put("job", "deltas", value=0.5),
        put("job", "deltas", "total", value=float("nan")),
        put("job", "deltas", "last", value=-1.0),
        put("job", "deltas", "count", value=1.5),
        put("job", "coarsest", value={"emb": None}),
        put("job", "coarsest", value={3: 4}),
        put("job", "pls", value={"pls": "0.1"}),
        put("training", value=[]),
        put("training", "model", value={"bias": 1.0}),
        put("training", "optimizers", value={}),
        drop("rng"),
        drop("job"),
        drop("job", "restores"),
        drop("training", "extra"),
    ],
)
def test_a_malformed_state_is_damage_of_the_object_it_lies_in(change: Callable[[Any], None]) -> None:
    tree = stored(STATES["first"])
    change(tree)
    with pytest.raises(DamagedData, match=r"^data/a/00000-000001.safetensors: holds a malformed state"):
        SavedState.from_tree(tree, name="data/a/00000-000001.safetensors")


@pytest.mark.parametrize("tree", [None, [], "state", {}, {"step": 1, "rng": None}])
def test_what_is_no_state_at_all_is_damage(tree: object) -> None:
    with pytest.raises(DamagedData):
        SavedState.from_tree(tree, name="x")
