"""A short life of a run, always the same: saves, a change of mind, retention that drops, collection that deletes.

Timeline 1 trains to step 6; then the script goes back to step 4 and trains timeline 2, on other batches, to step 9.
Whoever starts it on a run that was interrupted anywhere continues to the same end. Every checkpoint is tagged with
its timeline and step, so that there is one right answer to what a checkpoint must hold.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import count

import numpy as np
import torch
from torch.optim import Adagrad, Adam, Optimizer, SparseAdam

import holdfast as hf
from holdfast.policy import Precision, Strategy
from holdfast.runtime import Runtime
from holdfast.storage import Store
from holdfast.testing.runtime import with_runtime
from tests.tiny import Tiny, snapshot

STRATEGIES = {
    "full": hf.Full(),
    "one_shot": hf.OneShot(),
    "consecutive": hf.Consecutive(),
    "intermittent": hf.Intermittent(),
    "grid": hf.Grid(rule=hf.DeadShare(0.05), reset=False),
    "pairs": hf.Grid(rule=hf.Pairs(0.0), reset=False, concatenate=False),
}

PRECISIONS = {"differences": hf.Bits(2, difference=True)}  # of scripts that do not store rows exactly
SCRIPTS: dict[str, Strategy] = {**STRATEGIES, "differences": STRATEGIES["grid"]}

RETENTION = hf.KeepLast(2)
SAVES = {1: (2, 4, 6), 2: (6, 8, 9)}
BACK_TO = 4
END = "2.9"
_ROWS = (700, 24)
_DIM = 8
_EVERY_ROW_AT = 5  # a step that touches every row: a differential checkpoint after it is as large as a baseline

State = dict[str, torch.Tensor]
Acknowledged = Callable[[str, State], None]

SETTINGS = hf.Settings(
    buffer_bytes=2 * 65536,
    frame_bytes=65536,
    grace_s=0.0,
    uploads=1,
    retry_s=0.0,
    reserve_bytes=0,
    handle_sigterm=False,
)


def runtime(life: int) -> Runtime:
    """No chance and no time: with one upload at a time, a life has the same operations whenever it is lived.

    The trainer and its agent draw their names from sources of their own, so that neither's depend on the other's speed.
    """
    main = threading.current_thread()
    trainers, agents = count(1), count(0x80_0000)
    return Runtime(
        wall_s=lambda: 1e9,
        sleep=lambda _: None,
        monotonic_s=lambda: 0.0,
        token=lambda: f"{life:02x}{next(trainers if threading.current_thread() is main else agents):06x}",
        wait=lambda event, _: threading.Event.wait(event),
    )


class Timeline:
    """The number of the timeline that training is on, saved with the rest."""

    def __init__(self) -> None:
        self.number = 1

    def state_dict(self) -> dict[str, int]:
        return {"number": self.number}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.number = state["number"]


class Training:
    """A model with a table under SparseAdam, one under Adagrad, and a dense part under Adam."""

    def __init__(self, rows: Sequence[int] = _ROWS) -> None:
        torch.manual_seed(0)
        random.seed(0)
        np.random.seed(0)
        self.rows = tuple(rows)
        self.model = Tiny(rows, _DIM)
        tables = [table.weight for table in self.model.emb]
        self.optimizers: list[Optimizer] = [
            SparseAdam(tables[:1]),
            Adagrad(tables[1:]),
            Adam(self.model.top.parameters()),
        ]
        self.timeline = Timeline()

    @property
    def extra(self) -> dict[str, Timeline]:
        return {"timeline": self.timeline}

    def step(self, number: int) -> torch.Tensor:
        """One optimizer step on the batch of that number in this timeline."""
        for optimizer in self.optimizers:
            optimizer.zero_grad()
        loss = (self.model(self._batch(number)) - 1.0).square().mean()
        loss.backward()
        for optimizer in self.optimizers:
            optimizer.step()
        return loss.detach()

    def state(self) -> State:
        """Every bit of it."""
        return {**snapshot(self.model, self.optimizers), "timeline": torch.tensor(self.timeline.number)}

    def _batch(self, number: int) -> torch.Tensor:
        if (self.timeline.number, number) == (2, _EVERY_ROW_AT):
            return torch.arange(max(self.rows)).reshape(-1, 1, 1).expand(-1, len(self.rows), 1)
        generator = torch.Generator().manual_seed(100 * self.timeline.number + number)
        return torch.randint(0, 100_000, (4, len(self.rows), 2), generator=generator)


def play(
    store: Store,
    strategy: Strategy,
    world: Runtime,
    acknowledged: Acknowledged = lambda tag, state: None,
) -> State:
    """Run the script from wherever the run stands to its end; the state there.

    ``acknowledged`` is called with the tag and the state of every checkpoint that was confirmed as committed.
    """
    with trainer(store, strategy, world) as (training, guard):
        guard.resume()
        on_second = training.timeline.number == 2
        _train(training, guard, acknowledged)
    if not on_second:
        with trainer(store, strategy, world) as (training, guard):
            guard.resume(step=BACK_TO)
            training.timeline.number = 2
            _train(training, guard, acknowledged)
    return training.state()


def play_rounded(
    store: Store,
    strategy: Strategy,
    precision: Precision,
    world: Runtime,
    acknowledged: Acknowledged = lambda tag, state: None,
) -> State:
    """The same with rows that are not stored exactly: each save by a trainer of its own.

    So all training goes on from what is stored, and an interruption, wherever it comes, changes nothing.
    """
    back_to = None
    while True:
        with trainer(store, strategy, world, precision) as (training, guard):
            guard.resume(back_to)
            number, step = training.timeline.number, guard.steps
            if step:
                acknowledged(f"{number}.{step}", training.state())
            if f"{number}.{step}" == END:
                return training.state()
            if back_to is not None:
                training.timeline.number = number = 2
            elif step == SAVES[number][-1]:
                back_to = BACK_TO
                continue
            back_to = None
            _train(training, guard, lambda tag, state: None, saves=1)


@contextmanager
def trainer(
    store: Store,
    strategy: Strategy,
    world: Runtime,
    precision: Precision = hf.Exact(),  # noqa: B008 - frozen
) -> Iterator[tuple[Training, hf.Checkpointer]]:
    """A trainer of the script, as a process that starts would make it."""
    training = Training()
    with with_runtime(hf.Checkpointer, world)(
        store,
        model=training.model,
        optimizer=training.optimizers,
        extra=training.extra,
        save=hf.Never(),
        strategy=strategy,
        precision=precision,
        retention=RETENTION,
        settings=SETTINGS,
    ) as guard:
        yield training, guard


def _train(training: Training, guard: hf.Checkpointer, acknowledged: Acknowledged, *, saves: int | None = None) -> None:
    """Train and save to the end of the timeline, or so many saves far."""
    due = [step for step in SAVES[training.timeline.number] if step > guard.steps][:saves]
    while due and guard.steps < due[-1]:
        guard.step(loss=training.step(guard.steps + 1))
        if guard.steps in due:
            tag = f"{training.timeline.number}.{guard.steps}"
            guard.save(tag=tag, wait=True)
            guard.drain(arranged=True)  # in turn: a life must have the same operations whenever it is lived
            acknowledged(tag, training.state())
            if guard.steps == SAVES[training.timeline.number][1]:
                guard.annotate(auc=0.5)  # a commit of its own
