"""A save in progress, and what the observers of saves see of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from holdfast.checkpoint.wire.state_digests import PieceDigest
from holdfast.format.catalog import Intent
from holdfast.types import Kind


class SaveObserver(Protocol):
    """Keeps its own record of what is saved: sees each save begin, and then commit or fail."""

    def begin(self, kind: Kind, /) -> None:
        """A snapshot is about to be taken. An exception cancels the save."""
        ...

    def committed(self, kind: Kind, state: Sequence[PieceDigest], /) -> None:
        """The snapshot is committed; ``state`` digests its contents other than rows."""
        ...

    def failed(self, kind: Kind, /) -> None:
        """The snapshot is not committed, and never will be."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class InFlight:
    """A save between its snapshot and its outcome."""

    intent: Intent
    asked: bool = False  # an agent was asked what became of it
    problem: str = ""  # why it had to be asked
    skipped: bool = False  # another save was due meanwhile
    delayed_rows: bool = False  # a save of rows was due meanwhile
    thrown_away: bool = False  # its snapshot cannot be used
    unwanted: bool = False  # a checkpoint that is due holds its rows as well

    @property
    def is_priority(self) -> bool:
        """Whether it is a priority save rather than a checkpoint."""
        return self.intent.kind is Kind.PRIORITY
