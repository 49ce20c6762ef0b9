"""What parity takes, counted: bytes of memory, and how evenly updates fall on servers."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from benchmarks.claims._cluster_job import Batches, JobPlan, build_model
from benchmarks.claims._cluster_runs import ALL_TABLES, LR, folder_for
from holdfast.cluster.arguments import PROTECTED_PUSHES
from holdfast.cluster.parity.layout import RingLayout
from holdfast.cluster.parity.mirror import dense_size
from holdfast.cluster.parity.seats import parity_bytes
from holdfast.cluster.placement import SERVER_SHIFT, Keys, Placement
from holdfast.cluster.server.telling import TOGETHER
from holdfast.cluster.train.build import build
from holdfast.erasure.seating import Seating, seat
from holdfast.kernels.records import words_of
from holdfast.policy import Adagrad
from holdfast.types import UpdateRule

_Counts = NDArray[np.int64]
_WORD_BYTES = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Counts:
    """Of one job."""

    model_bytes: int  # rows, slots and dense parts of all servers
    parity_bytes: int
    largest_server_bytes: int  # rows and parities of one: what a spare will hold
    unstable_bytes: int  # of pushes that a worker keeps until they are in all parities, at most
    single_bytes: float  # of all differences of a push that hosts are told of by itself
    together_bytes: float  # the same for a push of one of two workers, told as servers do: with others
    updates: float  # the most that a server has, over the least
    updates_with_parity: float  # the same, parities included


def count(plan: JobPlan, *, servers: int) -> Counts:
    """Of a job with one parity for as many rows as its plan says."""
    with folder_for(plan) as planned:
        placement = Placement(build(build_model, ALL_TABLES).plan, servers)
        batches = [_keys(placement, planned, number) for number in range(planned.batches)]
    seating = seat(servers, data=plan.data, parity=1)
    updates, parities = _updates(placement, seating, batches)
    sizes = [_model_bytes(placement, server) for server in range(servers)]
    parity = parity_bytes(placement, seating, *_rules())
    return Counts(
        model_bytes=sum(sizes),
        parity_bytes=sum(parity),
        largest_server_bytes=max(map(sum, zip(sizes, parity, strict=True))),
        unstable_bytes=PROTECTED_PUSHES * _push_bytes(placement, batches),
        single_bytes=_difference_bytes(placement, batches, together=1),
        together_bytes=_difference_bytes(placement, batches, together=2 * TOGETHER),
        updates=float(updates.max() / updates.min()),
        updates_with_parity=float((updates + parities).max() / (updates + parities).min()),
    )


def moved_bytes(plan: JobPlan, *, servers: int, lost: int) -> dict[tuple[int, int], int]:
    """By sender and receiver, what a lost server's rows and parities take to come back."""
    with folder_for(plan):
        placement = Placement(build(build_model, ALL_TABLES).plan, servers)
    layout = RingLayout(placement, seat(servers, data=plan.data, parity=1).ring_of(lost))
    found: dict[tuple[int, int], int] = {}
    for sender, receiver, size in _moves(layout, lost):
        found[sender, receiver] = found.get((sender, receiver), 0) + size
    return {stream: size for stream, size in found.items() if size}


def _moves(layout: RingLayout, lost: int) -> Iterator[tuple[int, int, int]]:
    ring, (rule, dense_rule), position = layout.ring, _rules(), layout.ring.position(lost)
    for lines, group in zip(layout.lines, layout.placement.groups, strict=True):
        size = _WORD_BYTES * words_of(rule, group.width)
        for line in range(ring.size):
            host, wanted = layout.hosts(line)[0], lines.extent(position, line)
            for member in ring.members(line):
                server, extent = ring.servers[member], lines.extent(member, line)
                if host == lost:
                    yield server, lost, size * extent
                elif wanted and server != lost:
                    yield server, host, size * min(extent, wanted)
            if host != lost:
                yield host, lost, size * wanted
    dense = [_WORD_BYTES * dense_size(piece, dense_rule) for piece in layout.placement.dense]
    yield layout.mirrors(lost)[0], lost, dense[lost]
    yield from ((each, lost, dense[each]) for each in layout.mirrored(lost))


def _rules() -> tuple[UpdateRule, UpdateRule]:
    optimizer = Adagrad(LR)
    return optimizer.rule(), optimizer.rule(dense=True)


def _model_bytes(placement: Placement, server: int) -> int:
    rule, dense_rule = _rules()
    rows = sum(group.size(server) * words_of(rule, group.width) for group in placement.groups)
    return _WORD_BYTES * (rows + dense_size(placement.dense[server], dense_rule))


def _keys(placement: Placement, plan: JobPlan, number: int) -> list[Keys]:
    """Of a batch: the rows that it changes, group by group."""
    batch = Batches(plan)._made[number]
    ids = batch.ids.reshape(len(batch.ids), len(placement.plan.tables), -1).cpu().numpy()
    found = []
    for group in placement.groups:
        keys = [group.keys(member, ids[:, table].ravel()) for member, table in enumerate(group.tables)]
        found.append(np.unique(np.concatenate(keys)))
    return found


def _updates(placement: Placement, seating: Seating, batches: list[list[Keys]]) -> tuple[_Counts, _Counts]:
    """Of each server: updates of rows, and of parities."""
    rows, parities = np.zeros(placement.servers, np.int64), np.zeros(placement.servers, np.int64)
    layouts = {server: RingLayout(placement, seating.ring_of(server)) for server in range(placement.servers)}
    for keys in batches:
        for number, (group, each) in enumerate(zip(placement.groups, keys, strict=True)):
            for server, (first, last) in enumerate(pairwise(group.cuts(each).tolist())):
                layout = layouts[server]
                rows[server] += last - first
                slices = layout.lines[number].stripes.slices(each[first:last] - (server << SERVER_SHIFT))
                for member, (start, end) in enumerate(pairwise(slices.cuts)):
                    (host,) = layout.hosts(layout.ring.stripe(layout.ring.position(server), member))
                    parities[host] += end - start
    return rows, parities


def _difference_bytes(placement: Placement, batches: list[list[Keys]], *, together: int) -> float:
    """Of a push, to hosts and mirrors: each row once for so many pushes, with its number, and the dense part."""
    (rule, dense_rule), size = _rules(), 0
    for first in range(0, len(batches), together):
        pushes = batches[first : first + together]
        for group, keys in zip(placement.groups, zip(*pushes, strict=True), strict=True):
            rows = len(np.unique(np.concatenate(keys)))
            size += rows * (8 + _WORD_BYTES * words_of(rule, group.width))
        is_single = len(pushes) == 1
        words = (
            placement.plan.dense_size if is_single else sum(dense_size(each, dense_rule) for each in placement.dense)
        )
        size += _WORD_BYTES * words
    return size / len(batches)


def _push_bytes(placement: Placement, batches: list[list[Keys]]) -> int:
    """Of the largest one: numbers of rows, their gradients, and those of the dense part."""
    sizes = [
        sum(len(each) * (8 + _WORD_BYTES * group.width) for each, group in zip(keys, placement.groups, strict=True))
        for keys in batches
    ]
    return max(sizes) + _WORD_BYTES * placement.plan.dense_size
