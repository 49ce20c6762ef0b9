"""Whatever is done to a run, in whatever order: what it lists is what was trained, bit for bit.

A hypothesis state machine trains, saves, kills, goes back, prunes and competes; its model is a dictionary of arrays.
"""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from torch import Tensor

import holdfast as hf
from holdfast.checkpoint.commit.chain import Chain
from holdfast.checkpoint.restore.model import ModelRestorer
from holdfast.checkpoint.training.state import TrainingState
from holdfast.checkpoint.training.tables import find_tables
from holdfast.errors import CheckpointNotFound, SaveFailed, TakenOver
from holdfast.format.catalog import DATA_PREFIX
from holdfast.policy import Retention, closure
from holdfast.storage import MemoryStore
from holdfast.types import CheckpointInfo
from tests.session.mortal import ROWS, Trainer, all_agents_ended, mortal_agents
from tests.tiny import build, same, snapshot

RETENTIONS: list[Retention] = [
    hf.KeepAll(),
    hf.KeepLast(1),
    hf.KeepLast(2) | hf.KeepTagged(),
    hf.KeepLast(1) | hf.KeepBest("auc"),
    hf.KeepEvery(4),
]
GRIDS = [hf.Grid(rule=hf.DeadShare(0.05), reset=False), hf.Grid(rule=hf.Pairs(0.2), reset=False, concatenate=False)]
PARTIAL = [  # rows are saved at every step at which no checkpoint is
    hf.Partial(priority=hf.MFU(r=0.5), consistent=hf.Consecutive()),
    hf.Partial(priority=hf.SSU(r=0.5), consistent=GRIDS[0]),
    hf.Partial(priority=hf.SCAR(r=0.5)),
]
indices = st.integers(0, 1000)  # of whatever there is, modulo its length: what there is depends on the agents' pace


class Training(RuleBasedStateMachine):
    """At most one trainer at a time, except while a second one takes the run over."""

    @initialize(
        strategy=st.sampled_from([hf.Full(), hf.OneShot(), hf.Consecutive(), hf.Intermittent(), *GRIDS, *PARTIAL]),
        retention=st.sampled_from(RETENTIONS),
        overlap=st.sampled_from(hf.Overlap),
        save=st.sampled_from([hf.Never(), hf.EverySteps(2)]),
    )
    def create(self, **options: Any) -> None:
        self.options = options
        self.store = MemoryStore()
        self.run = hf.open_run(self.store)
        self.trainer: Trainer | None = None
        self.truth: dict[int, dict[int, dict[str, Tensor]]] = {}  # by term and step
        self.acknowledged = (0, 0)  # the newest checkpoint, by term and step, that somebody was told of
        self.auc: dict[str, float] = {}  # by checkpoint
        self.world = ExitStack()
        self.world.enter_context(mortal_agents())
        self.train([0], edited_row=None, then="save and wait")

    # ---- a trainer's life ----------------------------------------------------------------------------------------

    @precondition(lambda self: self.trainer is None)
    @rule(index=indices)
    def go_back(self, index: int) -> None:
        live = [info for info in self.run.checkpoints() if not info.abandoned]
        step = live[index % len(live)].step if live else None
        self.acknowledged = (0, 0)  # what is ahead of that step is given up
        try:
            self.trainer = self.resumed(step)
        except CheckpointNotFound:  # an agent that was left behind committed once more, and dropped it
            assert step not in [info.step for info in self.run.checkpoints() if not info.abandoned]
            self.trainer = self.resumed(None)

    def resumed(self, step: int | None) -> Trainer:
        trainer = Trainer(self.store, seed=len(self.truth), **self.options)
        trainer.resume(step)
        self.truth[trainer.term] = trainer.states
        newest = self.newest()
        if newest is None:
            assert trainer.guard.steps == 0
        else:
            assert trainer.guard.steps == newest.step == (newest.step if step is None else step)
            assert same(trainer.state(), self.true_state(newest))
            self.acknowledged = (newest.term, newest.step)
        return trainer

    @rule(
        batches=st.lists(st.integers(0, 50), max_size=3),
        edited_row=st.none() | st.integers(0, ROWS[0] - 1),
        then=st.sampled_from(["train on", "save", "save with a name", "save and wait"]),
        lost=st.none() | st.integers(0, 3),
    )
    def train(self, batches: list[int], edited_row: int | None, then: str, lost: int | None = None) -> None:
        if self.trainer is None:
            self.trainer = self.resumed(None)
        self.current.train(batches, edited_row if batches else None, lost if batches else None)
        if then == "train on":
            return
        try:
            self.current.save("named" if "name" in then else None, wait="wait" in then)
        except SaveFailed:
            self.assert_an_agent_died()
        else:
            if "wait" in then:
                self.acknowledge(self.current.guard.steps)

    @precondition(lambda self: self.trainer is not None)
    @rule()
    def drain(self) -> None:
        try:
            self.current.guard.drain()
        except SaveFailed:
            self.assert_an_agent_died()
        else:
            self.acknowledge(self.current.guard.stats.last_commit_step)

    @precondition(lambda self: self.trainer is not None)
    @rule()
    def close(self) -> None:
        """Saves what is new, and tries again if its agent dies over it."""
        trainer, self.trainer = self.current, None
        trainer.guard.close()
        if (newest := self.newest()) is None:
            assert trainer.guard.steps == 0
        else:
            assert same(self.true_state(newest), trainer.state())
            self.acknowledged = (newest.term, newest.step)

    @precondition(lambda self: self.trainer is not None)
    @rule(patient=st.booleans())
    def kill_trainer(self, patient: bool) -> None:
        """Whoever waits for the agent that is left behind finds the last snapshot committed."""
        trainer, self.trainer = self.current, None
        agent = trainer.kill()
        if patient:
            assert agent.wait(20.0)
            if trainer.sealed_step is not None and not any(agent.doomed for agent in trainer.agents):
                self.acknowledged = max(self.acknowledged, (trainer.term, trainer.sealed_step))

    @precondition(lambda self: self.trainer is not None)
    @rule(after=st.integers(0, 15))
    def kill_agent(self, after: int) -> None:
        self.current.agents[-1].die(after=after)

    @precondition(lambda self: self.trainer is not None)
    @rule()
    def let_another_trainer_take_over(self) -> None:
        first, self.trainer = self.current, self.resumed(None)
        listed = [info.id for info in self.run.checkpoints()]
        with pytest.raises(TakenOver):
            for _ in range(3):  # an agent that dies first hides it
                try:
                    first.train([1], None)
                    first.guard.save(wait=True)
                except SaveFailed:
                    assert any(agent.doomed for agent in first.agents)
        with pytest.raises(TakenOver):
            first.guard.close()
        assert [info.id for info in self.run.checkpoints()] == listed

    # ---- from outside --------------------------------------------------------------------------------------------

    @rule(index=indices)
    def restore(self, index: int) -> None:
        if (info := self.one_of_the_listed(index)) is None:
            return
        model, optimizers = build(99, ROWS)
        try:
            restored = self.run.restore(info.step, model=model, optimizer=optimizers)
        except CheckpointNotFound:
            self.assert_dropped_meanwhile(info)
        else:
            assert same(snapshot(model, optimizers), self.true_state(restored))

    @rule(index=indices, table=st.integers(0, 1), ids=st.lists(st.integers(0, ROWS[1] - 1), max_size=5))
    def read_rows(self, index: int, table: int, ids: list[int]) -> None:
        if (info := self.one_of_the_listed(index)) is None:
            return
        try:
            columns = self.run.read_rows(f"emb.{table}", ids, step=info.step)
        except CheckpointNotFound:
            self.assert_dropped_meanwhile(info)
            return
        state = self.true_state(info)
        truth = {"weight": state[f"emb.{table}.weight"]}
        truth |= {name: state[f"0/{table}/{name}"] for name in columns if name != "weight"}
        assert same(columns, {name: values[torch.tensor(ids, dtype=torch.int64)] for name, values in truth.items()})

    @rule(retention=st.sampled_from(RETENTIONS))
    def prune(self, retention: Retention) -> None:
        before = self.run.checkpoints()
        if not before:
            return
        self.run.prune(retention, grace_s=0.0)
        if self.is_idle:
            kept = closure(before, retention.kept(before, 0.0))
            assert [info.id for info in self.run.checkpoints()] == [info.id for info in before if info.id in kept]
            held = {item.name.removeprefix(DATA_PREFIX).partition("/")[0] for item in self.store.list(DATA_PREFIX)}
            assert not held & {info.id for info in before if info.id not in kept}

    @rule(index=indices, auc=st.floats(0.0, 1.0))
    def annotate(self, index: int, auc: float) -> None:
        if (info := self.one_of_the_listed(index)) is None:
            return
        try:
            self.run.annotate(info.step, auc=auc)
        except CheckpointNotFound:
            self.assert_dropped_meanwhile(info)
        else:
            self.auc[info.id] = auc

    # ---- what must hold ------------------------------------------------------------------------------------------

    @invariant()
    def nothing_acknowledged_is_lost(self) -> None:
        newest = self.newest()
        assert self.acknowledged <= ((newest.term, newest.step) if newest else (0, 0))

    def teardown(self) -> None:
        if not hasattr(self, "world"):
            return
        if self.trainer is not None:
            self.kill_trainer(patient=True)
        self.world.close()
        self.nothing_acknowledged_is_lost()
        head = Chain(self.store).head()
        for entry in head.entries if head else ():
            model, optimizers = build(98, ROWS)
            tables = find_tables({"": model}, optimizers)
            state = TrainingState({"": model}, optimizers, {}, tables)
            ModelRestorer(self.store, tables, state, None).restore(head, entry)
            assert same(snapshot(model, optimizers), self.true_state(entry.info))
            assert entry.info.metrics.get("auc") == self.auc.get(entry.info.id)
        assert self.run.verify() == []

    # ---- helpers -------------------------------------------------------------------------------------------------

    @property
    def current(self) -> Trainer:
        assert self.trainer is not None
        return self.trainer

    @property
    def is_idle(self) -> bool:
        """Whether no agent can be at work."""
        return self.trainer is None and all_agents_ended()

    def newest(self) -> CheckpointInfo | None:
        live = [info for info in self.run.checkpoints() if not info.abandoned]
        return live[-1] if live else None

    def true_state(self, info: CheckpointInfo) -> dict[str, Tensor]:
        return self.truth[info.term][info.step]

    def acknowledge(self, step: int | None) -> None:
        if step is not None:
            self.acknowledged = max(self.acknowledged, (self.current.term, step))

    def one_of_the_listed(self, index: int) -> CheckpointInfo | None:
        """The checkpoint that the run understands by one of the listed steps."""
        infos = self.run.checkpoints()
        if not infos:
            return None
        step = infos[index % len(infos)].step
        candidates = [info for info in infos if info.step == step]
        return ([info for info in candidates if not info.abandoned] or candidates)[-1]

    def assert_dropped_meanwhile(self, info: CheckpointInfo) -> None:
        assert info.id not in [other.id for other in self.run.checkpoints()]

    def assert_an_agent_died(self) -> None:
        assert any(agent.doomed for agent in self.current.agents)


FAST = settings(
    max_examples=50,
    stateful_step_count=25,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)
TestTraining = Training.TestCase
TestTraining.settings = FAST
TestTraining.pytestmark = [pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")]


@pytest.mark.slow
@pytest.mark.timeout(1800)
class TestTrainingForLong(Training.TestCase):
    settings = settings(FAST, max_examples=400, stateful_step_count=40, derandomize=False)
