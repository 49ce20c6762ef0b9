"""Gradient propagation, the rival of differences: workers send each gradient twice, and servers apply it twice.

A worker sends the gradient of a row to the row's server and to the one that keeps its parity, where the same optimizer
runs on the parity; the dense part goes to a second server likewise. With any optimizer but plain SGD the parities that
this gives are wrong (ECRM, section 3.3.1): only its cost is of interest. Parities and copies are rows of two more
tables, which no batch looks up.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import nn

from benchmarks.claims import _parity_job
from benchmarks.claims._cluster_job import JobPlan, build_model
from holdfast.cluster.placement import SERVER_SHIFT, Group, Keys, Placement
from holdfast.cluster.train.exchange import Floats, PushedStep
from holdfast.cluster.worker.worker import Worker
from holdfast.erasure.ring import Ring
from holdfast.erasure.stripes import Stripes

_PARITY, _COPY = "twice.0.weight", "twice.1.weight"
_SPARE_SHARE = 0.1  # of parities: servers have not quite the same number of rows


def build() -> nn.Module:
    """The plan's model, with tables for parities and for a copy of the dense part."""
    plan, model = JobPlan.read(), build_model()
    rows = sum(each.num_embeddings for each in model.modules() if isinstance(each, nn.EmbeddingBag))
    dense = sum(each.numel() for each in model.parameters() if not each.is_meta)
    width = 1 if plan.is_linear else plan.dim
    sizes = int((1 + _SPARE_SHARE) * rows / plan.data) + 64 * plan.batches, -(-dense // width)
    with torch.device(plan.device):
        model.twice = nn.ModuleList(nn.EmbeddingBag(size, width, mode="sum", sparse=True) for size in sizes)
    return model


def train(worker: Worker) -> None:
    """As others, with everything sent twice."""
    inner: Any = worker
    twice = SentTwice(inner._exchange.push, inner._fetcher._placement, data=JobPlan.read().data)
    inner._exchange.push = twice.push
    _parity_job.train(worker)


class SentTwice:
    """Adds to a step's gradients those for parities and for the copy of the dense part.

    Args:
        push: Sends a step's gradients.
        placement: Of a model that ``build`` made.
        data: Rows that share a parity.
    """

    def __init__(self, push: Callable[[PushedStep], None], placement: Placement, *, data: int) -> None:
        (self._group,) = placement.groups
        names = [placement.plan.tables[table].name for table in self._group.tables]
        self._push = push
        self._parity_starts = _starts(self._group, names.index(_PARITY))
        self._copy_keys = np.sort(self._group.keys(names.index(_COPY), np.arange(self._group.rows[names.index(_COPY)])))
        ring = Ring(servers=tuple(range(placement.servers)), data=data, parity=1)
        self._stripes = Stripes(ring, self._parity_starts.tolist())  # real rows lie before those of parities

    def push(self, step: PushedStep) -> None:
        """Send a step's gradients, and all of them again to others."""
        (keys,), (gradients,) = step.keys, step.gradients
        found = [(keys, gradients), *self._parities(keys, gradients), (self._copy_keys, self._dense(step.dense))]
        cuts = [self._group.cuts(each).tolist() for each, _ in found]
        parts = [
            (each[cut[server] : cut[server + 1]], values[cut[server] : cut[server + 1]])
            for server in range(self._group.servers)
            for (each, values), cut in zip(found, cuts, strict=True)
        ]
        joined = np.concatenate([each for each, _ in parts]), np.concatenate([values for _, values in parts])
        self._push(replace(step, keys=[joined[0]], gradients=[joined[1]]))

    def _parities(self, keys: Keys, gradients: Floats) -> Iterator[tuple[Keys, Floats]]:
        """Of each server's rows, those that share a host: the keys of their parities, and the same gradients."""
        ring = self._stripes.ring
        for server, (first, last) in enumerate(pairwise(self._group.cuts(keys).tolist())):
            rows, values = keys[first:last] - (server << SERVER_SHIFT), gradients[first:last]
            order, cuts = self._stripes.slices(rows)
            for member, (start, end) in enumerate(pairwise(cuts)):
                host, mine = ring.host(ring.stripe(server, member), 0), order[start:end]
                at = self._stripes.parity_rows(rows[mine], 0) + self._parity_starts[host]
                yield at + (host << SERVER_SHIFT), values[mine]

    def _dense(self, dense: Floats) -> Floats:
        padded = np.zeros(len(self._copy_keys) * self._group.width, np.float32)
        padded[: len(dense)] = dense
        return padded.reshape(-1, self._group.width)


def _starts(group: Group, member: int) -> Keys:
    """Where the rows of a table begin in each server's array."""
    found: Keys = group.starts()[member]
    return found
