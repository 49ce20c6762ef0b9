"""What each death in a job has cost."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from holdfast.cluster.core.members import Member
from holdfast.cluster.happenings import FULL, Died, Event, LostSamples, Recovered, Replaced, WentBack


@dataclass(frozen=True, slots=True, kw_only=True)
class Death:
    """A death, and what came of it.

    Args:
        member: Who died.
        how: What was seen of it.
        at_s: When, since 1970.
        replaced_s: Seconds until everyone was at work again. None: that did not come.
        by_spare: Whether a spare took the place.
        rung: Of the ladder, that made up for a server: ``"parity"``, ``"partial"`` or ``"full"``. None: for a worker
            none is needed, or it is not known yet.
        lost_steps: Steps since the newest checkpoint, that rows of the dead server lack, or that everyone takes again.
        lost_samples: Samples of these steps. None: not known.
        lost_pls: What that added to the portion of lost samples. None: not metered.
        went_back: Whether everyone went back to a checkpoint.
        pls: What partial recoveries had lost by then, of the samples' effect. None: not metered.
    """

    member: Member
    how: str
    at_s: float
    replaced_s: float | None = None
    by_spare: bool = False
    rung: str | None = None
    lost_steps: int = 0
    lost_samples: float | None = None
    lost_pls: float | None = None
    went_back: bool = False
    pls: float | None = None


def deaths_of(events: Sequence[Event]) -> tuple[Death, ...]:
    """In their order."""
    found: list[Death] = []
    for event in events:
        match event:
            case Died(member=member, how=how, at_s=at_s):
                found.append(Death(member=member, how=how, at_s=at_s))
            case WentBack(lost_steps=steps) if found:
                found[-1] = replace(found[-1], lost_steps=steps, went_back=True)
            case Replaced(member=member, by_spare=by_spare, took_s=took_s, at_s=at_s):
                _replace(found, member, at_s, replaced_s=took_s, by_spare=by_spare)
            case LostSamples(member=member, steps=steps, pls=pls):
                _amend(found, member, lost_steps=steps, pls=pls)
            case Recovered(member=member):
                _amend(found, member, **_cost(event))
    return tuple(found)


def _cost(event: Recovered) -> dict[str, object]:
    cost = {"rung": event.rung, "lost_samples": event.lost_samples, "lost_pls": event.lost_pls}
    known = {"lost_steps": event.lost_steps} if event.lost_steps else {}  # an older record has them elsewhere
    return {**cost, **known, "went_back": event.rung == FULL}


def _amend(found: list[Death], successor: Member, **known: object) -> None:
    """The last death in this place, before that successor."""
    if places := _places(found, successor):
        found[places[-1]] = replace(found[places[-1]], **known)  # type: ignore[arg-type]


def _replace(found: list[Death], successor: Member, at_s: float, **known: object) -> None:
    """All deaths in this place that nobody has replaced yet: those who took it and died are not told of."""
    for index in _places(found, successor)[:-1]:
        if found[index].replaced_s is None:
            found[index] = replace(found[index], replaced_s=max(0.0, at_s - found[index].at_s))
    _amend(found, successor, **known)


def _places(found: Sequence[Death], successor: Member) -> list[int]:
    """Where deaths in this place are, before that successor."""
    place, latest = (successor.role, successor.index), successor.incarnation
    return [
        index
        for index, each in enumerate(found)
        if (each.member.role, each.member.index) == place and each.member.incarnation < latest
    ]
