"""Starts Lightning programs as processes of their own, without importing torch anew for each: by forking this one.

Commands come as lines of JSON on stdin; what the programs do is printed as lines.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[3]


class Program:
    """One start of a program, on one rank or several."""

    def __init__(self, nursery: Nursery, ranks: int) -> None:
        self._nursery = nursery
        self.pids = [int(self._nursery.line("pid")) for _ in range(ranks)]

    def until(self, batch: int) -> None:
        """Wait until this many batches were trained, across all restarts; that is while the last one's hooks run."""
        while int(self._nursery.line("batch")) < batch:
            pass

    def kill(self) -> None:
        """All at once."""
        for pid in self.pids:
            os.kill(pid, signal.SIGKILL)
        assert self.ended() == [-signal.SIGKILL] * len(self.pids)

    def ended(self) -> list[int]:
        """The exit codes."""
        codes = dict(json.loads(self._nursery.line("ended")) for _ in self.pids)
        return [codes[pid] for pid in self.pids]

    def result(self) -> str:
        """The digest of what a program that runs to its end has made."""
        digest = self._nursery.line("digest")
        assert self.ended() == [0] * len(self.pids)
        return digest


class Nursery:
    """The process that forks the others."""

    def __init__(self) -> None:
        command = [sys.executable, "-m", "tests.integrations.lightning.nursery"]
        self.process = subprocess.Popen(
            command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True
        )
        self._endings: list[str] = []  # of ranks that were through before another one had its result

    def start(self, url: Path, *, ranks: int = 1, **setup: Any) -> Program:
        assert self.process.stdin is not None
        command = {"url": str(url), "ranks": ranks, "setup": setup}
        print(json.dumps(command), file=self.process.stdin, flush=True)
        return Program(self, ranks)

    def line(self, word: str) -> str:
        """The rest of the next line that begins so."""
        assert self.process.stdout is not None
        if word == "ended" and self._endings:
            return self._endings.pop(0)
        for line in self.process.stdout:
            first, _, rest = line.strip().partition(" ")
            if first == word:
                return rest
            if first == "ended" and word != "pid":  # else of a test that failed
                assert word == "digest" and json.loads(rest)[1] == 0, f"a program ended early: {rest}"
                self._endings.append(rest)
        raise AssertionError(f"the nursery is gone; waited for {word!r}")


@contextmanager
def nursery() -> Iterator[Nursery]:
    opened = Nursery()
    try:
        yield opened
    finally:
        os.killpg(opened.process.pid, signal.SIGKILL)
        opened.process.wait()


def _serve() -> None:
    for line in sys.stdin:
        command = json.loads(line)
        port = _free_port()
        pids = [_fork(rank, port, **command) for rank in range(command["ranks"])]
        for pid in pids:
            _say("pid", pid)
        for _ in pids:
            pid, status = os.wait()
            _say("ended", json.dumps([pid, os.waitstatus_to_exitcode(status)]))


def _fork(rank: int, port: int, *, url: str, ranks: int, setup: dict[str, Any]) -> int:
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        if ranks > 1:
            os.environ |= {"LOCAL_RANK": str(rank), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
            setup["trainer"] = {"strategy": "ddp", "devices": ranks, **setup.get("trainer", {})}
        _run(rank, url, setup)
        code = 0
    except SystemExit as told:
        code = told.code if isinstance(told.code, int) else 0
    except BaseException:
        import traceback

        traceback.print_exc()
    finally:
        sys.stdout.flush()
        os._exit(code)


def _run(rank: int, url: str, setup: dict[str, Any]) -> None:
    import holdfast as hf
    from tests.integrations.lightning.program import Setup, Told, digest, everything

    every = setup.pop("save", 4)
    program = Setup(guard={"save": hf.EverySteps(every)}, **setup)
    tell = Told(lambda batch: _say("batch", batch) if rank == 0 else None)
    trainer, module, _ = program.fit(url, tell)
    if rank == 0:
        _say("digest", digest(everything(trainer, module)))


def _say(*words: object) -> None:
    os.write(1, (" ".join(map(str, words)) + "\n").encode())


def _free_port() -> int:
    import socket

    with socket.socket() as opened:
        opened.bind(("127.0.0.1", 0))
        return int(opened.getsockname()[1])


if __name__ == "__main__":
    import tests.integrations.lightning.program  # noqa: F401 - so that no child has to

    _serve()
