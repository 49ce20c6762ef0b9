"""A baseline and two deltas of every tracker case, each restored into a fresh model: nothing may differ by a bit."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch

import holdfast as hf
from holdfast.storage import MemoryStore
from holdfast.types import Kind
from tests.checkpoint.track.tracker_cases import CASES, ROWS, Case
from tests.checkpoint.track.tracker_values import difference, values_of

pytestmark = pytest.mark.filterwarnings("ignore::holdfast.errors.HoldfastWarning", "ignore:Sparse invariant checks")

SMALL = hf.Settings(buffer_bytes=2**18, frame_bytes=2**16, handle_sigterm=False)
SAVES, BATCHES = 3, 2  # batches before each save: as many as one case accumulates


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
    """The live values at each saved step."""
    training = case.build()
    live: dict[int, dict[str, Any]] = {}
    with hf.Checkpointer(
        store,
        model=training.model,
        optimizer=training.optimizers,
        save=hf.Never(),
        strategy=hf.Consecutive(),
        retention=hf.KeepAll(),
        settings=SMALL,
    ) as guard:
        for number in range(SAVES * BATCHES):
            training.train(number, guard.mark)
            guard.step()
            if number % BATCHES == BATCHES - 1:
                guard.save(wait=True)
                live[guard.steps] = values_of(training)
    return live
