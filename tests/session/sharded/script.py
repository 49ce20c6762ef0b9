"""Runs a program on several ranks."""

from __future__ import annotations

import socket
from pathlib import Path

from tests.jobs.job import PATIENCE_S, context
from tests.session.sharded.rank import play

context.set_forkserver_preload([play.__module__])


def run_script(text: str, url: str, folder: Path, world: int) -> str:
    """Run a program on so many ranks, as ``torchrun`` would, without importing everything once more; what it prints."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    out = [folder / f"{world}-{number}.txt" for number in range(world)]
    ranks = [
        context.Process(target=play, args=(text, url, number, world, port, str(out[number]))) for number in range(world)
    ]
    for rank in ranks:
        rank.start()
    for rank in ranks:
        rank.join(PATIENCE_S)
    assert [rank.exitcode for rank in ranks] == [0] * world, [each.read_text() for each in out]
    return "".join(each.read_text() for each in out)
