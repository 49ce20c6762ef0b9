"""The choice of a ladder for a job whose user left it to us: the same in a cluster, in plans and in simulations.

Nothing is chosen that loses samples without consent: partial recovery is there if the user says so. What is chosen is
parity: whether, and of how many servers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from holdfast.figures import number
from holdfast.planner.job import Job
from holdfast.planner.measured import RESTART_S
from holdfast.planner.parity import ParityPrice
from holdfast.planner.recovery import full_recovery
from holdfast.policy.ladder import Ladder
from holdfast.policy.parity import PROCESS, Parity

LEAST_DATA: Final = 2  # with 1, parities take as much memory as the tables
_USUAL_DATA: Final = 4
_MOST_DATA: Final = 8  # a repair reads from so many servers


@dataclass(frozen=True, slots=True, kw_only=True)
class ParityOption:
    """A parity that a job could have, and what it would take of the machine with the least room for it.

    Args:
        parity: Which one.
        needed_bytes: Of memory there.
        left_bytes: There, beside the rows themselves; None: not known.
        where: That is: a machine's name, say.
        most_lost: How many units of a stripe the death of one machine costs.
    """

    parity: Parity
    needed_bytes: int
    left_bytes: int | None = None
    where: str = "each server"
    most_lost: int = 1

    @property
    def fits(self) -> bool:
        """Whether there is memory for it, as far as is known."""
        return self.left_bytes is None or self.needed_bytes <= self.left_bytes

    @property
    def problem(self) -> str:
        """Why it cannot be had, where it does not fit."""
        assert self.left_bytes is not None
        return (
            f"{_named(self.parity)} would take {_gigabytes(self.needed_bytes)} of {self.where}, where "
            f"{_gigabytes(max(0, self.left_bytes))} are left beside the rows"
        )

    @property
    def price(self) -> str:
        """What it takes, in words."""
        return f"{_named(self.parity)} takes {_gigabytes(self.needed_bytes)} of {self.where}"

    @property
    def is_spread(self) -> bool:
        """Whether the death of a machine costs no stripe more than its parities make up for."""
        return self.most_lost <= self.parity.parity


@dataclass(frozen=True, slots=True, kw_only=True)
class Outlook:
    """How often a job fails, and what a failure costs it without parity; None where that is not known.

    Args:
        mtbf_s: Between deaths of servers.
        interval_s: Between checkpoints.
        server_bytes: Rows of one server.
    """

    mtbf_s: float | None = None
    interval_s: float | None = None
    server_bytes: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """A ladder, and why it is this one."""

    ladder: Ladder
    why: str


def parities_for(servers: int) -> tuple[Parity, ...]:
    """Those that so many servers can have, the most suitable first.

    Four rows share a parity where there are servers enough: a quarter of the tables' memory. Fewer are for machines
    with several servers each, more for memory that is short.
    """
    most = min(servers - 1, _MOST_DATA)
    usual = min(most, _USUAL_DATA)
    order = (*range(usual, LEAST_DATA - 1, -1), *range(usual + 1, most + 1))
    return tuple(Parity(data=data, parity=1) for data in order)


def choose(asked: Ladder, options: Sequence[ParityOption], outlook: Outlook = Outlook()) -> Choice:  # noqa: B008
    """Add parity to the rungs that were asked for, if the job can have it and it pays.

    Args:
        asked: What the user said.
        options: The parities that the job could have, the most suitable first.
        outlook: How often it fails.
    """
    if not options:
        return Choice(ladder=asked, why=f"parity needs {LEAST_DATA + 1} servers or more")
    spread = [each for each in options if each.is_spread]
    fitting = [each for each in spread or options if each.fits]
    if not fitting:
        return Choice(ladder=asked, why=min(spread or options, key=lambda each: each.needed_bytes).problem)
    option = fitting[0]
    if (dearer := _dearer(option.parity, asked, outlook)) is not None:
        return Choice(ladder=asked, why=dearer)
    parity = option.parity if spread else replace(option.parity, domain=PROCESS)
    return Choice(ladder=replace(asked, parity=parity), why=_chosen(option, is_spread=bool(spread)))


def _dearer(parity: Parity, asked: Ladder, outlook: Outlook) -> str | None:
    """Why parity does not pay; None where it does, or where that is not known."""
    if outlook.mtbf_s is None or outlook.interval_s is None:
        return None
    price, total_s = ParityPrice(parity=parity), max(outlook.mtbf_s, outlook.interval_s)
    failures = total_s / outlook.mtbf_s
    with_s = price.overheads(total_s=total_s, failures=failures, window_s=price.rebuild_s(outlook.server_bytes)).total_s
    job = Job(total_s=total_s, mtbf_s=outlook.mtbf_s, save_s=1e-9, load_s=RESTART_S.value)
    without_s = failures * RESTART_S.value if asked.partial else full_recovery(job, outlook.interval_s).total_s
    if with_s <= without_s:
        return None
    return (
        f"parity would cost {with_s / total_s:.2%} of the time, and {asked.rungs[0]} recovery costs "
        f"{without_s / total_s:.2%} with a death every {number(outlook.mtbf_s / 3600)} h"
    )


def _chosen(option: ParityOption, *, is_spread: bool) -> str:
    alone = "" if is_spread else ", for deaths of processes: machines are too few to protect each other"
    return f"{option.price}{alone}"


def _named(parity: Parity) -> str:
    return f"parity of {parity.data} + {parity.parity}"


def _gigabytes(size_bytes: float) -> str:
    return f"{number(size_bytes / 1e9)} GB"
