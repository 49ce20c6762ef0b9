"""A trainer to be killed, again and again: every line on stdin starts one, as a fork, in an instant.

It prints what it does, one word and a number per line.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
import traceback
from collections.abc import Sequence

import torch

import holdfast as hf
from holdfast.session import Checkpointer
from tests.tiny import build, same, snapshot, train_step, uninterrupted

EVERY = 4
STRATEGIES = {"consecutive": hf.Consecutive(), "intermittent": hf.Intermittent(), "grid": hf.Grid()}
SETTINGS = hf.Settings(
    buffer_bytes=4 * 65536,
    frame_bytes=65536,
    lease_s=1.0,  # whose agent is killed as well waits for no longer than this
    retry_s=60.0,
)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("url")
    parser.add_argument("options")
    parser.add_argument("strategy", choices=STRATEGIES)
    parser.add_argument("steps", type=int)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    for _ in sys.stdin:
        if (pid := os.fork()) == 0:
            os._exit(live(arguments))
        say("trainer", pid)
        say("ended", os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))


def live(arguments: argparse.Namespace) -> int:
    try:
        train(arguments.url, json.loads(arguments.options), arguments.strategy, arguments.steps)
    except BaseException:
        traceback.print_exc()
        return 1
    return 0


def train(url: str, options: dict[str, str], strategy: str, steps: int) -> None:
    model, optimizers = build()
    with Checkpointer(
        url,
        model=model,
        optimizer=optimizers,
        save=hf.EverySteps(EVERY),
        strategy=STRATEGIES[strategy],
        retention=hf.KeepAll(),
        overlap=hf.Overlap.WAIT,
        options=options,
        settings=SETTINGS,
    ) as guard:
        say("resumed", guard.resume())
        told: Sequence[int | None] = ()
        for step in range(guard.steps, steps):
            guard.step(loss=train_step(model, optimizers, step))
            now = (guard.agent_pid, guard.stats.last_commit_step)
            if now != told:
                say("agent", guard.agent_pid or 0)
                say("committed", guard.stats.last_commit_step or 0)
            told = now
            time.sleep(0.02)
    say("exact", int(same(snapshot(model, optimizers), uninterrupted(steps))))


def say(word: str, number: int) -> None:
    sys.stdout.write(f"{word} {number}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
