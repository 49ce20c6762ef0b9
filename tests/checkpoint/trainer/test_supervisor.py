"""Agents that die, and what becomes of the save that one of them held."""

from __future__ import annotations

from contextlib import suppress

import holdfast as hf
from holdfast.errors import SaveFailed
from holdfast.storage import MemoryStore
from tests.session.mortal import Trainer, mortal_agents


def test_a_death_that_only_late_metrics_notice_does_not_leave_the_save_under_way_without_an_outcome() -> None:
    store = MemoryStore()
    run = hf.open_run(store)
    with mortal_agents():
        trainer = Trainer(
            store,
            save=hf.Never(),
            strategy=hf.Full(),
            retention=hf.KeepAll(),
            overlap=hf.Overlap.WAIT,
            seed=0,
        )
        trainer.resume()
        trainer.train([0], None)
        trainer.save(None, wait=True)
        trainer.train([1], None)
        trainer.save(None, wait=False)
        trainer.agents[-1].die(after=0)
        trainer.guard._agents.annotate(run.checkpoints()[0].id, {"auc": 0.5})  # nobody has looked since
        with suppress(SaveFailed):
            trainer.guard.drain()
        trainer.guard.close()
    assert [checkpoint.step for checkpoint in run.checkpoints()] == [1, 2]
    assert run.checkpoints()[0].metrics == {"auc": 0.5}
