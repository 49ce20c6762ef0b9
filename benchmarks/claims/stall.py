"""How long a training loop waits for a save, beside PyTorch's own ways to save.

A DLRM trains on while its saves are written. For every save two things are measured: the wait, until the call returns
and the loop goes on; and the extra wall time, from the call until the save is durable, less what the steps done
meanwhile would have taken undisturbed. All savers take turns on the same model in the same process, with the same
threads; the first round warms them up and is dropped (those that keep nothing from save to save are left out of it).
"""

from __future__ import annotations

import itertools
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

import holdfast as hf
from benchmarks.claims._savers import Alternate, DcpBest, DcpThread, Holdfast, Saver, TorchSave
from benchmarks.data.schema import Batch
from benchmarks.data.synthetic import ClickStream
from benchmarks.report import Figure, Report, Table
from benchmarks.training import Learner, build_dlrm, train_step

SEED = 3
DIM = 64
BOTTOM, TOP = (512, 256), (512, 512, 256)  # CPR's widths for Criteo Terabyte, whose vectors have 64 numbers too
BATCHES = 32
DELTA_SHARE = 0.1  # of all rows
SETTLE_STEPS = 1  # after a save, while its files are deleted
UNDISTURBED_STEPS = 3  # then, before the next save
SLOW = ("dcp_thread", "torch_save")  # not what the bars are measured against: few rounds, none to warm up, are enough


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """How much to measure."""

    scale: float  # of Criteo Kaggle's cardinalities; 0.125 makes tables of 1.08 GB, and as much in slots
    batch_size: int
    rounds: int  # the first is not counted
    slow_rounds: int  # from the second on


PLANS = {
    "tiny": Plan(scale=0.0005, batch_size=64, rounds=2, slow_rounds=1),
    "small": Plan(scale=0.125, batch_size=2048, rounds=3, slow_rounds=1),
    "full": Plan(scale=0.25, batch_size=2048, rounds=11, slow_rounds=3),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """One save: how long the loop waited, how long until it was durable, and the steps done in that time."""

    wait_s: float
    wall_s: float
    steps: int
    step_s: float  # the median undisturbed step of the same round

    @property
    def extra_s(self) -> float:
        """What the save took from the training."""
        return self.wall_s - self.steps * self.step_s


def run(scale: str) -> Report:
    plan = PLANS[scale]
    stream = ClickStream(SEED, plan.scale)
    learner = build_dlrm(stream.cardinalities, DIM, bottom=BOTTOM, top=TOP, seed=SEED)
    batches = [stream.batch(index, plan.batch_size) for index in range(BATCHES)]
    rows = delta_rows(stream.cardinalities, batches)
    with _savers(learner, rows) as (savers, guard):
        trainer = Trainer(learner, batches, after_step=guard.step)
        rounds = [_round(trainer, _turns(savers, plan, number)) for number in range(plan.rounds)]
    warm = {name: [saves[name] for saves in rounds[1:] if name in saves] for name in savers}
    share = sum(map(len, rows.values())) / sum(stream.cardinalities)
    return Report(title="What a save takes from the training", tables=[_table(warm)], figures=_figures(warm, share))


class Trainer:
    """A training loop that can be asked for one more step."""

    def __init__(self, learner: Learner, batches: Sequence[Batch], after_step: Callable[[], None]) -> None:
        self._learner = learner
        self._batches = itertools.cycle(batches)
        self._after_step = after_step

    def step(self) -> float:
        """Make one step; how many seconds it took."""
        started_s = time.perf_counter()
        train_step(self._learner.model, next(self._batches), self._learner.optimizers)
        self._after_step()
        return time.perf_counter() - started_s

    def save(self, saver: Saver) -> tuple[float, float, int]:
        """Save and train on until the save is durable: the wait, the wall time, the steps."""
        saver.prepare()
        started_s = time.perf_counter()
        durable = saver.save()
        wait_s = time.perf_counter() - started_s
        steps = 0
        while not durable():
            self.step()
            steps += 1
        wall_s = time.perf_counter() - started_s
        saver.clean_up()
        return wait_s, wall_s, steps


def _round(trainer: Trainer, savers: dict[str, Saver]) -> dict[str, Measured]:
    """Every saver once, with undisturbed steps before each."""
    undisturbed: list[float] = []
    saves = {}
    for name, saver in savers.items():
        for _ in range(SETTLE_STEPS):
            trainer.step()
        undisturbed += [trainer.step() for _ in range(UNDISTURBED_STEPS)]
        saves[name] = trainer.save(saver)
    step_s = statistics.median(undisturbed)
    return {
        name: Measured(wait_s=wait_s, wall_s=wall_s, steps=steps, step_s=step_s)
        for name, (wait_s, wall_s, steps) in saves.items()
    }


def _turns(savers: dict[str, Saver], plan: Plan, number: int) -> dict[str, Saver]:
    """Who saves in a round; who goes first changes, and the delta follows the full save."""
    first = ["holdfast_full", "dcp_best"] if number % 2 else ["dcp_best", "holdfast_full"]
    slow = SLOW if 0 < number <= plan.slow_rounds else ()
    return {name: savers[name] for name in (*first, "holdfast_delta", *slow)}


@contextmanager
def _savers(learner: Learner, rows: dict[str, Tensor]) -> Iterator[tuple[dict[str, Saver], hf.Checkpointer]]:
    """All savers, and the guard that the loop calls in every step whoever saves."""
    with tempfile.TemporaryDirectory(prefix="holdfast-stall-") as name, ExitStack() as stack:
        folder = Path(name)
        guard = stack.enter_context(
            hf.Checkpointer(
                folder / "holdfast",
                model=learner.model,
                optimizer=learner.optimizers,
                save=hf.Never(),
                strategy=Alternate(),
                retention=hf.KeepLast(1),
                settings=hf.Settings(grace_s=0.0, handle_sigterm=False, buffer_bytes=_state_bytes(learner)),
            )
        )
        savers: dict[str, Saver] = {
            "holdfast_full": Holdfast(guard),
            "holdfast_delta": Holdfast(guard, rows),
            "dcp_best": stack.enter_context(closing(DcpBest(learner, folder / "dcp_best"))),
            "dcp_thread": DcpThread(learner, folder / "dcp_thread"),
            "torch_save": TorchSave(learner, folder / "torch_save"),
        }
        yield savers, guard


def _state_bytes(learner: Learner) -> int:
    """Weights and Adagrad's sums, with some room."""
    return int(2.05 * sum(parameter.nbytes for parameter in learner.model.parameters())) + 2**26


def delta_rows(cardinalities: Sequence[int], batches: Sequence[Batch]) -> dict[str, Tensor]:
    """The rows that a delta shall hold: all that training touches, and scattered ones of all tables up to the share."""
    touched = torch.zeros(sum(cardinalities), dtype=torch.bool)
    first_rows = torch.tensor([0, *itertools.accumulate(cardinalities)][:-1])
    for batch in batches:
        touched[(batch.ids + first_rows).flatten()] = True
    untouched = (~touched).nonzero().squeeze(1)
    missing = max(0, round(DELTA_SHARE * len(touched)) - int(touched.sum()))
    generator = torch.Generator().manual_seed(SEED)
    touched[untouched[torch.randperm(len(untouched), generator=generator)[:missing]]] = True
    tables = touched.split(list(cardinalities))
    return {f"emb.{field}": rows.nonzero().squeeze(1) for field, rows in enumerate(tables)}


def _figures(warm: dict[str, list[Measured]], delta_share: float) -> dict[str, Figure]:
    wait_s = {name: _median(save.wait_s for save in saves) for name, saves in warm.items()}
    extra_s = {name: _median(save.extra_s for save in saves) for name, saves in warm.items()}
    figures: dict[str, Figure] = {
        "delta_stall_over_dcp_best": wait_s["holdfast_delta"] / wait_s["dcp_best"],
        "full_stall_over_dcp_best": wait_s["holdfast_full"] / wait_s["dcp_best"],
        "extra_wall_per_full_save_over_dcp_best": extra_s["holdfast_full"] / extra_s["dcp_best"],
        "delta_rows_share": delta_share,
        "undisturbed_step_s": _median(save.step_s for saves in warm.values() for save in saves),
    }
    for name, saves in warm.items():
        figures[f"{name}_wait_s"] = wait_s[name]
        figures[f"{name}_extra_wall_s"] = extra_s[name]
        figures[f"{name}_durable_after_s"] = _median(save.wall_s for save in saves)
        for number, save in enumerate(saves, start=1):
            figures[f"{name}_wait_s_{number:02d}"] = save.wait_s
            figures[f"{name}_extra_wall_s_{number:02d}"] = save.extra_s
    return figures


def _table(warm: dict[str, list[Measured]]) -> Table:
    rows = [
        (
            name,
            len(saves),
            _spread([save.wait_s for save in saves]),
            _spread([save.extra_s for save in saves]),
            _spread([save.wall_s for save in saves]),
        )
        for name, saves in warm.items()
    ]
    headers = ("saver", "saves", "wait, s", "extra wall time, s", "durable after, s")
    caption = f"Median (least to most) of warm saves, {torch.get_num_threads()} threads"
    return Table(caption=caption, headers=headers, rows=rows)


def _median(values: Iterator[float]) -> float:
    return statistics.median(values)


def _spread(values: Sequence[float]) -> str:
    return f"{statistics.median(values):.3f} ({min(values):.3f} to {max(values):.3f})"
