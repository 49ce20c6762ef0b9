"""What each death in a job has cost."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from holdfast.cluster.core.members import Member
from holdfast.cluster.happenings import Died, Event, LostSamples, Replaced, WentBack


@dataclass(frozen=True, slots=True, kw_only=True)
class Death:
    """A death, and what came of it.

    Args:
        member: Who died.
        how: What was seen of it.
        at_s: When, since 1970.
        replaced_s: Seconds until everyone was at work again. None: that did not come.
        by_spare: Whether a spare took the place.
        lost_steps: Steps that rows of the dead server lack, or that everyone takes again.
        went_back: Whether everyone went back to a checkpoint.
        pls: What partial recoveries had lost by then, of the samples' effect. None: not metered.
    """

    member: Member
    how: str
    at_s: float
    replaced_s: float | None = None
    by_spare: bool = False
    lost_steps: int = 0
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
            case Replaced(member=member, by_spare=by_spare, took_s=took_s):
                _amend(found, member, replaced_s=took_s, by_spare=by_spare)
            case LostSamples(member=member, steps=steps, pls=pls):
                _amend(found, member, lost_steps=steps, pls=pls)
    return tuple(found)


def _amend(found: list[Death], successor: Member, **known: object) -> None:
    """The last death in this place, before that successor."""
    for index in reversed(range(len(found))):
        dead = found[index].member
        if (dead.role, dead.index) == (successor.role, successor.index) and dead.incarnation < successor.incarnation:
            found[index] = replace(found[index], **known)  # type: ignore[arg-type]
            return
