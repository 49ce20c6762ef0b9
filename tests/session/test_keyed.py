"""Tables whose rows are found by keys: whatever was inserted, used and evicted, a restore brings exactly that back."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.distributed import checkpoint as dcp

import holdfast as hf
from holdfast.errors import ConfigurationError, ModelMismatch
from holdfast.storage import MemoryStore, Store
from tests.session.lru_table import LruTable

SETTINGS = hf.Settings(buffer_bytes=2**20, frame_bytes=2**16, reserve_bytes=0, handle_sigterm=False)
ROWS, DIM = 5, 2


class Training:
    """A keyed table, its optimizer, and a Checkpointer over them."""

    def __init__(self, store: Store, *, rows: int = ROWS, forgets: str = "", **options: Any) -> None:
        self.table = LruTable(rows, DIM, forgets=forgets)
        self.optimizer = torch.optim.Adagrad([self.table.weight], lr=0.5)
        self.guard = hf.Checkpointer(
            store,
            model=self.table,
            optimizer=self.optimizer,
            keyed={"users": self.table},
            **{"save": hf.Never(), "overlap": hf.Overlap.WAIT, "settings": SETTINGS, **options},
        )

    def resume(self, **options: Any) -> int:
        return self.guard.resume(**options)

    def train(self, *keys: int) -> None:
        self.optimizer.zero_grad()
        self.table(keys).square().sum().backward()
        self.optimizer.step()
        self.guard.step()

    def save(self) -> dict[str, Tensor]:
        assert self.guard.save(wait=True)
        return self.held()

    def held(self) -> dict[str, Tensor]:
        """Every bit of it, copied, from the table's own books."""
        slots = {name: slot.clone() for name, slot in self.optimizer.state[self.table.weight].items()}
        found = {name: value.clone() for name, value in self.table.state_dict().items()}
        index = torch.tensor(sorted(self.table._row_of.items()), dtype=torch.int64).reshape(-1, 2)
        return {**found, **slots, "index": index, "clock": torch.tensor(self.table.get_state()["clock"])}

    def die(self) -> None:
        """End without saving anything new."""
        self.guard.__exit__(RuntimeError, RuntimeError("killed"), None)


def assert_same(now: dict[str, Tensor], before: dict[str, Tensor]) -> None:
    assert now.keys() == before.keys()
    for name, values in before.items():
        assert torch.equal(now[name], values), f"{name} differs"


class Life(RuleBasedStateMachine):
    """Keys come, are used and go; saves, deaths and resumes in between. The model is a copy of the last save."""

    forgets = ""

    @initialize(strategy=st.sampled_from([hf.Consecutive(), hf.OneShot(), hf.Intermittent(), hf.Grid()]))
    def begin(self, strategy: hf.Strategy) -> None:
        self.options = {"strategy": strategy, "retention": hf.KeepAll()}
        self.store = MemoryStore()
        self.training: Training | None = Training(self.store, forgets=self.forgets, **self.options)
        self.training.resume()
        self.training.train(1, 2)
        self.saved = {self.training.guard.steps: self.training.save()}

    @precondition(lambda self: self.training is not None)
    @rule(keys=st.lists(st.integers(0, 9), min_size=1, max_size=3))
    def train(self, keys: list[int]) -> None:
        self.training.train(*keys)

    @precondition(lambda self: self.training is not None)
    @rule(key=st.integers(0, 9))
    def look_up(self, key: int) -> None:
        """Without a gradient: only the table itself knows which row changed."""
        self.training.table.find(key)

    @precondition(lambda self: self.training is not None and self.training.table._row_of)
    @rule(number=st.integers(0, ROWS - 1))
    def evict(self, number: int) -> None:
        held = sorted(self.training.table._row_of)
        self.training.table.evict(held[number % len(held)])

    @precondition(lambda self: self.training is not None)
    @rule()
    def save(self) -> None:
        self.saved[self.training.guard.steps] = self.training.save()

    @precondition(lambda self: self.training is not None)
    @rule()
    def die(self) -> None:
        self.training.die()
        self.training = None

    @precondition(lambda self: self.training is None)
    @rule(number=st.integers(0, 9))
    def resume(self, number: int) -> None:
        steps = sorted(self.saved)
        step = steps[-1 - number % len(steps)]
        self.training = Training(self.store, forgets=self.forgets, **self.options)
        assert self.training.resume(step=step) == step
        assert_same(self.training.held(), self.saved[step])
        self.saved = {each: held for each, held in self.saved.items() if each <= step}

    def teardown(self) -> None:
        if getattr(self, "training", None) is not None:
            self.training.die()


FAST = settings(max_examples=8, stateful_step_count=12, deadline=None, suppress_health_check=list(HealthCheck))
TestLife = Life.TestCase
TestLife.settings = FAST


def live_through(change: str, forgets: str) -> None:
    """A save, a change that no gradient shows, another save, a death and a resume."""
    life = Life()
    life.forgets = forgets
    life.begin(strategy=hf.Consecutive())
    {"inserts": lambda: life.look_up(7), "uses": lambda: life.look_up(1), "evictions": lambda: life.evict(0)}[change]()
    life.save()
    life.die()
    try:
        life.resume(0)
    finally:
        life.teardown()


@pytest.mark.parametrize("change", ["inserts", "evictions", "uses"])
def test_a_table_that_does_not_tell_of_every_change_is_found_out(change: str) -> None:
    live_through(change, forgets="")
    with pytest.raises(AssertionError, match="differs"):
        live_through(change, forgets=change)


def saved_run(store: Store, **options: Any) -> Training:
    """Three keys in five rows, one of them in the row of an evicted one, in a baseline and a delta."""
    training = Training(store, strategy=hf.Consecutive(), **options)
    training.resume()
    training.train(101, 102, 103)
    training.save()
    training.table.evict(102)
    training.train(104)
    training.save()
    training.die()
    return training


def test_a_delta_holds_the_rows_whose_keys_changed_and_no_others() -> None:
    store = MemoryStore()
    training = saved_run(store)
    first, second = hf.open_run(store).checkpoints()
    assert (first.rows_written, second.rows_written) == (ROWS, 1)
    row = training.table.find(104)
    assert hf.open_run(store).read_rows("users", [row])["row.key"].tolist() == [104]


@pytest.mark.parametrize("rows", [3, 50])
def test_keys_move_to_a_table_with_another_number_of_rows(rows: int) -> None:
    store = MemoryStore()
    before = saved_run(store)
    after = Training(store, rows=rows, strategy=hf.Consecutive())
    assert after.resume() == 2
    by_key, slots = before.table.rows_by_key(), before.optimizer.state[before.table.weight]["sum"]
    found, moved = after.table.rows_by_key(), after.optimizer.state[after.table.weight]["sum"]
    assert {key: held[1:] for key, held in found.items()} == {key: held[1:] for key, held in by_key.items()}
    assert all(torch.equal(moved[found[key][0]], slots[by_key[key][0]]) for key in by_key)
    assert after.table.get_state() == before.table.get_state()
    after.train(101, 105)
    expected = after.save()
    after.die()
    again = Training(store, rows=rows)
    assert again.resume() == 3
    assert_same(again.held(), expected)
    again.die()


def test_a_table_with_fewer_rows_than_keys_is_refused_before_anything_is_written() -> None:
    store = MemoryStore()
    saved_run(store)
    small = Training(store, rows=2)
    with pytest.raises(ModelMismatch, match="3 keys of table users, which now has 2 rows; give it more rows"):
        small.resume()
    assert not small.table._row_of and not small.optimizer.state[small.table.weight]["sum"].any()
    small.die()


def test_keys_stay_exact_where_weights_have_few_bits() -> None:
    store = MemoryStore()
    training = Training(store, precision=hf.Bits(2), strategy=hf.Consecutive())
    training.resume()
    big = [2**62 + 1, -(2**63) + 1, 0]
    training.train(*big)
    expected = training.save()
    training.die()
    again = Training(store, precision=hf.Bits(2))
    again.resume()
    held = again.held()
    assert_same(*({name: each[name] for name in ("_keys", "_used_at", "index", "clock")} for each in (held, expected)))
    assert sorted(again.table._row_of) == sorted(big)
    again.die()


def test_a_model_that_finds_rows_by_numbers_is_refused_or_left_alone(caplog: pytest.LogCaptureFixture) -> None:
    store = MemoryStore()
    saved_run(store)
    plain = nn.ParameterDict({"users": nn.Parameter(torch.zeros(ROWS, DIM))})
    run, tables = hf.open_run(store), {"users": plain["users"]}
    with pytest.raises(ModelMismatch, match=r"finds its rows by keys in the checkpoint.*keyed="):
        run.restore(model=plain, tables=tables)
    with caplog.at_level(logging.WARNING):
        run.restore(model=plain, tables=tables, strict=False)
    assert "users (keys differ)" in caplog.text and not plain["users"].any()


def test_a_checkpoint_without_keys_is_refused() -> None:
    store, table = MemoryStore(), LruTable(ROWS, DIM)
    with hf.Checkpointer(store, model=nn.ModuleDict(), tables={"users": table.weight}, settings=SETTINGS) as guard:
        guard.save()
    keyed = LruTable(ROWS, DIM)
    with pytest.raises(ModelMismatch, match="by keys in the model, and the checkpoint holds none"):
        hf.open_run(store).restore(model=nn.ModuleDict(), keyed={"users": keyed})


def test_a_table_with_other_columns_is_refused() -> None:
    store = MemoryStore()
    saved_run(store)
    table = LruTable(ROWS, DIM)
    table._used_at = table._used_at.float()
    with pytest.raises(ModelMismatch, match="users has other columns in the checkpoint: used_at differ"):
        hf.open_run(store).restore(model=table, keyed={"users": table})
    hf.open_run(store).restore(model=table, keyed={"users": table}, strict=False)
    assert not table.rows_by_key() and table.get_state() == {"clock": 0}  # neither rows nor state


def test_a_run_restores_without_an_optimizer() -> None:
    store = MemoryStore()
    before = saved_run(store)
    table = LruTable(ROWS, DIM)
    hf.open_run(store).restore(model=table, keyed={"users": table})
    assert table.rows_by_key() == before.table.rows_by_key()


def test_an_exported_file_holds_the_keys(tmp_path: Path) -> None:
    store = MemoryStore()
    before = saved_run(store)
    hf.open_run(store).export(tmp_path / "model.safetensors")
    found = load_file(tmp_path / "model.safetensors")
    assert torch.equal(found["users.weight.row.key"], before.table.columns["key"])
    assert "users.weight.sum" not in found
    hf.open_run(store).export(tmp_path / "dcp", format="dcp")
    wanted = {"model": {"users.weight.row.key": torch.zeros(ROWS, dtype=torch.int64)}}
    dcp.load(wanted, checkpoint_id=tmp_path / "dcp", no_dist=True)
    assert torch.equal(wanted["model"]["users.weight.row.key"], before.table.columns["key"])


def test_followers_and_partial_recovery_refuse_keys() -> None:
    store = MemoryStore()
    training = saved_run(store)
    refused = pytest.raises(ModelMismatch, match="users finds its rows by keys, which a follower does not apply")
    with hf.Follower(store, model=training.table) as follower, refused:
        follower.update()
    again = Training(store)
    again.resume()
    with pytest.raises(ConfigurationError, match=r"'users' finds its rows by keys.*recover_fully"):
        again.guard.recover([0], of=2)
    before = again.held()
    again.train(105, 106)
    again.guard.recover_fully()
    assert_same(again.held(), before)
    again.die()


@pytest.mark.parametrize(
    ("keyed", "why"),
    [
        ([], "takes a dict"),
        ({"users": nn.Linear(2, 2)}, "no KeyedTable: it lacks columns, take_changed, restored"),
    ],
)
def test_what_is_no_keyed_table_is_refused(keyed: Any, why: str) -> None:
    with pytest.raises(ConfigurationError, match=why):
        hf.Checkpointer(MemoryStore(), model=nn.Linear(2, 2), keyed=keyed or [1])


def test_columns_that_do_not_fit_the_rows_are_refused() -> None:
    table = LruTable(ROWS, DIM)
    table._used_at = table._used_at[1:]
    with pytest.raises(ConfigurationError, match=r"column 'used_at' of keyed table 'users'.* 5 rows"):
        hf.Checkpointer(MemoryStore(), model=table, keyed={"users": table})
    table._keys = table._keys.int()
    with pytest.raises(ConfigurationError, match="needs a column 'key' of type int64"):
        hf.Checkpointer(MemoryStore(), model=table, keyed={"users": table})


def test_a_weight_with_two_names_is_refused() -> None:
    table = LruTable(ROWS, DIM)
    with pytest.raises(ConfigurationError, match="'users' and 'items' have the same weight"):
        hf.Checkpointer(MemoryStore(), model=table, keyed={"users": table, "items": table})


def test_a_row_that_the_table_does_not_have_is_refused() -> None:
    training = Training(MemoryStore())
    training.resume()
    training.table._changed.add(ROWS)
    with pytest.raises(ConfigurationError, match=r"take_changed\(\) of keyed table 'users'.*0 to 4"):
        training.guard.save()
    training.die()
