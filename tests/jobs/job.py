"""Jobs of several ranks, forked from a process that has imported everything; one of each size is kept."""

from __future__ import annotations

import multiprocessing
import tempfile
from multiprocessing.connection import wait
from typing import Any

from tests.jobs.rank import Rank, serve

PATIENCE_S = 120.0
context = multiprocessing.get_context("forkserver")


class Job:
    """All ranks of a world. ``call`` expects success on each; ``outcomes`` takes what comes."""

    def __init__(self, kind: type[Rank], world: int) -> None:
        self._folder = tempfile.TemporaryDirectory()
        self.world = world
        pipes = [context.Pipe() for _ in range(world)]
        self._pipes = [own for own, _ in pipes]
        self.processes = [
            context.Process(target=serve, args=(kind, number, world, self._folder.name, pipes[number][1]), daemon=True)
            for number in range(world)
        ]
        for process, (_, theirs) in zip(self.processes, pipes, strict=True):
            process.start()
            theirs.close()
        self.whole = True
        self.answers()

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
        if not self._pipes[number].poll(PATIENCE_S):
            self.whole = False
            raise TimeoutError(f"rank {number} of {self.world} does not answer")
        kind, value = self._received(number)
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


class Jobs:
    """Keeps a job of each size, of one kind of ranks, for the next test, as long as it is whole."""

    def __init__(self, kind: type[Rank]) -> None:
        context.set_forkserver_preload([kind.__module__])
        self._kind = kind
        self._jobs: dict[int, Job] = {}

    def get(self, world: int) -> Job:
        job = self._jobs.get(world)
        if job is None or not job.whole:
            if job is not None:
                job.stop()
            job = self._jobs[world] = Job(self._kind, world)
        return job

    def stop(self) -> None:
        for job in self._jobs.values():
            job.stop()
