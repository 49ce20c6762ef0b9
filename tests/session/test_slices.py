"""Full saves that are larger than the device buffer: read in slices while training goes on. The device is the host."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import holdfast as hf
from holdfast.checkpoint.snapshot import side_streams
from holdfast.events import SaveGivenUp
from holdfast.kernels.quantize import tensors
from holdfast.storage import MemoryStore
from tests.checkpoint.snapshot.delayed_streams import DelayedStreams

ROWS, DIM = (9000, 40, 5000), 16
# A slice takes a quarter of it at most: some 2000 rows with their slots.
SETTINGS = hf.Settings(handle_sigterm=False, grace_s=0.0, device_buffer_bytes=2**20, frame_bytes=2**17)


@pytest.fixture(autouse=True)
def streams(monkeypatch: pytest.MonkeyPatch) -> Iterator[DelayedStreams]:
    """All tensors are as if on a device, which encodes."""
    delayed = DelayedStreams()
    monkeypatch.setattr(side_streams, "streams_for", lambda tensors: delayed)
    monkeypatch.setattr(tensors, "is_cheap", lambda table, scheme: tensors.is_plain(table))
    yield delayed


class Model(nn.Module):
    def __init__(self, rows: tuple[int, ...] = ROWS, *, sparse: bool = True, seed: int = 0) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.emb = nn.ModuleList(nn.EmbeddingBag(each, DIM, mode="sum", sparse=sparse) for each in rows)
        self.top = nn.Linear(DIM, 1)
        self.optimizers = [
            torch.optim.Adagrad(self.emb.parameters(), lr=0.01) if sparse else torch.optim.SGD(
                self.emb.parameters(), lr=0.01, weight_decay=0.01
            ),
            torch.optim.SGD(self.top.parameters(), lr=0.01, momentum=0.9),
        ]  # fmt: skip
        self.rows = rows
        self.batch = 8
        self._draw = torch.Generator().manual_seed(seed)

    def train_step(self) -> None:
        ids = torch.randint(0, max(self.rows), (self.batch, 3, 2), generator=self._draw)
        for optimizer in self.optimizers:
            optimizer.zero_grad()
        looked_up = sum(table(ids[:, n] % self.rows[n]) for n, table in enumerate(self.emb))
        self.top(looked_up).square().mean().backward()
        for optimizer in self.optimizers:
            optimizer.step()

    def state(self) -> dict[str, Tensor]:
        found = {name: tensor.clone() for name, tensor in self.state_dict().items()}
        for number, optimizer in enumerate(self.optimizers):
            for at, parameter in enumerate(optimizer.param_groups[0]["params"]):
                for key, value in optimizer.state[parameter].items():
                    if isinstance(value, Tensor):
                        found[f"{number}.{at}.{key}"] = value.clone()
        return found


def guarded(store: MemoryStore, model: Model, **options: Any) -> hf.Checkpointer:
    options = {"save": hf.Never(), "strategy": hf.Full(), "retention": hf.KeepAll(), "settings": SETTINGS, **options}
    return hf.Checkpointer(store, model=model, optimizer=model.optimizers, **options)


def check(store: MemoryStore, states: dict[int, dict[str, Tensor]], *, sparse: bool = True) -> None:
    """These steps have checkpoints, which are their states."""
    run = hf.open_run(store)
    assert states.keys() <= {info.step for info in run.checkpoints()}
    for step, state in states.items():
        model = Model(seed=1, sparse=sparse)
        run.restore(step, model=model, optimizer=model.optimizers)
        found = model.state()
        for name, wanted in state.items():
            assert torch.equal(found[name], wanted), (step, name)
    assert not run.verify()


def steps(guard: hf.Checkpointer, model: Model, count: int, between: Callable[[], object] = lambda: None) -> None:
    for _ in range(count):
        model.train_step()
        between()
        guard.step()


def test_a_save_in_slices_is_the_state_of_its_step_while_training_moves_the_rows(streams: DelayedStreams) -> None:
    store, model, states = MemoryStore(), Model(), {}
    with guarded(store, model) as guard:
        for _ in range(3):
            steps(guard, model, 2)
            waits = streams.waits
            assert guard.save()
            assert streams.waits == waits
            states[guard.steps] = model.state()
            steps(guard, model, 40)
            guard.drain()
        assert guard.stats.sliced == 3 and not (guard.stats.device_waits or guard.stats.thrown_away)
        assert guard.stats.drained_bytes > 3 * (sum(ROWS) * 2 * DIM * 4)
        states[guard.steps] = model.state()
    check(store, states)


@pytest.mark.parametrize("bits", [2, 8])
def test_slices_in_few_bits_are_those_of_a_save_in_one_piece(bits: int) -> None:
    rows, stores = (70_000, 40, 5000), {}
    for size in (2**20, 2**24):
        store, model = MemoryStore(), Model(rows)
        model.emb[0].weight.data[::99, 1] = torch.inf  # rows that no record holds
        settings = hf.Settings(handle_sigterm=False, grace_s=0.0, device_buffer_bytes=size, frame_bytes=2**17)
        with guarded(store, model, precision=hf.Bits(bits), settings=settings) as guard:
            steps(guard, model, 3)
            guard.save()
            steps(guard, model, 30)
            guard.drain()
            assert guard.stats.sliced == (size == 2**20) and not guard.stats.thrown_away
            stores[size] = store
    first, second = (hf.open_run(store) for store in stores.values())
    for number, each in enumerate(rows):
        here, there = (run.read_rows(f"emb.{number}", range(each), step=3) for run in (first, second))
        assert all(torch.equal(here[name].view(torch.int32), there[name].view(torch.int32)) for name in here)


def test_the_rest_is_read_at_once_before_a_step_that_moves_unknown_rows() -> None:
    store, model, states = MemoryStore(), Model(sparse=False), {}
    settings = hf.Settings(handle_sigterm=False, grace_s=0.0, device_buffer_bytes=2**19, frame_bytes=2**16)
    with guarded(store, model, settings=settings) as guard:
        steps(guard, model, 2)
        guard.save()
        states[2] = model.state()
        steps(guard, model, 1)
        guard.drain()
        assert guard.stats.sliced == 1 and guard.stats.device_waits == 1 and not guard.stats.thrown_away
        steps(guard, model, 1)
        states[guard.steps] = model.state()
    check(store, states, sparse=False)


def test_displaced_rows_that_find_no_room_make_the_step_wait() -> None:
    store, model, states = MemoryStore(), Model(), {}
    model.batch = 300
    with guarded(store, model) as guard:
        guard.save()
        states[0] = model.state()
        steps(guard, model, 30)
        guard.drain()
        assert guard.stats.sliced == 1 and guard.stats.device_waits == 1
        states[guard.steps] = model.state()
    check(store, states)


EDITS: dict[str, Callable[[Model, hf.Checkpointer], object]] = {
    "in place": lambda model, guard: model.emb[2].weight.detach().mul_(0.5),
    "of a slot": lambda model, guard: model.optimizers[0].state[model.emb[2].weight]["sum"].mul_(0.5),
    "marked": lambda model, guard: (model.emb[2].weight.data[4000:].zero_(), guard.mark("emb.2", range(4000, 5000))),
}


@pytest.mark.parametrize("edit", EDITS.values(), ids=EDITS)
def test_a_snapshot_that_an_edit_overtook_is_thrown_away_and_taken_in_one_piece(
    edit: Callable[[Model, hf.Checkpointer], object],
) -> None:
    store, model, states = MemoryStore(), Model(), {}
    given_up: list[SaveGivenUp] = []
    with guarded(store, model, on_failure=given_up.append) as guard:
        steps(guard, model, 2)
        guard.save(tag="best")
        steps(guard, model, 1)
        edit(model, guard)
        for _ in range(200):
            before = guard.stats.snapshots
            steps(guard, model, 1)
            if guard.stats.snapshots > before:
                states[guard.steps] = model.state()
            if guard.stats.committed:
                break
        assert guard.stats.thrown_away == 1 and guard.stats.committed == 1 and not guard.stats.sliced
        assert [event.retry_s for event in given_up] == [0.0] and "outside of optimizer.step()" in given_up[0].reason
        steps(guard, model, 1)
        guard.save()  # that table is not trusted again
        states[guard.steps] = model.state()
        steps(guard, model, 1)
        guard.drain()
        assert guard.stats.thrown_away == 1
    check(store, states)
    assert next(info.tag for info in hf.open_run(store).checkpoints()) == "best"


def test_draining_takes_a_snapshot_again_that_an_edit_overtook() -> None:
    store, model = MemoryStore(), Model()
    with guarded(store, model) as guard:
        steps(guard, model, 2)
        guard.save()
        model.emb[0].weight.data.copy_(torch.zeros(ROWS[0], DIM))
        guard.mark("emb.0")
        guard.drain()
        assert guard.stats.thrown_away == 1 and guard.stats.committed == 1
        states = {2: model.state()}
    check(store, states)


def test_tables_that_lookups_rewrite_are_copied_at_once() -> None:
    store, model = MemoryStore(), Model()
    for table in model.emb:
        table.max_norm = 1.0
    with guarded(store, model) as guard:
        steps(guard, model, 2)
        guard.save()
        states = {2: model.state()}
        steps(guard, model, 3)
        guard.drain()
        assert guard.stats.device_waits == 1 and not guard.stats.sliced
    check(store, states)
