"""The process of a worker: runs the user's ``train``, and again from a checkpoint where everyone goes back to one."""

from __future__ import annotations

import gc
import traceback
from collections.abc import Callable
from typing import Any

from holdfast.cluster.core.members import Member
from holdfast.cluster.core.worker import Credits, WorkerCore
from holdfast.cluster.heap import keep_freed_memory
from holdfast.cluster.job import Job
from holdfast.cluster.launch import functions
from holdfast.cluster.launch.base import Surroundings
from holdfast.cluster.link import Link
from holdfast.cluster.payload import Arrays
from holdfast.cluster.placement import Placement
from holdfast.cluster.train.build import build
from holdfast.cluster.train.settings import LoopSettings
from holdfast.cluster.worker.exchange import LifeOver, SocketExchange
from holdfast.cluster.worker.worker import Worker
from holdfast.policy import Partial


def run(payload: bytes, surroundings: Surroundings) -> None:
    """Be a worker until told to end."""
    keep_freed_memory()
    job, member = Job.unpack(payload)
    model, train = functions.load(job.model), functions.load(job.train)
    next_life: Member | None = member
    while next_life is not None:
        next_life = _Life(job, next_life, surroundings).live(model, train)


class _Life:
    """As one member."""

    def __init__(self, job: Job, member: Member, surroundings: Surroundings) -> None:
        self._job = job
        self._placement = Placement(job.plan, job.servers)
        self._worker: Worker | None = None
        pacing = job.pacing
        self._core = WorkerCore(
            member,
            Credits(pulls=pacing.pulls, pushes=pacing.pushes),
            synchronous=pacing.synchronous,
            report=self._report,
            dense=self._dense,
        )
        self._link = Link(job, member, surroundings)
        self._exchange = SocketExchange(self._link, self._core, self._placement)

    def live(self, model: Callable[[], Any], train: Callable[[Any], object]) -> Member | None:
        """Train until the data end or everyone goes back; who to be next, or None."""
        try:
            self._train(model, train)
        except LifeOver:
            pass
        finally:
            self._link.close()
        return self._core.next_life

    def _train(self, model: Callable[[], Any], train: Callable[[Any], object]) -> None:
        try:
            built = build(model, self._job.tables)
            place = self._exchange.start()
            self._worker = Worker(
                built,
                self._placement,
                self._exchange,
                self._settings(),
                index=self._core.member.index,
                count=self._core.workers,
                place=place,
                steps=self._core.progress.pushed,
                needs_length=self._needs_length,
                report_steps=self._job.pacing.report_steps(self._core.workers),
            )
            gc.freeze()  # modules and their parameters stay: a collection in every few steps need not visit them
            train(self._worker)
            self._exchange.tell(self._worker.report(sums=True))
        except (LifeOver, KeyboardInterrupt):  # a signal from outside: a death like any other
            raise
        except SystemExit as end:
            self._exchange.fail(f"{traceback.format_exc()}{_advice(end)}")
        except BaseException:
            self._exchange.fail(traceback.format_exc())
        self._exchange.finish()

    @property
    def _needs_length(self) -> bool:
        strategy = self._job.saving.strategy
        budget = strategy.budget if isinstance(strategy, Partial) else None
        return budget is not None and budget.total_samples is None

    def _settings(self) -> LoopSettings:
        job, pacing = self._job, self._job.pacing
        return LoopSettings(
            lr_tables=job.optimizer.lr,
            lr_dense=job.dense_optimizer.lr,
            ahead=pacing.ahead,
            on_nan=pacing.on_nan,
            on_bad_ids=pacing.on_bad_ids,
        )

    def _report(self) -> bytes:
        return b"" if self._worker is None else self._worker.report(sums=True)

    def _dense(self, server: int) -> Arrays | None:
        """This worker's copy of a server's piece of the dense vector, if it has one yet."""
        if self._worker is None or not self._worker.has_dense:
            return None
        piece = self._placement.dense[server]
        return (self._worker.dense_values()[piece.start : piece.end].copy(),)


def _advice(end: SystemExit) -> str:
    """What to do instead: a job does not end because one of its processes does."""
    called = "" if end.code is None else repr(end.code)
    return f"sys.exit({called}) does not end a job; return from train where the training ends, and raise where it fails"
