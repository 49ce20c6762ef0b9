"""Jobs of 1, 2 and 4 ranks, forked from a process that has imported everything; one of each size is kept."""

from __future__ import annotations

import multiprocessing
import tempfile
from multiprocessing.connection import wait
from typing import Any

import numpy as np

from tests.integrations.torchrec.rank import Arrays, serve

PATIENCE_S = 120.0
_context = multiprocessing.get_context("forkserver")
_context.set_forkserver_preload(["tests.integrations.torchrec.rank"])


class Job:
    """All ranks of a world. ``call`` expects success on each; ``outcomes`` takes what comes."""

    def __init__(self, world: int) -> None:
        self._folder = tempfile.TemporaryDirectory()
        self.world = world
        pipes = [_context.Pipe() for _ in range(world)]
        self.pipes = [own for own, _ in pipes]
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
        for pipe in self.pipes:
            pipe.send((name, arguments))

    def answers(self) -> list[tuple[str, Any]]:
        """One of each rank. Where one failed, others may wait for it forever: they get little time."""
        found: dict[int, tuple[str, Any]] = {}
        while len(found) < self.world:
            patience_s = 20.0 if any(kind == "failed" for kind, _ in found.values()) else PATIENCE_S
            waiting = [self.pipes[number] for number in range(self.world) if number not in found]
            if not (ready := wait(waiting, patience_s)):
                self.whole = False
                return [found.get(number, ("failed", "no answer; another rank")) for number in range(self.world)]
            for pipe in ready:
                found[self.pipes.index(pipe)] = pipe.recv()
        return [found[number] for number in range(self.world)]

    def answer(self, number: int) -> tuple[str, Any]:
        if not self.pipes[number].poll(PATIENCE_S):
            self.whole = False
            raise TimeoutError(f"rank {number} of {self.world} does not answer")
        found: tuple[str, Any] = self.pipes[number].recv()
        return found

    def ask_one(self, number: int, name: str, **arguments: Any) -> Any:
        self.pipes[number].send((name, arguments))
        kind, value = self.answer(number)
        assert kind == "done", value
        return value

    def kill(self, number: int) -> None:
        self.whole = False
        self.processes[number].kill()
        self.processes[number].join()

    def stop(self) -> None:
        for process in self.processes:
            process.kill()
            process.join()
        for pipe in self.pipes:
            pipe.close()
        self._folder.cleanup()


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


def joined(parts: list[Arrays]) -> Arrays:
    """Whole tables and slots, from what all ranks hold of them. A slot with one entry per row and strip keeps these."""
    found: Arrays = {}
    pieces: dict[str, dict[tuple[int, int], Any]] = {}
    for part in parts:
        for key, values in part.items():
            name, _, place = key.partition("@")
            pieces.setdefault(name, {})[tuple(map(int, place.strip("()").split(","))) if "," in place else (0, 0)] = (
                values
            )
    for name, by_place in pieces.items():
        strips: dict[int, list[Any]] = {}
        for row, column in sorted(by_place):
            strips.setdefault(column, []).append(by_place[row, column])
        columns = {column: np.concatenate(rows) for column, rows in strips.items()}
        has_sums = name.endswith(".momentum1") and all(values.size == len(values) for values in columns.values())
        if not has_sums:
            found[name] = np.concatenate([columns[column] for column in sorted(columns)], axis=-1)
        else:
            for column, values in columns.items():
                found[f"{name}[{column}]"] = values.reshape(-1)
    return found


def assert_same(now: Arrays, before: Arrays) -> None:
    """Bit for bit."""
    assert now.keys() == before.keys(), now.keys() ^ before.keys()
    for name, values in before.items():
        assert values.dtype == now[name].dtype, name
        assert values.tobytes() == np.ascontiguousarray(now[name]).tobytes(), f"{name} differs"
