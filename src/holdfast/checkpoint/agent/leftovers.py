"""Deletes what dead agents of this rank and term left behind: parts of saves, rounds and outlines, temporary files.

Nobody else will ever finish them. Anything that this agent is not working on itself is left over: its predecessors are
dead, or it would not have been asked to clean up. Objects of other ranks are left to them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection

from holdfast.checkpoint.commit.chain import Chain
from holdfast.checkpoint.commit.changes import own
from holdfast.checkpoint.commit.collect import Collected, referenced_folders
from holdfast.checkpoint.write.committer import Committer
from holdfast.format.catalog import DATA_PREFIX, intent_name, object_name, term_of
from holdfast.storage import ObjectInfo, Store
from holdfast.storage.abilities import remove_temporaries

_STALE_S = 3600.0  # a temporary untouched for so long has lost its writer, whoever it was
_RANK = re.compile(r"^(?:[a-z]+-)?(\d{5})(?=-|$)|-(\d{5})$")  # in the names of what one rank writes


class Leftovers:
    """``under_way`` gives the saves that this agent has begun and not ended; for the thread that owns the chain."""

    def __init__(
        self,
        store: Store,
        chain: Chain,
        committer: Committer,
        *,
        term: int,
        rank: int,
        world: int,
        under_way: Callable[[], Collection[str]],
    ) -> None:
        self._store = store
        self._chain = chain
        self._committer = committer
        self._term = term
        self._rank = rank
        self._world = world
        self._under_way = under_way

    def collect(self) -> Collected:
        """Delete all leftovers."""
        head = own(self._chain.head(), self._term)
        if head.damaged or head.catalog.passed_over:
            return Collected()
        folders: dict[str, list[ObjectInfo]] = {}
        known = referenced_folders(head)
        for info in self._store.list(DATA_PREFIX):
            folder = _folder(info.name)
            if folder not in known and self._is_ours(folder, info.name):
                folders.setdefault(folder, []).append(info)
        busy = self._under_way()  # after the listing: what was listed of a save that began meanwhile is among them
        left = {folder: infos for folder, infos in folders.items() if folder not in busy}
        doomed = [info for folder, infos in left.items() for info in self._deletable(folder, infos)]
        self._store.delete([info.name for info in doomed])
        self._remove_temporaries()
        return Collected(objects=len(doomed), size_bytes=sum(info.size_bytes for info in doomed))

    def _deletable(self, folder: str, infos: list[ObjectInfo]) -> list[ObjectInfo]:
        """What may be deleted from a folder that no catalog names: a save only once nobody can commit it any more."""
        is_save = self._world > 1 or intent_name(folder) in {info.name for info in infos}
        if is_save and self._may_be_committed(folder):
            return []
        return infos

    def _may_be_committed(self, checkpoint: str) -> bool:
        published = any(True for _ in self._store.list(intent_name(checkpoint)))
        return published and not self._committer.call_off(checkpoint)

    def _remove_temporaries(self) -> None:
        now_s = self._store.now_s()

        def is_left(info: ObjectInfo) -> bool:
            folder = _folder(info.name)
            ours = self._is_ours(folder, info.name) and folder not in self._under_way()
            return ours or now_s - info.modified_s > _STALE_S

        remove_temporaries(self._store, is_left)

    def _is_ours(self, folder: str, name: str) -> bool:
        """Whether an agent of this rank wrote it in this term; in a job with a single rank, always."""
        if not name.startswith(DATA_PREFIX) or term_of(folder) != self._term:
            return False
        match = _RANK.search(name.removeprefix(object_name(folder, "")))
        return self._world == 1 or (match is not None and int(match.group(1) or match.group(2)) == self._rank)


def _folder(name: str) -> str:
    return name.removeprefix(DATA_PREFIX).partition("/")[0]
