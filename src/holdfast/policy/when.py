"""When to save: every n steps, every n minutes, or a combination.

``EverySteps(1000) | EveryMinutes(30)`` saves when either is due, ``&`` when both are. Once due, a policy stays due
until a save advances ``last_save_step`` and ``last_save_s``: a save that had to be skipped is taken at the next step.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Final

from holdfast.errors import ConfigurationError
from holdfast.policy.arguments import require_count, require_duration
from holdfast.policy.base import Composite, Policy, flattened, registered

UNREACHABLE_STEPS: Final = 2**63 - 1
"""More steps than any run takes: what ``steps_until_due`` answers for a save that never comes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SaveContext:
    """Where training is. Before the first save, the last save is where and when this trainer started."""

    step: int
    now_s: float  # the same clock as last_save_s
    last_save_step: int
    last_save_s: float


class SavePolicy(Policy, ABC):
    """Decides whether a checkpoint is due after a step."""

    __slots__ = ()

    @abstractmethod
    def due(self, context: SaveContext) -> bool:
        """Whether to save now.

        Args:
            context: Where training is.
        """

    @abstractmethod
    def steps_until_due(self, context: SaveContext) -> int | None:
        """Steps until ``due`` (0: due now), or None if time decides.

        A reader that reads ahead uses this to have no batch in flight across a checkpoint (Check-N-Run, 3.4).

        Args:
            context: Where training is.
        """

    def scaled(self, share: float) -> SavePolicy:
        """The same policy with its interval scaled: for priority saves between two checkpoints.

        Args:
            share: Above 0 and at most 1.
        """
        raise ConfigurationError(
            f"{type(self).__name__} cannot be scaled to a share of its interval, which Partial(priority=...) needs: "
            "implement scaled(share), or use EverySteps or EveryMinutes"
        )

    def __or__(self, other: SavePolicy) -> SavePolicy:
        return AnyDue(flattened(AnyDue, self, other)) if isinstance(other, SavePolicy) else NotImplemented

    def __and__(self, other: SavePolicy) -> SavePolicy:
        return AllDue(flattened(AllDue, self, other)) if isinstance(other, SavePolicy) else NotImplemented


@registered("every_steps")
@dataclass(frozen=True, slots=True)
class EverySteps(SavePolicy):
    """At every multiple of ``n`` steps.

    Counted from step 0 and not from the last save: a save in between (a tag, a signal, another policy) does not shift
    later ones, and a run that was killed saves at the same steps as one that was not.

    Args:
        n: The number of steps, at least 1.
    """

    n: int

    def __post_init__(self) -> None:
        require_count(self, "n", self.n)

    def due(self, context: SaveContext) -> bool:
        return context.step // self.n > context.last_save_step // self.n

    def steps_until_due(self, context: SaveContext) -> int | None:
        next_due = (context.last_save_step // self.n + 1) * self.n
        return max(0, next_due - context.step)

    def scaled(self, share: float) -> SavePolicy:
        return EverySteps(max(1, round(share * self.n)))


@registered("every_minutes")
@dataclass(frozen=True, slots=True)
class EveryMinutes(SavePolicy):
    """When the last save is ``minutes`` old.

    Args:
        minutes: How old, above 0.
    """

    minutes: float

    def __post_init__(self) -> None:
        require_duration(self, "minutes", self.minutes)

    def due(self, context: SaveContext) -> bool:
        return context.now_s - context.last_save_s >= self.minutes * 60

    def steps_until_due(self, context: SaveContext) -> int | None:
        return 0 if self.due(context) else None

    def scaled(self, share: float) -> SavePolicy:
        return EveryMinutes(share * self.minutes)


@registered("never")
@dataclass(frozen=True, slots=True)
class Never(SavePolicy):
    """Only on request: ``guard.save()``, a signal, the end of the block."""

    def due(self, context: SaveContext) -> bool:
        return False

    def steps_until_due(self, context: SaveContext) -> int | None:
        return UNREACHABLE_STEPS

    def scaled(self, share: float) -> SavePolicy:
        return self


@registered("any_due")
@dataclass(frozen=True, slots=True, repr=False)
class AnyDue(Composite[SavePolicy], SavePolicy):
    """Due when any of its parts is: the result of ``|``."""

    FAMILY = SavePolicy
    SYMBOL = "|"

    def due(self, context: SaveContext) -> bool:
        return any(part.due(context) for part in self.parts)

    def steps_until_due(self, context: SaveContext) -> int | None:
        steps = [part.steps_until_due(context) for part in self.parts]
        known = [count for count in steps if count is not None]
        soonest = min(known, default=UNREACHABLE_STEPS)
        return soonest if soonest == 0 or len(known) == len(steps) else None

    def scaled(self, share: float) -> SavePolicy:
        return AnyDue(tuple(part.scaled(share) for part in self.parts))


@registered("all_due")
@dataclass(frozen=True, slots=True, repr=False)
class AllDue(Composite[SavePolicy], SavePolicy):
    """Due when all of its parts are: the result of ``&``."""

    FAMILY = SavePolicy
    SYMBOL = "&"

    def due(self, context: SaveContext) -> bool:
        return all(part.due(context) for part in self.parts)

    def steps_until_due(self, context: SaveContext) -> int | None:
        steps = [part.steps_until_due(context) for part in self.parts]
        known = [count for count in steps if count is not None]
        latest = max(known, default=0)
        return latest if latest == UNREACHABLE_STEPS or len(known) == len(steps) else None

    def scaled(self, share: float) -> SavePolicy:
        return AllDue(tuple(part.scaled(share) for part in self.parts))
