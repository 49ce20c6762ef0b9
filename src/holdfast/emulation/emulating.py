"""Trains for real while a virtual clock stretches it into a long job, with saves and failures (CPR, section 5.1)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from holdfast.checkpoint.training.tables import find_tables
from holdfast.emulation.servers import EmulatedServers
from holdfast.emulation.training import Training
from holdfast.errors import ConfigurationError
from holdfast.planner import Emulation, Event, EventKind, Overheads, PlsMeter, Recovery, VirtualClock
from holdfast.policy.priority import Priority

OnStep = Callable[[], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What a training through failures came to."""

    overheads: Overheads
    pls: float
    auc: float | None = None  # None: nothing was trained


def undisturbed(training: Training, on_step: OnStep = lambda: None) -> float:
    """The AUC of the training when nothing happens to it."""
    _train(training, range(training.steps), on_step)
    return training.auc()


def charged(emulation: Emulation) -> Outcome:
    """What the clock alone tells: the overheads, and of partial recovery the PLS."""
    return _walk(emulation, train=lambda steps: None, apply=lambda event: None)


def emulate(
    training: Training, emulation: Emulation, priority: Priority | None = None, on_step: OnStep = lambda: None
) -> Outcome:
    """Train through the emulation's failures.

    With a priority every save is one of its share r of the rows, also the one at the end of an interval: that is what
    an interval's saves are charged for (section 4.2). Under full recovery the failures change nothing: what goes back
    is trained again with the same samples, and comes to the same.
    """
    _check(training, emulation, priority)
    if emulation.recovery is Recovery.FULL:
        return replace(charged(emulation), auc=undisturbed(training, on_step))
    tables = find_tables({"": training.model}, training.optimizers)
    servers = EmulatedServers(tables, emulation.schedule.servers, priority)
    try:
        outcome = _walk(
            emulation,
            train=lambda steps: _train(training, steps, on_step),
            apply=lambda event: _apply(event, servers, priority),
        )
    finally:
        servers.close()
    return replace(outcome, auc=training.auc())


def _walk(emulation: Emulation, *, train: Callable[[range], None], apply: Callable[[Event], None]) -> Outcome:
    """From event to event. PLS is counted in steps: they all have the same number of samples."""
    clock, meter = VirtualClock(emulation), PlsMeter(total_samples=emulation.steps)
    while (event := clock.next_event()) is not None:
        train(range(clock.step, event.step))
        apply(event)
        meter = _metered(meter, event, emulation)
        clock.pass_event()
    train(range(clock.step, emulation.steps))
    return Outcome(overheads=clock.overheads, pls=meter.pls)


def _train(training: Training, steps: range, on_step: OnStep) -> None:
    for number in steps:
        training.step(number)
        on_step()


def _apply(event: Event, servers: EmulatedServers, priority: Priority | None) -> None:
    if event.is_repaired:
        return  # every row is as it was
    if event.failure is not None:
        servers.fail(event.failure.servers)
    elif priority is not None:
        servers.save_first()
    else:
        servers.save()


def _metered(meter: PlsMeter, event: Event, emulation: Emulation) -> PlsMeter:
    """Equation 3 counts from the end of the last interval, whatever was saved in between."""
    if event.kind is EventKind.SAVE:
        return meter.saved(event.step)
    if event.failure is None or event.is_repaired or emulation.recovery is Recovery.FULL:
        return meter
    return meter.failed(event.step, lost_share=len(event.failure.servers) / emulation.schedule.servers)


def _check(training: Training, emulation: Emulation, priority: Priority | None) -> None:
    if training.steps != emulation.steps:
        raise ConfigurationError(
            f"the training has {training.steps} steps and the emulation {emulation.steps}; they must be the same"
        )
    share = None if priority is None else priority.r
    if share != emulation.priority_share:
        raise ConfigurationError(
            f"the priority saves a share of {share} of the rows and the emulation's clock one of "
            f"{emulation.priority_share}; they must be the same"
        )
