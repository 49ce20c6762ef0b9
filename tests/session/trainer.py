"""A trainer process for tests that kill it: prints what it does, one word and a number per line.

Most of them are forks of a process that has imported all of this, in a session of their own, as if just started.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import time
from collections.abc import Sequence
from multiprocessing.connection import Connection

import torch

import holdfast as hf
from tests.tiny import build, same, snapshot, train_step, uninterrupted


def main(given: Sequence[str]) -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("url")
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--every", type=int, default=10)
    parser.add_argument("--pause-s", type=float, default=0.0)
    parser.add_argument("--hold-at", type=int, default=-1)
    parser.add_argument("--partial", action="store_true", help="save rows at every second step, too")
    arguments = parser.parse_args(given)
    torch.set_num_threads(1)
    model, optimizers = build()
    with hf.Checkpointer(
        arguments.url,
        model=model,
        optimizer=optimizers,
        save=hf.EverySteps(arguments.every),
        strategy=hf.Partial(priority=hf.MFU(r=0.2), consistent=hf.Consecutive()) if arguments.partial else None,
        overlap=hf.Overlap.WAIT,
    ) as guard:
        say("resumed", guard.resume())
        say("agent", guard.agent_pid or 0)
        for step in range(guard.steps, arguments.steps):
            before, rows_before = guard.stats.snapshots, guard.stats.priority_saves
            guard.step(loss=train_step(model, optimizers, step))
            if guard.stats.priority_saves > rows_before:
                say("rows", guard.steps)
            if guard.stats.snapshots > before:
                say("snapshot", guard.steps)
            say("step", guard.steps)
            if guard.steps == arguments.hold_at:
                say("holding", guard.steps)
                time.sleep(600)
            time.sleep(arguments.pause_s)
    say("exact", int(same(snapshot(model, optimizers), uninterrupted(arguments.steps))))


def run_fork(told: Connection, given: Sequence[str]) -> None:
    """The same, in a process that was forked: what it prints goes there."""
    os.setsid()
    os.dup2(told.fileno(), 1)
    told.close()
    signal.signal(signal.SIGINT, signal.default_int_handler)
    main(given)


def say(word: str, number: int) -> None:
    sys.stdout.write(f"{word} {number}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a test run in the background has it ignored
    main(sys.argv[1:])
