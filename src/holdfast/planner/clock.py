"""A virtual clock: a short training stands for a long job, with saves, failures and what they cost (CPR, section 5.1).

The loop asks how many steps to train until something happens, and what it is:

    clock = VirtualClock(emulation)
    while (event := clock.next_event()) is not None:
        train(clock.steps_until_next())
        ...  # save, or lose the servers of ``event`` and recover
        clock.pass_event()
    train(clock.steps_until_next())
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from itertools import count

from holdfast.errors import ConfigurationError
from holdfast.planner.job import Overheads
from holdfast.planner.recovery import Recovery
from holdfast.planner.repairs import Repairs
from holdfast.planner.schedule import Failure, FailureSchedule
from holdfast.policy.arguments import is_finite_number, require, require_count


class EventKind(Enum):
    """The kinds of events in a virtual job."""

    SAVE = "save"  # the end of a save interval
    PRIORITY_SAVE = "priority save"  # in between, of the share r of the rows that matter most
    FAILURE = "failure"


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """Something that happens after a step."""

    kind: EventKind
    step: int  # steps of training before it
    at_s: float  # of virtual training
    last_save_step: int  # of the newest SAVE before it; 0: the baseline
    overheads: Overheads
    failure: Failure | None = None
    is_repaired: bool = False  # by parity: the failure set nothing back

    @property
    def steps_since_save(self) -> int:
        """What a failure loses: full recovery trains them again, partial recovery counts them as PLS."""
        return self.step - self.last_save_step


@dataclass(frozen=True, slots=True, kw_only=True)
class Emulation:
    """A virtual job, the steps that stand for it, and how it survives failures.

    With a ``priority_share`` r there is a save every r intervals, and all saves of an interval cost one ``save_s``
    together. The baseline at step 0 costs nothing: it is where the training came from.
    """

    steps: int
    schedule: FailureSchedule
    recovery: Recovery
    interval_s: float | None  # None: no save after the baseline
    save_s: float
    load_s: float
    reschedule_s: float = 0.0
    priority_share: float | None = None
    repairs: Repairs | None = None  # by parity; what it cannot repair is left to ``recovery``

    def __post_init__(self) -> None:
        require_count(self, "steps", self.steps)
        for name in ("save_s", "load_s", "reschedule_s"):
            value = getattr(self, name)
            require(is_finite_number(value) and value >= 0, self, name, "a finite number of at least 0", value)
        if (r := self.priority_share) is not None:
            require(is_finite_number(r) and 0 < r <= 1, self, "priority_share", "above 0 and at most 1", r)
        if self.interval_s is not None:
            self._check_interval(self.interval_s)

    @property
    def step_s(self) -> float:
        """The time that one step stands for."""
        return self.schedule.total_s / self.steps

    def events(self) -> tuple[Event, ...]:
        """Everything that happens, in order. Of a save and a failure at the same moment the save comes first."""
        repaired = dict(zip(self.schedule.failures, self._repaired(), strict=True))
        happenings: list[tuple[float, EventKind, float, Failure | None]] = []
        happenings += [(failure.at_s, EventKind.FAILURE, 0.0, failure) for failure in self.schedule.failures]
        happenings += [(at_s, kind, share, None) for at_s, kind, share in self._saves()]
        happenings.sort(key=lambda each: (each[0], each[1] is EventKind.FAILURE))
        events = list[Event]()
        saved_step, saved_s = 0, 0.0
        for at_s, kind, share, failure in happenings:
            step = min(self.steps, math.ceil(at_s / self.step_s - 1e-9))
            cost, is_repaired = Overheads(save_s=share * self.save_s), failure is not None and repaired[failure]
            if failure is not None:
                cost = self._failure_cost(at_s - saved_s, is_repaired=is_repaired)
            events.append(
                Event(
                    kind=kind,
                    step=step,
                    at_s=at_s,
                    last_save_step=saved_step,
                    overheads=cost,
                    failure=failure,
                    is_repaired=is_repaired,
                )
            )
            if kind is EventKind.SAVE:
                saved_step, saved_s = step, at_s
        return tuple(events)

    def _saves(self) -> Iterator[tuple[float, EventKind, float]]:
        """Each with its share of an interval's cost. None at the very end, when the training is over."""
        end_s = self.schedule.total_s * (1 - 1e-12)
        for interval in count() if self.interval_s is not None else ():
            for start, kind, share in self._saves_of_an_interval():
                at_s = (interval + start) * (self.interval_s or math.inf)
                if at_s >= end_s:
                    return
                yield at_s, kind, share

    def _saves_of_an_interval(self) -> list[tuple[float, EventKind, float]]:
        """When (in intervals), what, and its share of the cost."""
        r = self.priority_share or 1.0
        between = math.ceil(1 / r - 1e-9) - 1
        saves = [(n * r, EventKind.PRIORITY_SAVE, r) for n in range(1, between + 1)]
        return [*saves, (1.0, EventKind.SAVE, 1 - between * r)]

    @property
    def standing(self) -> Overheads:
        """What is paid whatever happens."""
        return Overheads() if self.repairs is None else self.repairs.standing(self.schedule.total_s)

    def _repaired(self) -> tuple[bool, ...]:
        failures = self.schedule.failures
        return tuple(False for _ in failures) if self.repairs is None else self.repairs.repaired(failures)

    def _failure_cost(self, since_save_s: float, *, is_repaired: bool) -> Overheads:
        if is_repaired and self.repairs is not None:
            return self.repairs.of_failure()
        lost_s = since_save_s if self.recovery is Recovery.FULL else 0.0
        return Overheads(load_s=self.load_s, lost_s=lost_s, reschedule_s=self.reschedule_s)

    def _check_interval(self, interval_s: float) -> None:
        total_s = self.schedule.total_s
        if not is_finite_number(interval_s) or not 0 < interval_s <= total_s:
            raise ConfigurationError(
                f"Emulation: interval_s must be above 0 and at most the job's {total_s / 3600:g} h, "
                f"got {interval_s!r} s; None stands for no save after the baseline"
            )
        if interval_s * (self.priority_share or 1.0) < self.step_s:
            raise ConfigurationError(
                f"Emulation: a step stands for {self.step_s:g} s, more than the time between two saves; train more "
                f"than {self.steps} steps or save less often"
            )


class VirtualClock:
    """Walks through an emulation's events and keeps account."""

    def __init__(self, emulation: Emulation) -> None:
        self._emulation = emulation
        self._events = emulation.events()
        self._passed = 0
        self._overheads = emulation.standing

    def next_event(self) -> Event | None:
        """What happens next; None: nothing until the end."""
        return self._events[self._passed] if self._passed < len(self._events) else None

    def steps_until_next(self) -> int:
        """Steps to train until then, counted from the last event; 0 where two happen after the same step."""
        event = self.next_event()
        return (self._emulation.steps if event is None else event.step) - self.step

    def pass_event(self) -> Event:
        """The next event has happened: count its cost."""
        event = self.next_event()
        if event is None:
            raise ConfigurationError("VirtualClock: the job has ended; nothing more can happen")
        self._overheads += event.overheads
        self._passed += 1
        return event

    @property
    def step(self) -> int:
        """The step of the last event."""
        return self._events[self._passed - 1].step if self._passed else 0

    @property
    def overheads(self) -> Overheads:
        """Of the events so far."""
        return self._overheads

    @property
    def overhead_share(self) -> float:
        """The overheads so far, of the whole job's training time."""
        return self._overheads.share_of(self._emulation.schedule.total_s)

    @property
    def now_s(self) -> float:
        """Virtual time since the job began, training and overheads."""
        return self.step * self._emulation.step_s + self._overheads.total_s
