"""What a run in a folder takes."""

from __future__ import annotations

from pathlib import Path

_RESERVE = "reserve+"  # room that a run keeps for a full disk: of one size, whatever was saved


def object_sizes(folder: Path) -> dict[Path, int]:
    """The bytes of each file below a folder that was written to save something."""
    return {path: path.stat().st_size for path in folder.rglob("*") if path.is_file() and path.name != _RESERVE}
