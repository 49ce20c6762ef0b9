"""Starts the processes that recover, and asks them in turn."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path

from benchmarks.claims._recovery_child import Recovery, Request

FLOOR = "floor"
_MODULE = "benchmarks.claims._recovery_child"
_ROOT = Path(__file__).parents[2]  # where the package is imported from


class Recoverer:
    """A process of its own that recovers the checkpoints of one folder."""

    def __init__(self, kind: str, folder: Path, trace_file: Path) -> None:
        self.wrong_rows = 0  # of all recoveries so far
        self._name = f"the process that recovers {folder.name}"
        paths = [str(_ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
        self._process = subprocess.Popen(
            [sys.executable, "-m", _MODULE, kind, str(folder), str(trace_file)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
        )

    def wait_until_ready(self) -> None:
        """Until it has imported what it needs."""
        self._answer()

    def recover(self, request: Request) -> Recovery:
        """Recover one checkpoint."""
        return recover_in_turns({"": self}, request)[""]

    def close(self) -> None:
        """End it. It holds nothing that would have to be put away."""
        self._process.kill()
        self._process.communicate()

    def _order(self, line: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(line + "\n")
        self._process.stdin.flush()

    def _answer(self) -> str:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"{self._name} ended; what it wrote to stderr says why")
        return line


def recover_in_turns(recoverers: Mapping[str, Recoverer], request: Request) -> dict[str, Recovery]:
    """Recover one checkpoint with each: all prepare at once, then one by one recovers, then all check at once."""
    everybody = recoverers.values()
    for one in everybody:
        one._order(json.dumps(dataclasses.asdict(request)))
    for one in everybody:
        one._answer()
    for one in everybody:
        one._order("recover")
        one._answer()
    for one in everybody:
        one._order("check")
    found = {name: Recovery(**json.loads(one._answer())) for name, one in recoverers.items()}
    for name, recovery in found.items():
        recoverers[name].wrong_rows += recovery.wrong_rows
    return found


@contextmanager
def started(folders: Mapping[str, Path], trace_file: Path) -> Iterator[dict[str, Recoverer]]:
    """A recoverer for each folder, not ready yet; that of FLOOR writes flat files into its own."""
    with ExitStack() as stack:
        recoverers = {}
        for name, folder in folders.items():
            recoverers[name] = Recoverer(name if name == FLOOR else "run", folder, trace_file)
            stack.callback(recoverers[name].close)
        yield recoverers
