"""A baseline and two deltas of every tracker case, each restored into a fresh model: nothing may differ by a bit."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch

import holdfast as hf
from holdfast.storage import MemoryStore
from holdfast.types import Kind
from tests.checkpoint.tracker_cases import CASES, ROWS, Case
from tests.checkpoint.tracker_values import difference, values_of

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
