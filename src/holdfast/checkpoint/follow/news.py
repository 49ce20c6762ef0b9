"""What a run committed since the last look at it."""

from __future__ import annotations

from dataclasses import dataclass

from holdfast.checkpoint.commit.chain import Head
from holdfast.types import CheckpointInfo


@dataclass(frozen=True, slots=True, kw_only=True)
class News:
    """Checkpoints that came, oldest first, and those that training left by going back."""

    committed: tuple[CheckpointInfo, ...] = ()
    abandoned: tuple[CheckpointInfo, ...] = ()
    newest: CheckpointInfo | None = None  # that lives


class CatalogWatch:
    """Remembers what it has reported. The first look reports only the newest checkpoint."""

    def __init__(self) -> None:
        self._known: dict[str, CheckpointInfo] | None = None

    def look(self, head: Head) -> News:
        """What is new in a head."""
        infos = [entry.info for entry in head.entries]
        live = [info for info in infos if not info.abandoned]
        known, self._known = self._known, {info.id: info for info in infos}
        newest = live[-1] if live else None
        if known is None:
            return News(committed=tuple(live[-1:]), newest=newest)
        return News(
            committed=tuple(info for info in infos if info.id not in known),
            abandoned=tuple(
                info for info in infos if info.abandoned and info.id in known and not known[info.id].abandoned
            ),
            newest=newest,
        )
