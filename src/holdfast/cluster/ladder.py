"""The ladder of a job: what its user asked for, and what it gets once its machines are known."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from holdfast.checkpoint.trainer.policies import require
from holdfast.cluster.parity.seats import parity_bytes, require_memory, require_memory_of_rows, rows_bytes, seats
from holdfast.cluster.placement import Placement
from holdfast.cluster.plan import ModelPlan
from holdfast.erasure.ring import Ring
from holdfast.erasure.seating import Seating, seat
from holdfast.errors import ConfigurationError
from holdfast.planner.ladder import Outlook, ParityOption, choose, parities_for
from holdfast.policy import Ladder, Parity, Partial, Retention, Strategy, default_strategy
from holdfast.policy.ladder import AUTO
from holdfast.policy.optimizer import Optimizer

logger = logging.getLogger("holdfast")

_PLAINLY_TOO_LARGE = 1.25  # rows, relative to memory that is free


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What a user said about recovery.

    Args:
        ladder: As far as it is said.
        is_auto: Whether parity is left to the planner.
        strategy: Of the job's saves.
    """

    ladder: Ladder
    is_auto: bool
    strategy: Strategy

    @classmethod
    def of(
        cls,
        ladder: Ladder | Literal["auto"],
        parity: Parity | None,
        strategy: Strategy | None,
        *,
        retention: Retention,
        servers: int,
        synchronous: bool,
    ) -> Asked:
        """From the arguments of a ``Cluster``; refuses what contradicts itself, and parities that it cannot have."""
        if parity is not None:
            require("parity", parity, Parity)
        consistent = strategy or default_strategy(retention)
        if ladder == AUTO:
            _require_possible(parity, servers)
            _require_apart(strategy, synchronous=synchronous)
            return cls(ladder=Ladder.of(parity, strategy), is_auto=parity is None, strategy=consistent)
        if not isinstance(ladder, Ladder):
            raise ConfigurationError(f'ladder={ladder!r} is not valid; pass "{AUTO}", or a Ladder such as Ladder()')
        _require_agreement(ladder, parity, strategy, synchronous=synchronous)
        _require_possible(ladder.parity, servers)
        saves = consistent if isinstance(strategy, Partial) else ladder.strategy(consistent)
        return cls(ladder=ladder, is_auto=False, strategy=saves)


@dataclass(frozen=True, slots=True, kw_only=True)
class Settled:
    """What a job gets.

    Args:
        ladder: Its rungs.
        why: What was decided, in words.
        together: The most servers that share a machine.
        rings: Of servers that protect each other; none without parity.
    """

    ladder: Ladder
    why: str
    together: int
    rings: tuple[Ring, ...] = ()


class Machines:
    """Where a job's servers run, and what fits there.

    Args:
        names: Of each server's machine.
        free_bytes: Of memory, by machine; those that are known.
        plan: The model.
        optimizer: Of tables.
        dense_optimizer: Of everything else.
    """

    def __init__(
        self,
        names: Sequence[str],
        free_bytes: Mapping[str, int],
        *,
        plan: ModelPlan,
        optimizer: Optimizer,
        dense_optimizer: Optimizer,
    ) -> None:
        self._names = names
        self._free_bytes = free_bytes
        self._placement = Placement(plan, len(names))
        self._rules = optimizer.rule(), dense_optimizer.rule(dense=True)
        self._rows_bytes = rows_bytes(self._placement, *self._rules)

    def settle(self, asked: Asked, outlook: Outlook) -> Settled:
        """Seat the servers, and see that parities fit; where the planner is to choose, let it."""
        if asked.is_auto:
            options = [self._option(parity) for parity in parities_for(len(self._names))]
            chosen = choose(asked.ladder, options, outlook)
            self._require_room_for_rows()
            return self._seated(chosen.ladder, chosen.why)
        self._require_room_for_rows()
        self._require_fit(asked.ladder.parity)
        return self._seated(asked.ladder, "as asked for")

    def outlook(self, *, mtbf_s: float | None, interval_s: float | None) -> Outlook:
        """What failures cost this job, as far as it is known how often they come."""
        mean_bytes = sum(self._rows_bytes) / len(self._names)
        return Outlook(mtbf_s=mtbf_s, interval_s=interval_s, server_bytes=mean_bytes)

    def _seated(self, ladder: Ladder, why: str) -> Settled:
        rings = () if ladder.parity is None else seats(ladder.parity, self._names).rings
        return Settled(ladder=ladder, why=why, together=max(Counter(self._names).values()), rings=rings)

    def _option(self, parity: Parity) -> ParityOption:
        seating = seat(len(self._names), data=parity.data, parity=parity.parity, domains=self._names)
        found = [self._room(machine, seating) for machine in dict.fromkeys(self._names)]
        tightest = min(found, key=lambda each: each.margin_bytes)
        return ParityOption(
            parity=parity,
            needed_bytes=tightest.needed_bytes,
            left_bytes=tightest.left_bytes,
            where=f"machine {tightest.machine}",
            most_lost=seating.most_lost,
        )

    def _require_fit(self, parity: Parity | None) -> None:
        if parity is None:
            return
        seating = seat(len(self._names), data=parity.data, parity=parity.parity, domains=self._names)
        for machine in dict.fromkeys(self._names):
            room = self._room(machine, seating)
            require_memory_of_rows(f"machine {machine}", self._rows_on(machine), self._free_bytes.get(machine))
            require_memory(f"machine {machine}", room.needed_bytes, room.left_bytes)

    def _require_room_for_rows(self) -> None:
        """What is free is an estimate of one moment: rows that exceed it by little may fit, or be swapped out."""
        for machine, free in self._free_bytes.items():
            rows = self._rows_on(machine)
            if rows > _PLAINLY_TOO_LARGE * free:
                require_memory_of_rows(f"machine {machine}", rows, free)

    def _room(self, machine: str, seating: Seating) -> _Room:
        needed = parity_bytes(self._placement, seating, *self._rules)
        free = self._free_bytes.get(machine)
        return _Room(
            machine=machine,
            needed_bytes=sum(needed[server] for server in self._servers_on(machine)),
            left_bytes=None if free is None else free - self._rows_on(machine),
        )

    def _rows_on(self, machine: str) -> int:
        return sum(self._rows_bytes[server] for server in self._servers_on(machine))

    def _servers_on(self, machine: str) -> list[int]:
        return [server for server, name in enumerate(self._names) if name == machine]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Room:
    machine: str
    needed_bytes: int  # by parities
    left_bytes: int | None  # beside rows; None: not known

    @property
    def margin_bytes(self) -> float:
        return float("inf") if self.left_bytes is None else self.left_bytes - self.needed_bytes


def _require_apart(strategy: Strategy | None, *, synchronous: bool) -> None:
    if isinstance(strategy, Partial) and synchronous:
        raise ConfigurationError(
            "strategy=Partial(...) and synchronous=True exclude each other: rows of an earlier step would join the "
            f"others' step; pass as strategy= that of its checkpoints, {strategy.consistent!r}"
        )


def _require_agreement(ladder: Ladder, parity: Parity | None, strategy: Strategy | None, *, synchronous: bool) -> None:
    if parity is not None and parity != ladder.parity:
        raise ConfigurationError(
            f"ladder={ladder!r} and parity={parity!r} contradict each other; pass Ladder(parity=...) alone"
        )
    if isinstance(strategy, Partial) and Ladder.of(ladder.parity, strategy) != ladder:
        raise ConfigurationError(
            f"ladder={ladder!r} and strategy={strategy!r} contradict each other; pass Ladder(partial=True, ...), and "
            f"as strategy= that of its checkpoints, {strategy.consistent!r}"
        )
    if ladder.partial and synchronous:
        raise ConfigurationError(
            "ladder=Ladder(partial=True) and synchronous=True exclude each other: rows of an earlier step would join "
            "the others' step; pass partial=False"
        )


def _require_possible(parity: Parity | None, servers: int) -> None:
    if parity is not None:
        parity.require_servers(servers)
