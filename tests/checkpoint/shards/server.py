"""A process that holds shards: does what it is told, a line of JSON at a time, and answers with one.

python -m tests.checkpoint.shards.server URL PART PARTS
"""

from __future__ import annotations

import json
import sys
from typing import Any

import holdfast.policy as hf
from holdfast.checkpoint.shards import SavePolicies
from holdfast.events import SaveCommitted, SaveGivenUp
from tests.checkpoint.shards.job import Job, some_tables

SIZES = [60, 13]


class Server:
    """One part of a job; the job's other shards are in other processes."""

    def __init__(self, url: str, part: int, parts: int) -> None:
        self._part = part
        policies = SavePolicies(strategy=hf.Consecutive(), retention=hf.KeepAll())
        self._job = Job(url, some_tables(SIZES), parts, policies=policies, only=part)
        self._writer = self._job.writers[0]

    def do(self, command: str, value: Any) -> Any:
        """Answer a command."""
        match command:
            case "take over":
                return self._job.runs[0].take_over()
            case "start":
                self._writer.start(value)
            case "take the place":
                loaded = self._job.runs[0].load_newest(self._job.shards[0])
                self._writer.start(value, loaded, replaces=True)
                return loaded.info.step
            case "update":
                self._job.update(value)
            case "intend":
                return self._job.intend()
            case "capture":
                return self._job.capture(value, self._part)
            case "cancel":
                self._writer.cancel()
            case "settle":
                self._writer.settle()
                outcomes = [type(each) for each in self._writer.poll()]
                return [kind.__name__ for kind in outcomes if kind in (SaveCommitted, SaveGivenUp)]
            case "end":
                self._writer.close()
        return None


def main(url: str, part: str, parts: str) -> None:
    server = Server(url, int(part), int(parts))
    for line in sys.stdin:
        print(json.dumps(server.do(*json.loads(line))), flush=True)
    assert "torch" not in sys.modules


if __name__ == "__main__":
    main(*sys.argv[1:])
