"""A run that was trained, gone back in, and trained again."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

import holdfast as hf
from tests.tiny import Tiny, build, train_step


def train(url: Path, first: int | None, steps: int) -> Tiny:
    model, optimizers = build()
    with hf.Checkpointer(
        url,
        model=model,
        optimizer=optimizers,
        save=hf.EverySteps(2),
        strategy=hf.OneShot(),
        retention=hf.KeepAll(),
        overlap=hf.Overlap.WAIT,
    ) as guard:
        guard.resume(first)
        for step in range(guard.steps, steps):
            guard.step(loss=train_step(model, optimizers, step), auc=0.5 + step / 100)
        guard.drain()
        guard.save(tag=f"end-{steps}", wait=True)
    return model


@pytest.fixture(scope="package")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Tiny]:
    """Steps 2 and 4 live, 5 abandoned (tagged), then 6, 8, 9."""
    url = tmp_path_factory.mktemp("runs") / "run"
    train(url, None, 5)
    return url, train(url, 4, 9)


@pytest.fixture
def run(trained: tuple[Path, Tiny], tmp_path: Path) -> Path:
    """A copy to do harm to."""
    shutil.copytree(trained[0], tmp_path / "run")
    return tmp_path / "run"
