"""Treats an object as damaged only if it is still damaged when read again, later and past caches.

A cable, a cache, a proxy or a failing memory module can corrupt one read of an object that is intact in the store.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TypeVar

from holdfast.errors import DamagedData, ObjectNotFound
from holdfast.runtime import SYSTEM, Runtime
from holdfast.storage import Store
from holdfast.storage.abilities import forget

logger = logging.getLogger("holdfast")

PAUSES_S = (0.1, 1.0)  # before the second and the third look

_T = TypeVar("_T")


class SecondLook:
    """Reads and checks objects of one store, up to three times."""

    def __init__(self, store: Store, runtime: Runtime = SYSTEM) -> None:
        self._store = store
        self._runtime = runtime
        self._believed: set[str] = set()  # to be damaged: not waited for again, but not believed for ever either
        self._doubts: dict[str, DamagedData] = {}

    def __call__(self, name: str, read: Callable[[], _T]) -> _T:
        """What ``read``, which raises DamagedData where it does not like the bytes, makes of the object ``name``.

        One that is missing counts as damaged, because something refers to it.
        """
        if (doubt := self._doubts.pop(name, None)) is not None:
            return self._again(name, read, doubt)
        try:
            return _read(name, read)
        except DamagedData as error:
            return self._again(name, read, error)

    def doubt(self, name: str, what: str) -> None:
        """Somebody else's first look at an object was bad: the next one is the second."""
        self._doubts[name] = DamagedData(name, what)

    def _again(self, name: str, read: Callable[[], _T], problem: DamagedData) -> _T:
        for pause_s in PAUSES_S if name not in self._believed else (0.0,):
            self._runtime.sleep(pause_s)
            forget(self._store, name)
            try:
                found = _read(name, read)
            except DamagedData as error:
                problem = error
                continue
            logger.warning("%s; a second read found it intact: the storage or the path to it is unreliable", problem)
            self._believed.discard(name)
            return found
        self._believed.add(name)
        raise problem


def _read(name: str, read: Callable[[], _T]) -> _T:
    try:
        return read()
    except ObjectNotFound as error:
        raise DamagedData(name, "is missing") from error
