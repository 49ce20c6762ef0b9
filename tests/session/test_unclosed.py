"""A Checkpointer that nobody closes."""

from __future__ import annotations

import gc
import logging
import subprocess
import sys
import threading
from pathlib import Path

import pytest

import holdfast as hf
from holdfast.storage import MemoryStore
from tests.tiny import build, train_step

ROOT = Path(__file__).parents[2]

FORGETFUL = """
import sys
import holdfast as hf
from tests.tiny import build, train_step

model, optimizers = build()
guard = hf.Checkpointer(sys.argv[1], model=model, optimizer=optimizers)
guard.resume()
guard.step(loss=train_step(model, optimizers, 0))
"""


def test_the_end_of_the_interpreter_tells_of_a_checkpointer_that_was_never_closed(tmp_path: Path) -> None:
    url = str(tmp_path / "run")
    ended = subprocess.run(
        [sys.executable, "-c", FORGETFUL, url], cwd=ROOT, capture_output=True, text=True, timeout=100
    )
    assert ended.returncode == 0, ended.stderr
    assert f"{url} was never closed" in ended.stderr
    assert "was at step 1" in ended.stderr and "with block" in ended.stderr


def test_one_that_is_forgotten_is_told_at_once(caplog: pytest.LogCaptureFixture) -> None:
    model, optimizers = build()
    guard = hf.Checkpointer(MemoryStore(), model=model, optimizer=optimizers)
    guard.step(loss=train_step(model, optimizers, 0))
    with caplog.at_level(logging.WARNING, "holdfast"):
        del guard
        gc.collect()
    assert "was never closed" in caplog.text


def test_the_agent_of_one_that_is_forgotten_ends() -> None:
    before = agents()
    model, optimizers = build()
    guard = hf.Checkpointer(MemoryStore(), model=model, optimizer=optimizers)
    guard.resume()
    (agent,) = agents() - before
    del guard
    gc.collect()
    agent.join(30)
    assert not agent.is_alive()


def agents() -> set[threading.Thread]:
    """Those that are threads of this process."""
    return {thread for thread in threading.enumerate() if thread.name == "holdfast-agent"}


@pytest.mark.parametrize("way", ["closed", "left", "left by an error", "never started"])
def test_others_are_not_told_of(way: str, caplog: pytest.LogCaptureFixture) -> None:
    model, optimizers = build()
    guard = hf.Checkpointer(MemoryStore(), model=model, optimizer=optimizers)
    with caplog.at_level(logging.WARNING, "holdfast"):
        if way == "closed":
            guard.resume()
            guard.close()
        elif way == "left":
            with guard:
                guard.resume()
        elif way == "left by an error":
            with pytest.raises(ZeroDivisionError), guard:
                guard.resume()
                raise ZeroDivisionError
        del guard
        gc.collect()
    assert "was never closed" not in caplog.text
