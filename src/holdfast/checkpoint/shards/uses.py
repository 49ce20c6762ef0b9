"""Follows the uses of a group's rows, all of its tables at once, for the selectors of its shards."""

from __future__ import annotations

import zlib
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from holdfast.checkpoint.shards.selectors import MfuSelector, ScarSelector, ShardSelector, SsuSelector
from holdfast.checkpoint.shards.shard import Shard
from holdfast.checkpoint.training.slot_names import WEIGHT
from holdfast.errors import ConfigurationError
from holdfast.policy.priority import MFU, SCAR, SSU, Priority

Ids = NDArray[np.int64]
Members = Sequence[tuple[Shard, int]]  # the shards of a group, and where in its arrays each begins


class GroupUses(ABC):
    """What a policy sees of one group. ``selectors`` are those of the shards that rows are chosen of, by table."""

    selectors: Mapping[str, ShardSelector]

    @abstractmethod
    def use(self, rows: NDArray[Any]) -> None:
        """These rows of the group were updated; each counts once."""


def uses_of(policy: Priority, members: Members, chosen_of: frozenset[str]) -> GroupUses:
    """What a policy needs for a group; rows are chosen only of some tables."""
    match policy:
        case SCAR():
            return _Compared(policy, members, chosen_of)
        case MFU():
            return _Counted(policy, members, chosen_of)
        case SSU():
            return _Sampled(policy, members, chosen_of)
    raise ConfigurationError(f"unsupported priority policy {policy!r}; use SCAR, MFU or SSU")


class _Compared(GroupUses):
    """Values are compared instead."""

    def __init__(self, policy: SCAR, members: Members, chosen_of: frozenset[str]) -> None:
        self.selectors = {
            shard.table: ScarSelector(shard.columns[WEIGHT], policy.rows(shard.count))
            for shard, _ in members
            if shard.table in chosen_of
        }

    def use(self, rows: NDArray[Any]) -> None:
        pass


class _Counted(GroupUses):
    """A counter for each row of the group; the selectors' counters are parts of it."""

    def __init__(self, policy: MFU, members: Members, chosen_of: frozenset[str]) -> None:
        self._counts = np.zeros(_rows(members), dtype=np.int32)
        self.selectors = {
            shard.table: MfuSelector(self._counts[start : start + shard.count], policy.rows(shard.count))
            for shard, start in members
            if shard.table in chosen_of
        }

    def use(self, rows: NDArray[Any]) -> None:
        self._counts[rows] += 1


class _Sampled(GroupUses):
    """A flag for each row of the group that was sampled; the selectors' flags are parts of it."""

    def __init__(self, policy: SSU, members: Members, chosen_of: frozenset[str]) -> None:
        self._period = policy.period
        names = ",".join(f"{shard.table}@{shard.first}" for shard, _ in members)
        self._random = np.random.default_rng([policy.seed, zlib.crc32(names.encode())])
        self._flags = np.zeros(_rows(members), dtype=np.bool_)
        self.selectors = {
            shard.table: SsuSelector(self._flags[start : start + shard.count], policy.rows(shard.count), self._random)
            for shard, start in members
            if shard.table in chosen_of
        }

    def use(self, rows: NDArray[Any]) -> None:
        # From another first one each time: where updates bring rows in a fixed order, no place of it is passed over.
        self._flags[rows[int(self._random.integers(self._period)) :: self._period]] = True


def _rows(members: Members) -> int:
    return max(start + shard.count for shard, start in members)
