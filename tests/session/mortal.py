"""A trainer and its agent, in this process, that can be killed as if they were processes of their own."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from unittest.mock import patch

import torch
from torch import Tensor

import holdfast as hf
from holdfast.checkpoint.trainer.launcher import AgentThread
from holdfast.checkpoint.wire.buffer import FrameBuffer
from holdfast.checkpoint.wire.messages import Configure
from holdfast.errors import CheckpointNotFound
from holdfast.policy import Retention, SavePolicy, Strategy
from holdfast.runtime import SYSTEM, Runtime
from holdfast.storage import MemoryStore, Store
from holdfast.testing.faults import Fault, FaultyStore
from holdfast.testing.power import PowerCut
from tests.tiny import build, snapshot, train_step

ROWS = (60, 12)
SETTINGS = hf.Settings(
    buffer_bytes=2**18, frame_bytes=2**16, grace_s=0.0, lease_s=0.3, takeover_s=10.0, handle_sigterm=False
)


class MortalAgent(AgentThread):
    """An agent that dies at a store operation, mute: nothing more reaches the store or its trainer."""

    born: list[MortalAgent] = []  # noqa: RUF012 - one test at a time

    def __init__(self, buffer: FrameBuffer, config: Configure, store: Store, *, runtime: Runtime = SYSTEM) -> None:
        self._reach = FaultyStore(store)
        self.term = config.term
        self.doomed = False
        super().__init__(buffer, config, self._reach, runtime=runtime)
        self.born.append(self)

    def die(self, *, after: int) -> None:
        """Let so many more store operations through, then die at the next; at once for 0."""
        self.doomed = True
        self._reach.plan = {self._reach.operations + after + 1: Fault.POWER_CUT}
        if after == 0:
            self._service.channel.hang_up()

    def wait(self, timeout_s: float | None) -> bool:
        try:
            return super().wait(timeout_s)
        except PowerCut:  # the agent's alone
            return True


@contextmanager
def mortal_agents() -> Iterator[None]:
    """Every agent on a thread is a mortal one meanwhile; all have ended when this returns."""
    MortalAgent.born.clear()
    with patch("holdfast.checkpoint.trainer.launcher.AgentThread", MortalAgent):
        yield
        for agent in MortalAgent.born:
            assert agent.wait(20.0)


def all_agents_ended() -> bool:
    return all(agent.wait(0.0) for agent in MortalAgent.born)


class Trainer:
    """A model in training under a Checkpointer; remembers the state after each of its steps."""

    def __init__(
        self,
        store: MemoryStore,
        *,
        save: SavePolicy,
        strategy: Strategy,
        retention: Retention,
        overlap: hf.Overlap,
        seed: int,
    ) -> None:
        self.model, self.optimizers = build(seed, ROWS)
        self.guard = hf.Checkpointer(
            store,
            model=self.model,
            optimizer=self.optimizers,
            save=save,
            strategy=strategy,
            retention=retention,
            overlap=overlap,
            settings=SETTINGS,
        )
        self.states: dict[int, dict[str, Tensor]] = {}
        self.sealed_step: int | None = None  # of the last snapshot

    @property
    def agents(self) -> list[MortalAgent]:
        """All that served this trainer; the last one serves it now."""
        return [agent for agent in MortalAgent.born if agent.term == self.term]

    def resume(self, step: int | None = None) -> None:
        self.guard.resume(step)
        self.term = MortalAgent.born[-1].term
        self.states[self.guard.steps] = self.state()

    def state(self) -> dict[str, Tensor]:
        return snapshot(self.model, self.optimizers)

    def train(self, batches: list[int], edited_row: int | None, lost: int | None = None) -> None:
        """Steps on these batches; before the first of them a quarter of the tables is lost and comes back, and a row
        is edited through ``.data``, and that is said.
        """
        if lost is not None:
            with suppress(CheckpointNotFound):  # then it never went
                self.guard.recover([lost], of=4)
        if edited_row is not None:
            self.model.emb[0].weight.data[edited_row] += 1.0
            self.guard.mark("emb.0", torch.tensor([edited_row]))
        for batch in batches:
            train_step(self.model, self.optimizers, batch)
            self.states[self.guard.steps + 1] = self.state()
            before = self.guard.stats.snapshots
            self.guard.step()
            if self.guard.stats.snapshots > before:
                self.sealed_step = self.guard.steps

    def save(self, tag: str | None, *, wait: bool) -> None:
        if self.guard.save(tag=tag):
            self.sealed_step = self.guard.steps
        if wait:
            self.guard.drain()

    def kill(self) -> MortalAgent:
        """Be gone without a word; the agent that is left behind."""
        agent = self.agents[-1]
        agent.channel.close()
        return agent
