"""A job of two ranks that a test conducts from outside."""

from __future__ import annotations

import json
import os
import select
import signal
import sys
import tempfile
import time
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from tests.session.forks import FORKS
from tests.session.rank import PATIENCE_S, WORLD, main

_START_S = 110.0  # importing torch takes long on a busy machine, even once


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
        commands, self._commands = FORKS.Pipe(duplex=False)
        self._answers, answers = FORKS.Pipe(duplex=False)
        self._process = FORKS.Process(
            target=_be_rank, args=(rank, str(folder / "meeting"), str(self._log), commands, answers), daemon=True
        )
        self._process.start()
        commands.close()
        answers.close()
        self._unread = b""
        self.busy = True  # until it says that it is ready

    @property
    def pid(self) -> int:
        assert self._process.pid is not None
        return self._process.pid

    def ask(self, name: str, **arguments: Any) -> None:
        assert not self.busy
        os.write(self._commands.fileno(), json.dumps([name, arguments]).encode() + b"\n")
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
        self._process.join()
        self._commands.close()
        self._answers.close()

    def _read(self, patience_s: float) -> None:
        if not select.select([self._answers], [], [], patience_s)[0]:
            raise AssertionError(f"rank {self._rank} does not answer; its log:\n{self._log.read_text()[-4000:]}")
        data = os.read(self._answers.fileno(), 1 << 20)
        if not data:
            self._process.join(10)
            raise AssertionError(
                f"rank {self._rank} ended ({self._process.exitcode}); its log:\n{self._log.read_text()[-4000:]}"
            )
        self._unread += data


def _be_rank(rank: int, meeting: str, log: str, commands: Connection, answers: Connection) -> None:
    """In the forked process: takes lines from one pipe, answers on the other, and complains to its log."""
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    os.dup2(os.open(log, os.O_WRONLY | os.O_CREAT), 2)
    sys.stdin = os.fdopen(os.dup(commands.fileno()))
    sys.stdout = os.fdopen(os.dup(answers.fileno()), "w")
    commands.close()
    answers.close()
    main(rank, meeting)


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
