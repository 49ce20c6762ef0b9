"""A job of two ranks that a test conducts from outside."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.session.rank import PATIENCE_S, WORLD

ROOT = Path(__file__).parents[2]
_START_S = 110.0  # importing torch takes long on a busy machine


@dataclass(frozen=True, kw_only=True)
class Answer:
    """What a rank returned, or the name and text of what it raised."""

    value: Any = None
    error: str | None = None
    message: str = ""


class RankProcess:
    """One rank; called through its pipes."""

    def __init__(self, rank: int, folder: Path) -> None:
        self._rank = rank
        self._log = folder / f"rank-{rank}.log"
        with self._log.open("w") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.session.rank", str(rank), str(folder / "meeting")],
                cwd=ROOT,
                env={**os.environ, "GLOO_SOCKET_IFNAME": "lo"},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
            )
        self._unread = b""
        self.busy = True  # until it says that it is ready

    @property
    def pid(self) -> int:
        return self._process.pid

    def ask(self, name: str, **arguments: Any) -> None:
        assert self._process.stdin is not None and not self.busy
        self._process.stdin.write(json.dumps([name, arguments]).encode() + b"\n")
        self._process.stdin.flush()
        self.busy = True

    def answer(self, patience_s: float = PATIENCE_S + 5) -> Answer:
        deadline = time.monotonic() + patience_s
        while b"\n" not in self._unread:
            self._read(max(0.0, deadline - time.monotonic()))
        line, _, self._unread = self._unread.partition(b"\n")
        self.busy = False
        return Answer(**json.loads(line))

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()

    def _read(self, patience_s: float) -> None:
        assert self._process.stdout is not None
        if not select.select([self._process.stdout], [], [], patience_s)[0]:
            raise AssertionError(f"rank {self._rank} does not answer; its log:\n{self._log.read_text()[-4000:]}")
        data = os.read(self._process.stdout.fileno(), 1 << 20)
        if not data:
            raise AssertionError(
                f"rank {self._rank} ended ({self._process.wait(10)}); its log:\n{self._log.read_text()[-4000:]}"
            )
        self._unread += data


class Job:
    """All ranks. ``call`` expects success on each, ``outcomes`` takes what comes."""

    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory()
        self.ranks = [RankProcess(rank, Path(self._folder.name)) for rank in range(WORLD)]
        self.whole = True  # nobody was killed
        for rank in self.ranks:
            rank.answer(_START_S)

    def call(self, name: str, **arguments: Any) -> list[Any]:
        answers = self.outcomes(name, **arguments)
        assert [answer.error for answer in answers] == [None] * WORLD, answers
        return [answer.value for answer in answers]

    def call_one(self, rank: int, name: str, **arguments: Any) -> Any:
        self.ranks[rank].ask(name, **arguments)
        answer = self.ranks[rank].answer()
        assert answer.error is None, answer
        return answer.value

    def outcomes(self, name: str, **arguments: Any) -> list[Answer]:
        for rank in self.ranks:
            rank.ask(name, **arguments)
        return [rank.answer() for rank in self.ranks]

    def kill_rank(self, rank: int) -> None:
        self.whole = False
        self.ranks[rank].kill()

    def stop(self) -> None:
        for rank in self.ranks:
            rank.kill()
        self._folder.cleanup()


class Jobs:
    """Keeps a job for the next test as long as it is whole and waiting."""

    def __init__(self) -> None:
        self._job: Job | None = None

    def get(self) -> Job:
        if self._job is not None and not (self._job.whole and not any(rank.busy for rank in self._job.ranks)):
            self.stop()
        self._job = self._job or Job()
        return self._job

    def stop(self) -> None:
        if self._job is not None:
            self._job.stop()
            self._job = None


def kill(pid: int) -> None:
    """Kill a process and wait until it is gone; a zombie is."""
    os.kill(pid, signal.SIGKILL)
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        try:
            if Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in "ZX":
                return
        except (FileNotFoundError, ProcessLookupError):
            return
        time.sleep(0.005)
    raise AssertionError(f"process {pid} is still there")


def freeze(pid: int) -> None:
    """Let a process neither work nor end until it is killed or thawed."""
    os.kill(pid, signal.SIGSTOP)
