"""What was sealed before the agent was up is committed, however soon the next trainer comes."""

from __future__ import annotations

import logging
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch

import holdfast as hf
from holdfast.errors import NotResumed
from tests.tiny import build, train_step

SETTINGS = hf.Settings(handle_sigterm=False, takeover_s=120.0)


class Thaw(logging.Handler):
    """Lets a process go on as soon as somebody says that he waits."""

    def __init__(self, pid: int) -> None:
        super().__init__()
        self._pid = pid
        self.told = False

    def emit(self, record: logging.LogRecord) -> None:
        if "waiting for" in record.getMessage():
            self.told = True
            os.kill(self._pid, signal.SIGCONT)


@contextmanager
def frozen(pid: int) -> Iterator[Thaw]:
    """A process that stands still until another is heard to wait."""
    os.kill(pid, signal.SIGSTOP)
    thaw, logger = Thaw(pid), logging.getLogger("holdfast")
    logger.addHandler(thaw)
    try:
        yield thaw
    finally:
        logger.removeHandler(thaw)
        os.kill(pid, signal.SIGCONT)


@pytest.mark.parametrize("resumes", [True, False], ids=["and resumes", "and does not resume"])
def test_a_second_trainer_that_comes_at_once_waits_for_the_first_snapshot(tmp_path: Path, resumes: bool) -> None:
    torch.manual_seed(0)
    model, optimizers = build(0)
    first = hf.Checkpointer(tmp_path, model=model, optimizer=optimizers, settings=SETTINGS)
    first.resume()
    assert first.agent_pid is not None
    with frozen(first.agent_pid) as thaw:
        train_step(model, optimizers, 0)
        first.step()
        assert first.save()
        again, others = build(1)
        second = hf.Checkpointer(tmp_path, model=again, optimizer=others, settings=SETTINGS)
        if resumes:
            assert second.resume() == 1
        else:
            with pytest.raises(NotResumed, match="up to step 1"):
                second.step()
        assert thaw.told
    second.close()
    if resumes:
        with pytest.raises(hf.TakenOver):
            first.save(wait=True)
        with pytest.raises(hf.TakenOver):
            first.close()
    else:
        first.close()
    assert [info.step for info in hf.open_run(tmp_path).checkpoints()] == [1]


def test_the_lease_of_a_starting_agent_goes_when_it_is_up(tmp_path: Path) -> None:
    model, optimizers = build(0)
    with hf.Checkpointer(tmp_path, model=model, optimizer=optimizers, settings=SETTINGS) as guard:
        guard.resume()
        guard.save(wait=True)
    assert not list(tmp_path.glob("leases/*"))
