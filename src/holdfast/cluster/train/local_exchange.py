"""LocalExchange: all servers in this process, one after the other. What training over sockets is compared with."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from holdfast.cluster.placement import SERVER_SHIFT, Keys, Placement
from holdfast.cluster.shard import Floats, Shard
from holdfast.cluster.train.exchange import Pulled, PushedStep
from holdfast.errors import ConfigurationError
from holdfast.policy.optimizer import Optimizer


class LocalExchange:
    """Servers in this process, with the same placement and the same kernels. A pull sees every push before it.

    Args:
        placement: Of the model; it says how many servers there are.
        optimizer: Of tables.
        dense_optimizer: Of dense parameters.
        dense: The whole dense vector as it begins.
    """

    def __init__(
        self, placement: Placement, *, optimizer: Optimizer, dense_optimizer: Optimizer, dense: Floats
    ) -> None:
        self.placement = placement
        self.shards = [Shard(placement, server, optimizer, dense_optimizer) for server in range(placement.servers)]
        for shard in self.shards:
            shard.start(dense)
        self.place: bytes | None = None  # of the last push
        self._answers: dict[int, Pulled] = {}
        self._pulled = 0

    def pull(self, keys: Sequence[Keys], *, dense: bool = True) -> int:
        """Read rows now; ``take`` hands them out."""
        rows = [self._read(group, each) for group, each in enumerate(keys)]
        self._pulled += 1
        self._answers[self._pulled] = Pulled(rows=rows, dense=self.dense() if dense else None)
        return self._pulled

    def is_there(self, number: int) -> bool:
        """At once."""
        return number in self._answers

    def take(self, number: int) -> Pulled:
        """The answer to a pull, once."""
        return self._answers.pop(number)

    def push(self, step: PushedStep) -> None:
        """Apply a step."""
        for number, (group, keys) in enumerate(zip(self.placement.groups, step.keys, strict=True)):
            cuts = group.cuts(keys)
            for server, shard in enumerate(self.shards):
                part = slice(cuts[server], cuts[server + 1])
                rows, gradients = keys[part] - (server << SERVER_SHIFT), step.gradients[number][part]
                shard.groups[number].apply(rows, gradients, lr=step.lr_tables)
        for shard in self.shards:
            shard.dense.apply(step.dense[shard.dense.piece.start : shard.dense.piece.end], lr=step.lr_dense)
        self.place = step.place

    def let_in(self) -> None:
        """Nothing comes by itself."""

    def dense(self) -> Floats:
        """A copy of the whole dense vector."""
        return np.concatenate([shard.dense.values for shard in self.shards])

    def table(self, name: str) -> Floats:
        """A copy of a whole table."""
        for number, group in enumerate(self.placement.groups):
            for member, table in enumerate(group.tables):
                if self.placement.plan.tables[table].name == name:
                    ids = np.arange(self.placement.plan.tables[table].rows)
                    return self._read(number, group.keys(member, ids))
        raise ConfigurationError(f"no table is named {name!r}")

    def _read(self, number: int, keys: Keys) -> Floats:
        group = self.placement.groups[number]
        result = np.empty((len(keys), group.width), np.float32)
        servers = keys >> SERVER_SHIFT
        for server in np.unique(servers):
            of_server = servers == server
            rows = keys[of_server] & ((1 << SERVER_SHIFT) - 1)
            result[of_server] = self.shards[server].groups[number].read(rows)
        return result
