"""What happened, in one line each."""

from __future__ import annotations

from holdfast.cluster.happenings import (
    FULL,
    PARITY,
    PARTIAL,
    Committed,
    Died,
    Ended,
    Event,
    LadderChosen,
    LostSamples,
    Paused,
    Recovered,
    Redundant,
    Replaced,
    Resized,
    ResizeFailed,
    SaveFailed,
    SpareFailed,
    Started,
    WentBack,
)
from holdfast.figures import number


def describe(event: Event) -> str:
    """An event in one line."""
    match event:
        case LadderChosen(rungs=rungs, why=why):
            return f"deaths of servers are made up for by {rungs}: {why}"
        case Started(took_s=took_s):
            return f"everyone is at work, after {took_s:.1f} s"
        case Died(member=member, how=how):
            return f"{member} died: {_last_line(how)}"
        case Replaced(member=member, by_spare=by_spare, took_s=took_s):
            return f"{member} is at work{' (a spare)' if by_spare else ''}, {took_s:.1f} s after the death"
        case Recovered(member=member, rung=rung, took_s=took_s):
            return f"{member}: rung {rung}: {_recovered(event)}, in {took_s:.1f} s; {_cost(event)}"
        case Redundant(records=records, took_s=took_s):
            return f"every row is protected by parity: {records} parities in {took_s:.1f} s"
        case WentBack(checkpoint=checkpoint, lost_steps=lost_steps):
            return f"everyone goes back to {checkpoint or 'the beginning'}: {lost_steps} steps are taken again"
        case SpareFailed(spares=spares, problem=problem):
            return f"a spare is started again, {spares} are left: {_last_line(problem)}"
        case Resized(workers=workers, before=before, took_s=took_s):
            return f"the number of workers is {workers} instead of {before}, after {took_s:.1f} s"
        case ResizeFailed(workers=workers, problem=problem):
            return f"the number of workers does not become {workers}: {_last_line(problem)}"
        case Paused(step=step, pause_s=pause_s):
            return f"saved at step {step}: workers waited {pause_s:.2f} s"
        case Committed(checkpoint=checkpoint):
            return f"committed {checkpoint}"
        case SaveFailed(problem=problem):
            return f"a save was called off: {_last_line(problem)}"
        case LostSamples(member=member, steps=steps, pls=pls):
            return f"{member}: its rows lost {steps} steps{'' if pls is None else f'; PLS {number(pls)}'}"
        case Ended(problem=problem):
            return f"the job has ended{f': {_last_line(problem)}' if problem else ''}"


def _recovered(event: Recovered) -> str:
    if event.rung == PARITY:
        return f"{event.rows} rows came back from parity"
    if event.rung == PARTIAL:
        from_saves = f"{event.saved_rows} rows came from saves, {event.rows} from parity"
        return from_saves if event.saved_rows else "its rows came from saves"
    return "everyone went back to a checkpoint"


def _cost(event: Recovered) -> str:
    if not event.lost_steps:
        return "nothing is lost"
    samples = "" if event.lost_samples is None else f", {number(event.lost_samples)} samples"
    if event.rung == FULL:
        return f"{event.lost_steps} steps{samples} are trained again"
    pls = "" if event.lost_pls is None else f", PLS {number(event.lost_pls)}"
    return f"{event.lost_steps} steps{samples} are lost to its rows{pls}"


def _last_line(text: str) -> str:
    return next((line for line in reversed(text.splitlines()) if line.strip()), text)
