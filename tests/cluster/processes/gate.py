"""How a test holds workers at a step: by files in a folder that both see."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

import holdfast as hf

_FOLDER = "HOLDFAST_TESTS_GATE"  # workers inherit it


class Gate:
    """Workers go on while they have taken fewer steps than ``limit``; they train to the end once it is ``FINISH``."""

    def __init__(self, folder: Path | None = None) -> None:
        self.folder = Path(os.environ[_FOLDER]) if folder is None else folder

    # ---- the test's side -------------------------------------------------------------------------------------------

    @staticmethod
    def environment(folder: Path) -> dict[str, str]:
        """What makes workers come to this gate."""
        return {_FOLDER: str(folder)}

    def open(self, limit: int, worker: int | None = None, *, is_end: bool = False, step_s: float = 0.0) -> None:
        """Let all workers, or one, take steps up to this one; ``is_end``: there the data end."""
        if worker is None:
            for each in self.folder.glob("limit-*"):
                each.unlink()
        name = "limit" if worker is None else f"limit-{worker}"
        _put(self.folder / name, limit=limit, is_end=is_end, step_s=step_s)

    def held(self, worker: int = 0) -> dict[str, int] | None:
        """Where a worker is held: its step and its process; None while it is not."""
        try:
            found: dict[str, int] = json.loads((self.folder / f"held-{worker}").read_text())
        except FileNotFoundError:
            return None
        return found

    def at(self, worker: int = 0) -> int:
        """The steps that a worker has taken."""
        try:
            return int(json.loads((self.folder / f"at-{worker}").read_text())["step"])
        except FileNotFoundError:
            return 0

    # ---- a worker's side -------------------------------------------------------------------------------------------

    def passes(self, worker: hf.Worker) -> bool:
        """Wait until the next step may be taken; False: the data have ended.

        A worker that is held has all its pushes applied, and takes part in saves: nothing about it is left to chance.
        """
        exchange, file = worker._sockets, self.folder / f"held-{worker.index}"
        is_told = False
        _put(self.folder / f"at-{worker.index}", step=worker.steps)
        while True:
            limit = self._limit(worker.index)
            if worker.steps < limit["limit"]:
                file.unlink(missing_ok=True)
                time.sleep(limit["step_s"])
                return True
            if limit["is_end"]:
                return False
            exchange.let_in(0.01)
            if not is_told and exchange._core._stable.pushed == exchange._core.progress.pushed:
                exchange.tell(worker.report())
                _put(file, step=worker.steps, pid=os.getpid())
                is_told = True

    def _limit(self, worker: int) -> dict[str, Any]:
        try:
            text = (self.folder / f"limit-{worker}").read_text()
        except FileNotFoundError:
            text = (self.folder / "limit").read_text()
        found: dict[str, Any] = json.loads(text)
        return found


def _put(path: Path, **found: Any) -> None:
    partial = path.with_name(f"{path.name}.{os.getpid()}.partial")
    partial.write_text(json.dumps(found))
    partial.rename(path)
