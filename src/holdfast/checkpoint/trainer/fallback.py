"""Finds the newest checkpoint that all ranks can restore, without mistaking an outage for damage.

A checkpoint that cannot be read is only suspect. Once an older one has been restored, which shows that the store works,
the suspect is tried again; only if it fails again does training continue from the older one.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Generic, TypeVar

from holdfast.checkpoint.ranks.agreement import Agreement
from holdfast.errors import CheckpointNotFound, DamagedData, RunError
from holdfast.format.catalog import Entry

logger = logging.getLogger("holdfast")

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Found(Generic[T]):
    """The checkpoint that was restored, what restoring it gave, and newer ones that could not be restored, twice."""

    entry: Entry
    restored: T
    failed: tuple[Entry, ...]


class Fallback(Generic[T]):
    """Tries checkpoints on all ranks alike: one that a rank cannot restore is restored by none."""

    def __init__(self, agreement: Agreement, attempt: Callable[[Entry], T]) -> None:
        self._agreement = agreement
        self._attempt = attempt
        self._problem: Exception | None = None  # of the last attempt that failed, on this rank

    def restore(self, candidates: Sequence[Entry]) -> Found[T]:
        """Restore the best of these, which come best first. Raises DamagedData where none can be restored."""
        for number, entry in enumerate(candidates):
            if (restored := self._try(entry)) is not None:
                found = Found(entry=entry, restored=restored, failed=tuple(candidates[:number]))
                return self._reconsidered(found) if number else found
            logger.warning("checkpoint of step %d cannot be restored (%s)", entry.info.step, self._why)
        raise DamagedData(
            candidates[0].part_list.name,
            f"no checkpoint of the run can be restored (last error: {self._why}); the model's values are now "
            "undefined, and the run was not changed",
        )

    def _reconsidered(self, found: Found[T]) -> Found[T]:
        """The store works, so try those again that failed before; what was found if they still do."""
        for number, entry in enumerate(found.failed):
            if (restored := self._try(entry)) is not None:
                logger.warning("checkpoint of step %d could be restored after all", entry.info.step)
                return _told(Found(entry=entry, restored=restored, failed=found.failed[:number]))
        restored = self._try(found.entry)  # the model holds parts of the others by now
        if restored is None:
            raise RunError(
                f"the checkpoint of step {found.entry.info.step} was restored once but could not be restored again "
                f"({self._why}): the store is currently unreliable. The run was not changed; try again when the store "
                "has recovered"
            )
        return _told(replace(found, restored=restored))

    def _try(self, entry: Entry) -> T | None:
        """Restore a checkpoint; None if it cannot be read by some rank. Any other error ends it on all ranks."""
        restored: T | None = None
        failure: Exception | None = None
        self._problem = None
        try:
            restored = self._attempt(entry)
        except (DamagedData, CheckpointNotFound) as error:
            self._problem = error
        except Exception as error:
            failure = error
        if self._agreement.any(failure is not None):
            raise failure or RunError(f"another rank could not restore step {entry.info.step}; its own error says why")
        return None if self._agreement.any(restored is None) else restored

    @property
    def _why(self) -> str:
        return str(self._problem or "another rank could not read it")


def _told(found: Found[T]) -> Found[T]:
    for entry in found.failed:
        logger.warning(
            "training continues from step %d; the checkpoint of step %d is now suspect: it stays in the run until "
            "`holdfast verify` has checked it",
            found.entry.info.step,
            entry.info.step,
        )
    return found
