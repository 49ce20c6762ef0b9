"""Jobs of 1, 2 and 4 ranks, forked from a process that has imported everything; one of each size is kept."""

from __future__ import annotations

import multiprocessing
import socket
import tempfile
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any

import numpy as np

from tests.session.sharded.rank import Arrays, play, serve

PATIENCE_S = 120.0
_context = multiprocessing.get_context("forkserver")
_context.set_forkserver_preload(["tests.session.sharded.rank"])


class Job:
    """All ranks of a world. ``call`` expects success on each; ``outcomes`` takes what comes."""

    def __init__(self, world: int) -> None:
        self._folder = tempfile.TemporaryDirectory()
        self.world = world
        pipes = [_context.Pipe() for _ in range(world)]
        self._pipes = [own for own, _ in pipes]
        self.processes = [
            _context.Process(target=serve, args=(number, world, self._folder.name, pipes[number][1]), daemon=True)
            for number in range(world)
        ]
        for process, (_, theirs) in zip(self.processes, pipes, strict=True):
            process.start()
            theirs.close()
        self.answers()
        self.whole = True

    def call(self, name: str, **arguments: Any) -> list[Any]:
        found = self.outcomes(name, **arguments)
        assert all(kind == "done" for kind, _ in found), "\n".join(
            str(value) for kind, value in found if kind != "done"
        )
        return [value for _, value in found]

    def outcomes(self, name: str, **arguments: Any) -> list[tuple[str, Any]]:
        self.ask(name, **arguments)
        return self.answers()

    def ask(self, name: str, **arguments: Any) -> None:
        for pipe in self._pipes:
            pipe.send((name, arguments))

    def ask_one(self, number: int, name: str, **arguments: Any) -> Any:
        self._pipes[number].send((name, arguments))
        kind, value = self._pipes[number].recv()
        assert kind == "done", value
        return value

    def answers(self) -> list[tuple[str, Any]]:
        """One of each rank. Where one failed, others may wait for it forever: they get little time."""
        found: dict[int, tuple[str, Any]] = {}
        while len(found) < self.world:
            patience_s = 20.0 if any(kind == "failed" for kind, _ in found.values()) else PATIENCE_S
            waiting = [self._pipes[number] for number in range(self.world) if number not in found]
            if not (ready := wait(waiting, patience_s)):
                self.whole = False
                return [found.get(number, ("failed", "no answer; another rank")) for number in range(self.world)]
            for number in (self._pipes.index(pipe) for pipe in ready):
                found[number] = self._received(number)
        return [found[number] for number in range(self.world)]

    def _received(self, number: int) -> tuple[str, Any]:
        try:
            found: tuple[str, Any] = self._pipes[number].recv()
        except EOFError:
            self.whole = False
            self.processes[number].join(5)
            return "failed", f"rank {number} of {self.world} ended ({self.processes[number].exitcode})"
        return found

    def kill(self, number: int) -> None:
        self.whole = False
        self.processes[number].kill()
        self.processes[number].join()

    def stop(self) -> None:
        for process in self.processes:
            process.kill()
            process.join()
        for pipe in self._pipes:
            pipe.close()
        self._folder.cleanup()


def run_script(text: str, url: str, folder: Path, world: int) -> str:
    """Run a program on so many ranks, as ``torchrun`` would, without importing everything once more; what it prints."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    out = [folder / f"{world}-{number}.txt" for number in range(world)]
    ranks = [
        _context.Process(target=play, args=(text, url, number, world, port, str(out[number])))
        for number in range(world)
    ]
    for rank in ranks:
        rank.start()
    for rank in ranks:
        rank.join(PATIENCE_S)
    assert [rank.exitcode for rank in ranks] == [0] * world, [each.read_text() for each in out]
    return "".join(each.read_text() for each in out)


class Jobs:
    """Keeps a job of each size for the next test, as long as it is whole."""

    def __init__(self) -> None:
        self._jobs: dict[int, Job] = {}

    def get(self, world: int) -> Job:
        job = self._jobs.get(world)
        if job is None or not job.whole:
            if job is not None:
                job.stop()
            job = self._jobs[world] = Job(world)
        return job

    def stop(self) -> None:
        for job in self._jobs.values():
            job.stop()


def assert_same(now: Arrays, before: Arrays) -> None:
    """Bit for bit."""
    assert now.keys() == before.keys(), now.keys() ^ before.keys()
    for name, values in before.items():
        assert values.dtype == now[name].dtype, name
        assert values.tobytes() == np.ascontiguousarray(now[name]).tobytes(), f"{name} differs"
