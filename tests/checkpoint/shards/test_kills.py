"""Processes that hold shards are killed at different moments of a save."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

import holdfast as hf
from tests.checkpoint.shards.job import change, divided, even_cuts, load, some_tables
from tests.checkpoint.shards.server import SIZES


class Process:
    """A server, started and told what to do."""

    def __init__(self, url: str, part: int) -> None:
        command = [sys.executable, "-m", "tests.checkpoint.shards.server", url, str(part), "2"]
        root = Path(__file__).parents[3]
        self._process = subprocess.Popen(command, cwd=root, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def __call__(self, command: str, value: Any = None) -> Any:
        self.begin(command, value)
        return self.answer()

    def begin(self, command: str, value: Any = None) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps([command, value]) + "\n")
        self._process.stdin.flush()

    def answer(self) -> Any:
        assert self._process.stdout is not None
        return json.loads(self._process.stdout.readline())

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()

    def end(self) -> None:
        if self._process.poll() is None:
            self("end")
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.close()
        self._process.stdout.close()
        assert self._process.wait(60) in (0, -9)


@contextmanager
def two_servers(url: str) -> Iterator[tuple[list[Process], int]]:
    servers = [Process(url, part) for part in range(2)]
    try:
        term = servers[0]("take over")
        for server in servers:
            server("start", term)
        yield servers, term
    finally:
        for server in servers:
            server.end()


def save(servers: list[Process]) -> list[list[str]]:
    intent = servers[0]("intend")
    for server in servers:
        server.begin("capture", intent)
    assert [server.answer() for server in servers] == [True, True]
    return [server("settle") for server in servers]


def replaced(url: str, servers: list[Process], term: int) -> int:
    """Another process takes the place of the second, which was killed; the step of the checkpoint that it loaded."""
    servers[1].end()
    servers[1] = Process(url, 1)
    step: int = servers[1]("take the place", term)
    return step


def test_a_killed_process_costs_its_part_or_nothing(tmp_path: Path) -> None:
    url = str(tmp_path / "run")
    with two_servers(url) as (servers, term):
        assert save(servers) == [["SaveCommitted"]] * 2
        for server in servers:
            server("update", 7)
        intent = servers[0]("intend")
        assert servers[0]("capture", intent)
        servers[1].kill()  # before its part is copied
        servers[0]("cancel")
        assert servers[0]("settle") == ["SaveGivenUp"]
        assert replaced(url, servers, term) == 0  # its update is lost

        for server in servers:
            server("update", 8)
        intent = servers[0]("intend")
        assert servers[0]("capture", intent) and servers[1]("capture", intent)
        servers[1].kill()  # after that: its agent is at work
        assert servers[0]("settle") == ["SaveCommitted"]
        assert replaced(url, servers, term) == 2
        assert save(servers) == [["SaveCommitted"]] * 2
    found, whole, behind = load(url, some_tables(SIZES), 3), some_tables(SIZES), some_tables(SIZES)
    change(whole, 7)
    change(whole, 8)
    change(behind, 8)
    for part, expected in enumerate((whole, behind)):
        for shard in divided(expected, even_cuts(expected, 2), part):
            own = found[shard.table]
            assert all(np.array_equal(own[n][shard.first : shard.stop], v) for n, v in shard.columns.items())
    assert hf.open_run(url).verify() == []
