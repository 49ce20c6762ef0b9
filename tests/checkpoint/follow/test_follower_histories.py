"""Whatever is saved and whenever a follower looks: its model is the newest checkpoint, bit for bit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import holdfast as hf
from holdfast.policy import Rule, Strategy
from holdfast.run import Run
from holdfast.storage import LocalStore, MemoryStore
from tests.crash.test_grid_readers import Reading
from tests.grid import ROWS, Model, State, Trainer, Truth, restored, same

STRATEGIES = [
    hf.Full(),
    hf.OneShot(),
    hf.Consecutive(),
    hf.Intermittent(),
    hf.Grid(rule=hf.DeadShare(0.05), reset=False),
    hf.Grid(rule=hf.Pairs(0.02), reset=True),
]
RETENTIONS = [hf.KeepAll(), hf.KeepLast(1), hf.KeepLast(3), hf.KeepEvery(2)]

_ids = st.fixed_dictionaries(
    {}, optional={name: st.sets(st.integers(0, rows - 1), max_size=rows).map(sorted) for name, rows in ROWS.items()}
)
_saves = st.tuples(st.just("save"), _ids, st.sampled_from([(), (), ("short",)]), st.booleans())
_others = st.tuples(st.sampled_from(["look", "restart", "go back", "prune"]), st.integers(0, 100))
HISTORIES = st.lists(st.one_of(_saves, _saves, _others), min_size=1, max_size=14)


class Following:
    """A run to which things happen, and those who follow it."""

    def __init__(self, strategy: Strategy, retention: hf.Retention) -> None:
        self.store, self.truth = MemoryStore(), Truth()
        self.run = Run(self.store)
        self.strategy, self.retention = strategy, retention
        self.trainer = self._train(None)
        self.models = {name: Model() for name in ("newest", "each", "spilling")}
        settings: dict[str, dict[str, Any]] = {"newest": {}, "each": {"each": True}, "spilling": {"staging_bytes": 0}}
        self.followers = {
            name: hf.Follower(self.store, model.module, tables={"flat": model.flat}, **settings[name])
            for name, model in self.models.items()
        }

    def _train(self, step: int | None) -> Trainer:
        return Trainer(self.store, self.strategy, self.truth, step=step, retention=self.retention)

    def happen(self, what: str, *details: Any) -> None:
        if what == "save":
            ids, whole, arranged = details
            self.trainer.save(ids, whole=whole, arranged=arranged and isinstance(self.strategy, hf.Grid))
        elif what == "look":
            self.look()
        elif what == "prune":
            if self.run.checkpoints():
                self.run.prune(hf.KeepLast(1 + details[0] % 3), grace_s=0.0)
        else:
            self._restart(details[0] if what == "go back" else None)

    def _restart(self, choice: int | None) -> None:
        self.trainer.guard.close()
        live = [info.step for info in self.run.checkpoints() if not info.abandoned]
        self.trainer = self._train(live[choice % len(live)] if choice is not None and live else None)

    def look(self) -> None:
        """Each follower comes to the newest checkpoint, and then finds nothing new."""
        newest = [info for info in self.run.checkpoints() if not info.abandoned][-1:]
        for name, follower in self.followers.items():
            while (update := follower.update()) is not None:
                self.check(name, update.checkpoint.id)
                assert update.whole or update.previous is not None
            assert follower.checkpoint is None if not newest else follower.step == newest[0].step
            assert follower.lag.checkpoints == 0

    def check(self, name: str, checkpoint: str) -> None:
        assert same(weights(self.models[name].state()), weights(restored(self.run, checkpoint)))


def weights(state: State) -> State:
    """Without the optimizer's columns."""
    return {table: {"weight": columns["weight"]} for table, columns in state.items()}


@pytest.mark.parametrize("strategy", STRATEGIES, ids=repr)
@settings(max_examples=15, deadline=None)
@given(history=HISTORIES, retention=st.sampled_from(RETENTIONS))
def test_followers_hold_the_newest_checkpoint_after_any_history(
    strategy: Strategy, history: list[tuple[Any, ...]], retention: hf.Retention
) -> None:
    following = Following(strategy, retention)
    for what, *details in history:
        following.happen(what, *details)
    following.trainer.guard.close()
    following.look()


@pytest.mark.parametrize("strategy", STRATEGIES, ids=repr)
def test_followers_of_files_read_the_same(strategy: Strategy, tmp_path: Path) -> None:
    store, truth, model = LocalStore(tmp_path), Truth(), Model()
    follower = hf.Follower(tmp_path, model.module, tables={"flat": model.flat})
    with Trainer(store, strategy, truth) as trainer:
        trainer.save({"wide": [1, 2, 3], "short": [0], "flat": [4]})
        assert follower.update()
        for rows in ([1, 5], [5, 6, 7], [2]):
            newest = trainer.save({"wide": rows, "flat": rows})
        update = follower.update()
    assert update is not None and update.whole == isinstance(strategy, hf.Full)
    assert same(weights(model.state()), weights(truth.states[newest]))


@pytest.mark.parametrize("rule", [hf.DeadShare(0.05), hf.Pairs(0.0)], ids=repr)
def test_what_is_rearranged_and_collected_while_a_follower_reads_does_not_mislead_it(rule: Rule) -> None:
    number = 0
    while True:
        number += 1
        reading, model = Reading(rule), Model()
        follower = hf.Follower(reading.store, model.module, tables={"flat": model.flat})
        assert reading.read(number, lambda *_, follower=follower: follower.update() is not None)
        happened = reading.happened
        while follower.update() is not None:
            pass
        newest = reading.trainer.remember()
        assert follower.checkpoint is not None and follower.checkpoint.id == newest
        assert same(weights(model.state()), weights(reading.truth.states[newest]))
        reading.trainer.guard.close()
        if not happened:
            break
    assert number > 5
