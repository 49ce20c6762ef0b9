"""What a library reads instead of the loader that it was to read."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

_HIDDEN = ("state_dict", "load_state_dict")  # the guard saves the position; others would save another


class StandIn:
    """Looks like a loader, and yields what is read from it elsewhere."""

    def __init__(self, loader: Any, read: Callable[[], Iterator[Any]]) -> None:
        self._loader = loader
        self._read = read

    def __iter__(self) -> Iterator[Any]:
        return self._read()

    def __len__(self) -> int:
        return len(self._loader)

    def __getattr__(self, name: str) -> Any:
        if name in _HIDDEN or name.startswith("__") or "_loader" not in vars(self):
            raise AttributeError(name)
        return getattr(self._loader, name)
