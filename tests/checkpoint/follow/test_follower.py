"""A model that serves follows a run: what it reads, what it reloads, what it survives, and what a batch sees."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.optim import Adam, SparseAdam

import holdfast as hf
from holdfast.checkpoint.follow.gate import Gate
from holdfast.errors import AccessDenied, ConfigurationError, DamagedData, ModelMismatch, RunError, StorageUnavailable
from holdfast.policy import Strategy
from holdfast.policy.precision import Bits, Exact, Precision
from holdfast.runtime import Runtime
from holdfast.storage import MemoryStore
from holdfast.testing.faults import Fault, FaultyStore, Operation
from holdfast.testing.runtime import with_runtime
from tests.grid import SETTINGS

ROWS = 400


class Clicks(nn.Module):
    """Two tables and a dense part with a buffer."""

    def __init__(self, rows: int = ROWS, dim: int = 8) -> None:
        super().__init__()
        self.users = nn.Embedding(rows, dim, sparse=True)
        self.items = nn.Embedding(rows, dim, sparse=True)
        self.top = nn.Linear(dim, 1)
        self.register_buffer("seen", torch.zeros(3))

    def values(self) -> Tensor:
        """Every weight of the model, in one row."""
        return torch.cat([tensor.detach().reshape(-1) for tensor in self.state_dict().values()])


class Training:
    """A run in which a save makes every weight, of the rows named, the number of its step."""

    def __init__(
        self,
        store: MemoryStore,
        strategy: Strategy | None = None,
        *,
        step: int | None = None,
        precision: Precision = Exact(),  # noqa: B008 - frozen
    ) -> None:
        self.model = Clicks()
        tables = [self.model.users.weight, self.model.items.weight]
        self.optimizers = [SparseAdam(tables), Adam(self.model.top.parameters())]
        self.guard = hf.Checkpointer(
            store,
            model=self.model,
            optimizer=self.optimizers,
            save=hf.Never(),
            strategy=strategy or hf.Consecutive(),
            retention=hf.KeepAll(),
            precision=precision,
            overlap=hf.Overlap.WAIT,
            settings=hf.Settings(**SETTINGS),
        )
        self.guard.resume(step)

    def save(self, rows: range = range(ROWS), *, random: bool = False) -> int:
        """Let the optimizers move the rows, and everything dense, then set what they moved."""
        ids = torch.tensor(rows)
        value = float(self.guard.steps + 1)
        (self.model.top(self.model.users(ids) + self.model.items(ids))).sum().backward()
        for optimizer in self.optimizers:
            optimizer.step()
            optimizer.zero_grad()
        for table in (self.model.users, self.model.items):
            table.weight.data[ids] = torch.rand(len(ids), 8) if random else torch.tensor(value)
        for tensor in (*self.model.top.parameters(), self.model.seen):
            tensor.data.fill_(value)
        self.guard.step()
        self.guard.save(wait=True)
        return self.guard.steps


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore()


@pytest.fixture
def training(store: MemoryStore) -> Training:
    return Training(store)


def same(first: nn.Module, second: nn.Module) -> bool:
    return torch.equal(first.values(), second.values())


def damage(store: MemoryStore, name: str) -> None:
    """Change the second half of an object, so that what reads it comes half way."""
    data = bytearray(store.get(name))
    half = len(data) // 2
    data[half:] = bytes(byte ^ 1 for byte in data[half:])
    store.put(name, bytes(data))


def test_the_first_update_loads_all_and_the_next_ones_only_what_changed(store: MemoryStore, training: Training) -> None:
    served = Clicks()
    follower = hf.Follower(store, served)
    training.save()
    first = follower.update()
    assert first is not None and first.whole and first.from_step is None and first.rows == 2 * ROWS
    assert same(served, training.model)
    training.save(range(3, 13))
    training.save(range(10, 20))
    second = follower.update()
    assert second is not None and (second.from_step, second.step, second.whole) == (1, 3, False)
    assert second.rows == 2 * 17  # each once, though some of them changed twice
    assert second.read_bytes < first.read_bytes / 4
    assert same(served, training.model)
    assert follower.update() is None


def test_neither_slots_nor_the_optimizers_nor_random_state_are_read(store: MemoryStore, training: Training) -> None:
    training.save()
    update = hf.Follower(store, Clicks()).update()
    weights = 4 * training.model.values().numel()
    skeleton = 4000
    assert update is not None and weights <= update.read_bytes < weights + skeleton


def test_an_empty_run_is_waited_for_and_said_so_once(store: MemoryStore, caplog: pytest.LogCaptureFixture) -> None:
    follower = hf.Follower(store, Clicks())
    assert follower.update() is None and follower.update() is None
    assert follower.step is None and follower.checkpoint is None and follower.lag.age_s is None
    assert len([record for record in caplog.records if "no checkpoint yet" in record.message]) == 1


def test_a_follower_that_is_behind_skips_ahead_and_says_how_far_it_was(store: MemoryStore, training: Training) -> None:
    follower = hf.Follower(store, Clicks())
    training.save()
    assert follower.update()
    for first in range(5):
        training.save(range(first, first + 3))
    update = follower.update()
    assert update is not None and (update.from_step, update.step) == (1, 6)
    assert follower.lag.checkpoints == 0 and follower.lag.steps == 0


def test_with_each_no_checkpoint_is_skipped(store: MemoryStore, training: Training) -> None:
    served = Clicks()
    follower = hf.Follower(store, served, each=True)
    training.save()
    assert follower.update()
    for first in range(4):
        training.save(range(first, first + 3))
    seen = []
    while (update := follower.update()) is not None:
        assert float(served.top.bias.detach()) == update.step
        seen.append((update.step, follower.lag.checkpoints, update.whole))
    assert seen == [(2, 3, False), (3, 2, False), (4, 1, False), (5, 0, False)]


@pytest.mark.parametrize("strategy", [hf.OneShot(), hf.Consecutive(), hf.Grid(reset=False)], ids=repr)
def test_after_a_new_timeline_all_is_reloaded(store: MemoryStore, strategy: Strategy) -> None:
    training, served = Training(store, strategy), Clicks()
    follower = hf.Follower(store, served)
    for rows in (range(ROWS), range(5), range(100)):
        training.save(rows)
    assert follower.update()
    training.guard.close()
    again = Training(store, strategy, step=2)
    back = follower.update()  # the newest is now an older one
    assert back is not None and back.step == 2 and "timeline" in str(back.reload and back.reload.value)
    assert same(served, again.model)
    again.save(range(7))
    forth = follower.update()
    assert forth is not None and forth.step == 3 and not forth.whole
    assert same(served, again.model)


def test_a_new_baseline_reloads_all_in_bounded_memory(store: MemoryStore, tmp_path: Path) -> None:
    training, served = Training(store, hf.Full()), Clicks()
    follower = hf.Follower(store, served, staging_bytes=1000, spill=tmp_path)
    training.save()
    assert follower.update()
    training.save(range(3))
    update = follower.update()
    assert update is not None and update.reload is not None and "baseline" in update.reload.value
    assert same(served, training.model)
    assert list(tmp_path.iterdir()) == []


def test_increments_go_on_where_what_was_applied_is_dropped(store: MemoryStore) -> None:
    training, served = Training(store, hf.OneShot()), Clicks()
    follower = hf.Follower(store, served)
    training.save()
    training.save(range(30))
    assert follower.update()
    training.save(range(20, 40))
    training.save(range(40, 50))
    hf.open_run(store).prune(hf.KeepLast(1), grace_s=0.0)  # what is applied goes, and the one after it
    update = follower.update()
    assert update is not None and not update.whole and update.rows == 2 * 50
    assert same(served, training.model)


def test_all_is_reloaded_where_the_way_from_what_was_applied_is_unknown(store: MemoryStore) -> None:
    training, served = Training(store, hf.OneShot()), Clicks()
    follower = hf.Follower(store, served)
    training.save()
    training.save(range(30))
    assert follower.update()
    training.guard.close()
    training = Training(store, hf.OneShot(), step=1)
    training.save(range(50, 60))
    training.save(range(50, 60))
    hf.open_run(store).prune(hf.KeepLast(1), grace_s=0.0)
    update = follower.update()
    assert update is not None and update.whole
    assert same(served, training.model)


@pytest.mark.parametrize("saves", [1, 2, 5])
def test_a_run_that_is_deleted_and_begun_anew_is_followed_from_its_start(store: MemoryStore, saves: int) -> None:
    """Whether it has come as far as the old one or not."""
    first = Training(store)
    for _ in range(3):
        first.save()
    first.guard.close()
    served = Clicks()
    follower = hf.Follower(store, served)
    follower.update()
    store.delete([info.name for info in store.list()])
    assert follower.update() is None and same(served, first.model)
    second = Training(store)
    for _ in range(saves):
        second.save(range(10, 20))
    update = follower.update()
    assert update is not None and update.reload is not None and update.checkpoint.step == saves
    assert same(served, second.model)


@pytest.mark.parametrize("strategy", [hf.OneShot(), hf.Consecutive(), hf.Grid(), hf.Intermittent()], ids=repr)
@pytest.mark.parametrize("precision", [Bits(4), Bits(2, difference=True)], ids=repr)
@pytest.mark.parametrize("baseline_in_memory", [True, False])
def test_rows_in_few_bits_are_followed_as_they_would_be_restored(
    store: MemoryStore, strategy: Strategy, precision: Precision, baseline_in_memory: bool
) -> None:
    training, served, restored = Training(store, strategy, precision=precision), Clicks(), Clicks()
    follower = hf.Follower(store, served, baseline_in_memory=baseline_in_memory)
    for number in range(9):
        training.save(range(number * 7, number * 7 + 20) if number else range(ROWS), random=True)
        if number % 4 != 1:
            assert follower.update()
            hf.open_run(store).restore(model=restored)
            assert same(served, restored)
    assert not torch.equal(served.values(), training.model.values())  # which is why a restore is the measure


@pytest.mark.parametrize("strategy", [hf.Consecutive(), hf.Full()], ids=repr)
def test_damage_leaves_the_model_whole_and_a_retry_goes_on(store: MemoryStore, strategy: Strategy) -> None:
    training, served = Training(store, strategy), Clicks()
    follower = hf.Follower(store, served)
    training.save()
    assert follower.update()
    before = {info.name for info in store.list("data/")}
    training.save(range(100))
    new = [info.name for info in store.list("data/") if info.name.endswith(".safetensors") and info.name not in before]
    whole = {name: bytes(store.get(name)) for name in new}
    for name in new:
        damage(store, name)
    held = served.values()
    for _ in range(2):
        with pytest.raises(DamagedData, match=r"safetensors: .*still holds step 1 in full"):
            follower.update()
        assert torch.equal(served.values(), held) and follower.step == 1
        assert follower.lag.checkpoints == 1
    for name in new:
        store.put(name, whole[name])
    assert follower.update()
    assert same(served, training.model)


def test_wherever_the_store_fails_the_model_stays_whole(store: MemoryStore, training: Training) -> None:
    training.save()
    faulty = FaultyStore(store)
    served = Clicks()
    # The store's faults are met at once, without a minute of patience.
    follower = with_runtime(hf.Follower, impatient())(faulty, served)
    assert follower.update()
    number, failed = 0, 0
    while True:
        number += 1
        training.save(range(number, number + 20))
        held = served.values()
        start = faulty.operations
        faulty.plan = {start + number: Fault.UNAVAILABLE}
        try:
            assert follower.update()
        except StorageUnavailable as error:
            failed += 1
            assert "still holds step" in str(error)
            assert torch.equal(served.values(), held)
            assert follower.update()
        assert same(served, training.model)
        if faulty.operations < start + number:
            break
    assert failed > 3


def impatient() -> Runtime:
    """A clock by which every pause is longer than anybody's patience."""
    now_s = [0.0]

    def monotonic_s() -> float:
        now_s[0] += 100.0
        return now_s[0]

    return Runtime(monotonic_s=monotonic_s, sleep=lambda seconds: None)


def test_a_first_load_that_fails_says_that_the_model_cannot_be_served(store: MemoryStore, training: Training) -> None:
    training.save()
    name = next(info.name for info in store.list("data/") if info.name.endswith(".safetensors"))
    whole = bytes(store.get(name))
    damage(store, name)
    served = Clicks()
    follower = hf.Follower(store, served)
    with pytest.raises(DamagedData, match="does not hold a complete checkpoint"):
        follower.update()
    assert follower.step is None
    store.put(name, whole)
    assert follower.update() and same(served, training.model)


def test_what_is_read_is_kept_by_a_lease_and_a_run_that_cannot_be_written_is_read_without(
    store: MemoryStore, training: Training, caplog: pytest.LogCaptureFixture
) -> None:
    training.save()
    faulty = FaultyStore(store)
    assert hf.Follower(faulty, Clicks()).update()
    kinds = [(operation.kind, operation.name.split("-")[0]) for operation in faulty.history]
    assert kinds.index(("put", "leases/reader")) < next(n for n, each in enumerate(kinds) if "data/" in each[1])

    def refuse(operation: Operation) -> None:
        if operation.kind == "put":
            raise AccessDenied("read only")

    faulty.before = refuse
    assert hf.Follower(faulty, Clicks()).update()
    assert "without a lease" in caplog.text


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda model: setattr(model, "items", nn.Embedding(ROWS, 9)), "table items has shape"),
        (lambda model: setattr(model, "items", nn.Linear(1, 1)), r"missing from the model: \['items'\]"),
        (lambda model: setattr(model, "more", nn.Embedding(2, 2)), r"missing from the checkpoint: \['more'\]"),
        (lambda model: model.users.half(), "table users is F32 in the checkpoint and F16 in the model"),
        (lambda model: setattr(model, "top", nn.Linear(8, 2)), "top.weight is float32"),
    ],
)
def test_a_model_that_does_not_fit_is_refused_by_name_and_left_as_it_is(
    store: MemoryStore, training: Training, change: Callable[[Clicks], None], told: str
) -> None:
    training.save()
    served = Clicks()
    change(served)
    held = served.values()
    follower = hf.Follower(store, served)
    with pytest.raises(ModelMismatch, match=told):
        follower.update()
    with pytest.raises(ConfigurationError):
        follower.follow(every_s=0.01)
    assert torch.equal(served.values(), held)


def test_what_fits_is_applied_and_converted_where_that_is_asked_for(
    store: MemoryStore, training: Training, caplog: pytest.LogCaptureFixture
) -> None:
    training.save()
    served = Clicks()
    served.users.half()
    served.items = nn.Embedding(ROWS, 9)
    follower = hf.Follower(store, served, strict=False)
    assert follower.update()
    training.save(range(10))
    assert follower.update()
    assert torch.equal(served.users.weight.float(), training.model.users.weight)
    assert len([record for record in caplog.records if "items" in record.message]) == 1


def test_a_batch_never_sees_half_an_update(store: MemoryStore, training: Training) -> None:
    training.save()
    served = Clicks()
    follower = hf.Follower(store, served, staging_bytes=1000)
    follower.update()
    stop = threading.Event()
    mixtures: list[set[float]] = []
    steps: set[float] = set()

    def serve() -> None:
        while not stop.wait(0.001):
            with follower.serving():
                seen = {float(value) for _ in range(2) for value in served.values().unique()}
            steps.update(seen)
            if len(seen) != 1:
                mixtures.append(seen)

    threads = [threading.Thread(target=serve) for _ in range(4)]
    with follower:
        follower.start(every_s=0.001)
        for thread in threads:
            thread.start()
        for _ in range(15):
            newest = training.save()
            while newest not in steps:  # until a batch was served from it
                assert follower.error is None
                stop.wait(0.001)
    stop.set()
    for thread in threads:
        thread.join()
    assert mixtures == []
    assert steps == set(range(1, 17))


def test_an_update_waits_for_batches_under_way_and_not_for_those_to_come() -> None:
    gate, order = Gate(), list[str]()
    inside, go_on, waiting = threading.Event(), threading.Event(), threading.Event()

    def first() -> None:
        with gate.serving():
            inside.set()
            go_on.wait()
            with gate.serving():  # a batch within a batch does not wait for the update that waits for it
                order.append("first batch")

    def update() -> None:
        inside.wait()
        waiting.set()
        with gate.excluding():
            order.append("update")

    def second() -> None:
        waiting.wait()
        while not gate._waiting:
            pass
        go_on.set()
        with gate.serving():
            order.append("second batch")

    threads = [threading.Thread(target=target) for target in (first, update, second)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert order == ["first batch", "update", "second batch"]


def test_an_update_inside_of_a_batch_is_refused_instead_of_waiting_for_itself(
    store: MemoryStore, training: Training
) -> None:
    training.save()
    follower = hf.Follower(store, Clicks())
    with follower.serving(), pytest.raises(RunError, match="inside serving"):
        follower.update()
    assert follower.update()


def test_following_goes_on_after_errors_until_it_is_stopped(
    store: MemoryStore, training: Training, caplog: pytest.LogCaptureFixture
) -> None:
    training.save()
    faulty = FaultyStore(store, {1: Fault.UNAVAILABLE, 2: Fault.UNAVAILABLE})
    follower = with_runtime(hf.Follower, impatient())(faulty, Clicks())
    stop, updates = threading.Event(), list[int]()

    def applied(update: object) -> None:
        updates.append(follower.step or 0)
        if len(updates) == 1:
            training.save(range(3))
        else:
            stop.set()

    with caplog.at_level(logging.WARNING, logger="holdfast"):
        follower.follow(every_s=0.001, stop=stop, on_update=applied)
    assert updates == [1, 2]
    assert follower.error is None
    assert "not updated" in caplog.text


def test_settings_are_checked(store: MemoryStore, tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="staging_bytes"):
        hf.Follower(store, Clicks(), staging_bytes=-1)
    with pytest.raises(ConfigurationError, match="pass an existing folder"):
        hf.Follower(store, Clicks(), spill=tmp_path / "nowhere")
    with pytest.raises(ConfigurationError, match="every_s"):
        hf.Follower(store, Clicks()).follow(every_s=0)
    follower = hf.Follower(store, Clicks())
    with follower, pytest.raises(RunError, match="already"):
        follower.start()
        follower.start()
