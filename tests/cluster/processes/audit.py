"""Servers that show what they keep, and whether every parity is what its members' rows make it.

A server of these tests writes its rows and parities to a file whenever it copies a save. Nothing is in flight then but,
in synchronous training, differences of the last step: workers pause when they have pushed it, and a server copies when
its own differences have arrived. So it writes down which difference it sent last, and which came last, and what a host
had not heard of yet is not judged. It is when the next save is copied.

The parities are computed anew from the rows by another way than servers take, which add up differences.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from holdfast.cluster import link
from holdfast.cluster.core.members import Role
from holdfast.cluster.core.messages import Copied
from holdfast.cluster.core.progress import Progress, SavedProgress
from holdfast.cluster.launch.base import Launcher, Launching, Surroundings, Tenant
from holdfast.cluster.parity.layout import RingLayout
from holdfast.cluster.parity.mirror import dense_words
from holdfast.cluster.parity.payload import Difference
from holdfast.cluster.parity.stripe_set import StripeSet
from holdfast.cluster.payload import Arrays
from holdfast.cluster.placement import Placement
from holdfast.cluster.server import place, process
from holdfast.cluster.server.protected_shard import ProtectedShard
from holdfast.erasure.code import Code
from holdfast.erasure.ring import Ring
from tests.cluster.processes.gate import Gate

_TARGET = f"{__name__}:run"
Kept = Mapping[str, np.ndarray[Any, np.dtype[Any]]]


# ---- a server's side -----------------------------------------------------------------------------------------------


class AuditedShard(ProtectedShard):
    """Knows which of its parities lack a row, without asking the protocol, and writes all that it keeps to a file."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._lacking: dict[int, StripeSet] = {}  # by member
        self._sent: dict[int, Arrays] = {}  # by host, the last difference
        self._absorbed: dict[int, str] = {}  # by member, the digest of the last difference

    def load(self, checkpoint: int | None) -> SavedProgress:
        self._sent.clear()
        self._absorbed.clear()
        return super().load(checkpoint)

    def take_changes(self) -> Mapping[int, Arrays]:
        found = super().take_changes()
        self._sent.update(found)
        return found

    def absorb(self, member: int, difference: Arrays, without: StripeSet) -> None:
        super().absorb(member, difference, without)
        self._absorbed[member] = _digest(difference)

    def clear(self, stripes: StripeSet) -> None:
        super().clear(stripes)
        for member, theirs in self._parity.layout.by_member(stripes).items():
            self._lacking[member] = self._lacking.get(member, theirs) | theirs

    def add(self, member: int, stripes: StripeSet, records: Arrays) -> None:
        super().add(member, stripes, records)
        self._lacking[member] -= stripes

    def copy(self, save: int, progress: Mapping[int, Progress], intent: bytes) -> Copied:
        self.wait()
        _put(save, self._rows.server, dict(self._kept()))
        return super().copy(save, progress, intent)

    def _kept(self) -> Iterator[tuple[str, np.ndarray[Any, Any]]]:
        layout, parities = self._parity.layout, self._parity.parities
        lacking = StripeSet.union(self._lacking.values())
        for group, shard in enumerate(self._rows.groups):
            yield f"rows {group}", shard.records(np.arange(len(shard.weights)))
            yield f"parities {group}", parities.arrays[group]
            yield f"lacking {group}", layout.of_group(lacking, group).numbers()
        yield "dense", dense_words(self._rows.dense)
        for server in set(layout.mirrored(self._rows.server)) - set(layout.dense_of(lacking)):
            yield f"mirror {server}", self._parity.mirrors.give(layout.dense(server))
        for member, digest in self._absorbed.items():
            yield f"absorbed {member}", np.array(digest)
        for host, arrays in self._sent.items():
            yield f"sent {host}", np.array(_digest(arrays))
            sent = Difference.from_arrays(arrays, groups=len(self._rows.groups), parity=layout.ring.parity)
            for group, changed in enumerate(sent.changed):
                yield f"sent {host} {group}", np.concatenate([each.rows for each in changed])


def _digest(difference: Arrays) -> str:
    found = hashlib.sha256()
    for array in difference:
        found.update(np.ascontiguousarray(array).tobytes())
    return found.hexdigest()


def run(payload: bytes, surroundings: Surroundings) -> None:
    """Be such a server, with as many threads as on a large machine.

    Few rows are rebuilt in one go: a recovery takes many messages, and can be struck between.
    """
    link._cores = lambda: 16
    place.ProtectedShard = AuditedShard  # type: ignore[misc]
    place.RingLayout = partial(RingLayout, block_stripes=64)  # type: ignore[misc]
    process.run(payload, surroundings)


def _put(save: int, server: int, kept: Kept) -> None:
    path = _path(Gate().folder, save, server)
    unfinished = path.with_suffix(".unfinished")
    with unfinished.open("wb") as file:
        np.savez(file, **kept)
    unfinished.rename(path)


def _path(folder: Path, save: int, server: int) -> Path:
    return folder / f"audit-{save}-{server}.npz"


# ---- the test's side -----------------------------------------------------------------------------------------------


class Audited:
    """Starts such servers by any launcher."""

    def __init__(self, launching: Launching) -> None:
        self._launching = launching

    def open(self, *, servers: int, workers: int, spares: int = 0) -> Launcher:
        launcher = self._launching.open(servers=servers, workers=workers, spares=spares)
        start = launcher.start

        def start_audited(tenant: Tenant, target: str, payload: bytes) -> None:
            start(tenant, _TARGET if tenant.role is Role.SERVER else target, payload)

        launcher.start = start_audited  # type: ignore[method-assign]
        return launcher


def wrong_rows(folder: Path, save: int, placement: Placement, ring: Ring, *, in_step: bool) -> int:
    """How many parities of a save, rows and mirrors, are not what their members make them.

    Args:
        folder: Of the job's gate.
        save: Which.
        placement: Of the model.
        ring: Its servers.
        in_step: Whether differences of the last step may be on their way; otherwise nothing is excused.
    """
    kept = {server: np.load(_path(folder, save, server)) for server in ring.servers}
    layout = RingLayout(placement, ring)
    return sum(_wrong_of_group(layout, group, kept, in_step=in_step) for group in range(len(layout.lines))) + sum(
        not np.array_equal(kept[host][f"mirror {server}"], kept[server]["dense"])
        for host in ring.servers
        for server in layout.mirrored(host)
        if f"mirror {server}" in kept[host] and not (in_step and _is_on_its_way(kept[server], server, kept[host], host))
    )


def _is_on_its_way(member: Kept, server: int, host: Kept, index: int) -> bool:
    """Whether a host had not heard yet what a server had sent it last."""
    return f"sent {index}" in member and str(member[f"sent {index}"]) != str(host.get(f"absorbed {server}"))


def lacking_rows(folder: Path, save: int, placement: Placement, ring: Ring) -> int:
    """How many parities of a save were being encoded anew when it was copied."""
    groups = range(len(placement.groups))
    kept = (np.load(_path(folder, save, server)) for server in ring.servers)
    return sum(len(each[f"lacking {group}"]) for each in kept for group in groups)


def _wrong_of_group(layout: RingLayout, group: int, kept: Mapping[int, Kept], *, in_step: bool) -> int:
    ring, lines = layout.ring, layout.lines[group]
    code = Code(data=ring.data, parity=ring.parity)
    wrong = 0
    for line in range(ring.size):
        numbers = line * lines.rows + np.arange(lines.stripes.height(line))
        members = [_records(layout, group, position, numbers, kept) for position in ring.members(line)]
        for position, expected in zip(ring.hosts(line), code.encode(np.stack(members)), strict=True):
            index = ring.servers[position]
            host, rows = kept[index], lines.parity_rows(position, numbers)
            is_judged = ~np.isin(numbers, host[f"lacking {group}"])
            for server in (ring.servers[each] for each in ring.members(line)):
                if in_step and _is_on_its_way(kept[server], server, host, index):
                    is_judged &= ~np.isin(rows, kept[server][f"sent {index} {group}"])
            wrong += int((is_judged & (host[f"parities {group}"][rows] != expected).any(axis=1)).sum())
    return wrong


def _records(
    layout: RingLayout, group: int, position: int, numbers: np.ndarray[Any, Any], kept: Mapping[int, Kept]
) -> np.ndarray[Any, Any]:
    """A member's records in the stripes of a line; zeros where it has no row."""
    lines, rows = layout.lines[group], kept[layout.ring.servers[position]][f"rows {group}"]
    found = np.zeros((len(numbers), rows.shape[1]), np.uint32)
    extent = lines.extent(position, int(numbers[0]) // lines.rows) if len(numbers) else 0
    found[:extent] = rows[lines.data_rows(position, numbers[:extent])]
    return found
