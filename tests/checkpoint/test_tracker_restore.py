"""A baseline and two deltas of every tracker case, each restored into a fresh model: nothing may differ by a bit."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

import holdfast as hf
from holdfast.storage import MemoryStore
from holdfast.types import Kind
from tests.checkpoint.tracker_cases import CASES, ROWS, Case, Training

pytestmark = pytest.mark.filterwarnings("ignore::holdfast.errors.HoldfastWarning", "ignore:Sparse invariant checks")

SMALL = hf.Settings(buffer_bytes=2**18, frame_bytes=2**16, handle_sigterm=False)
BATCHES = (2, 1, 2)  # before each save: slots exist in the baseline, and one delta falls into an accumulation


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> Iterator[None]:
    """Tensors this small are only slowed down by more."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_baseline_and_deltas_restore_every_row_slot_and_dense_value(case: Case) -> None:
    store = MemoryStore()
    live = train_and_save(case, store)
    run = hf.open_run(store)
    infos = run.checkpoints()
    assert [info.kind for info in infos] == [Kind.FULL, Kind.INCREMENTAL, Kind.INCREMENTAL]
    if case.gives_deltas:
        assert max(info.rows_written for info in infos[1:]) < ROWS / 2
    for step, expected in live.items():
        fresh = case.build()
        run.restore(step, model=fresh.model, optimizer=fresh.optimizers)
        assert difference(expected, values_of(fresh)) == []


def train_and_save(case: Case, store: MemoryStore) -> dict[int, dict[str, Any]]:
    """The live values at each saved step; of two saves at one step the later ones, which are what a restore reads."""
    training = case.build()
    live: dict[int, dict[str, Any]] = {}
    number = 0
    with hf.Checkpointer(
        store,
        model=training.model,
        optimizer=training.optimizers,
        save=hf.Never(),
        strategy=hf.Consecutive(),
        retention=hf.KeepAll(),
        settings=SMALL,
    ) as guard:
        for batches in BATCHES:
            for _ in range(batches):
                training.train(number, guard.mark)
                guard.step()
                number += 1
            guard.save(wait=True)
            live[guard.steps] = values_of(training)
    return live


def values_of(training: Training) -> dict[str, Any]:
    """A copy of every weight, and of everything that the optimizers hold, by path."""
    values = dict(leaves("model", training.model.state_dict()))
    for index, optimizer in enumerate(training.optimizers):
        for number, group in enumerate(optimizer.param_groups):
            options = {key: value for key, value in group.items() if key != "params"}
            values |= leaves(f"optimizer.{index}.group.{number}", options)
            for place, parameter in enumerate(group["params"]):
                values |= leaves(f"optimizer.{index}.state.{number}.{place}", optimizer.state.get(parameter, {}))
    return values


def leaves(path: str, value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict):
        for key, item in value.items():
            yield from leaves(f"{path}.{key}", item)
    elif isinstance(value, list | tuple):
        yield path, type(value)
        for index, item in enumerate(value):
            yield from leaves(f"{path}.{index}", item)
    elif isinstance(value, Tensor) and value.is_sparse:
        yield path, value.is_coalesced()
        yield from leaves(f"{path}.indices", value._indices())
        yield from leaves(f"{path}.values", value._values())
    else:
        yield path, value.detach().clone() if isinstance(value, Tensor) else value


def difference(expected: dict[str, Any], found: dict[str, Any]) -> list[str]:
    """Paths that are not in both, or do not hold the same type and bits."""
    shared = expected.keys() & found.keys()
    return sorted(expected.keys() ^ found.keys()) + sorted(p for p in shared if not alike(expected[p], found[p]))


def alike(a: Any, b: Any) -> bool:
    if not isinstance(a, Tensor) or not isinstance(b, Tensor):
        return type(a) is type(b) and bool(a == b)
    if a.dtype != b.dtype or a.shape != b.shape or a.device != b.device:
        return False
    return torch.equal(a.reshape(-1).view(torch.uint8), b.reshape(-1).view(torch.uint8))
