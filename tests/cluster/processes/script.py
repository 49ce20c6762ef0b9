"""A job whose controller is a process of its own: ``python -m tests.cluster.processes.script RUN OPTIONS``."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import holdfast as hf
from tests.cluster.processes import bad_programs, programs
from tests.cluster.processes.gate import Gate
from tests.cluster.processes.watched import WAIT_S, Watched

_ROOT = Path(__file__).parents[3]


class ScriptJob(Watched):
    """The same, as a test sees it.

    Args:
        url: Of its run.
        folder: For its gate, and for what it says.
        options: Of the cluster, as Python: ``servers=2``.
        limit: Up to which step its gate is open.
    """

    def __init__(self, url: Path, folder: Path, options: str = "", *, limit: int = 0, step_s: float = 0.0) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.gate = Gate(folder)
        self.gate.open(limit, step_s=step_s)
        (folder / "at-0").unlink(missing_ok=True)
        (folder / "held-0").unlink(missing_ok=True)
        self.log = folder / "log"
        with self.log.open("ab") as log:
            self.controller = subprocess.Popen(
                [sys.executable, "-m", "tests.cluster.processes.script", str(url), options],
                cwd=_ROOT,
                env={**os.environ, **Gate.environment(folder)},
                stdout=log,
                stderr=log,
            )
        super().__init__(self.controller.pid)

    def until_at(self, step: int) -> None:
        """Wait until the first worker has taken so many steps."""
        end_s = time.monotonic() + WAIT_S
        while self.gate.at() < step:
            assert self.controller.poll() is None, self.log.read_text()
            assert time.monotonic() < end_s, self.log.read_text()
            time.sleep(0.02)
        self.look()

    def end(self, how: signal.Signals) -> int:
        """Send the controller a signal; its exit code."""
        self.look()
        self.controller.send_signal(how)
        return self.controller.wait(WAIT_S)

    def abandon(self) -> None:
        """Kill all of it."""
        if self.controller.poll() is None:
            self.look()
            self.controller.kill()
            self.controller.wait()
        for process in self.left():
            process.kill()


def main(url: str, options: str) -> None:
    """Run the job."""
    settings: dict[str, Any] = {
        "model": programs.build_net,
        "train": programs.train_gated,
        "servers": 2,
        "workers": 1,
        "optimizer": hf.Adagrad(0.05),
        "dense_optimizer": hf.Adam(0.01),
        "tables": programs.ON_SERVERS,
        "save": hf.Never(),
        "ahead": 0,
        "launcher": hf.LocalProcesses(worker_threads=1),
        "view": False,
    }
    given = eval(f"dict({options})", {"hf": hf, "bad_programs": bad_programs})
    with hf.Cluster(url, **{**settings, **given}) as cluster:
        cluster.run()


if __name__ == "__main__":
    main(*sys.argv[1:])
