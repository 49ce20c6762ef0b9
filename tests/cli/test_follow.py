"""``holdfast follow``: what it tells, and the file that it keeps up to date."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file
from typer.testing import CliRunner

import holdfast as hf
from holdfast.checkpoint.follow.news import CatalogWatch
from holdfast.checkpoint.follow.update import Update
from holdfast.cli import app, following
from tests.tiny import Tiny, build, same, train_step

COMMAND = [sys.executable, "-c", "from holdfast.cli import main; main()", "follow"]


class Training:
    """A trainer of a run, with saves on demand."""

    def __init__(self, url: Path, step: int | None = None) -> None:
        self.model, self.optimizers = build()
        self.guard = hf.Checkpointer(
            url,
            model=self.model,
            optimizer=self.optimizers,
            save=hf.Never(),
            strategy=hf.Consecutive(),
            retention=hf.KeepAll(),
            overlap=hf.Overlap.WAIT,
        )
        self.guard.resume(step)

    def save(self) -> Tiny:
        self.guard.step(loss=train_step(self.model, self.optimizers, self.guard.steps))
        self.guard.save(wait=True)
        return self.model


@pytest.fixture
def training(tmp_path: Path) -> Iterator[Training]:
    trained = Training(tmp_path / "run")
    trained.save()
    yield trained
    trained.guard.close()


def follow(*arguments: object, expect: int = 0) -> str:
    result = CliRunner().invoke(app, ["follow", *map(str, arguments)])
    assert result.exit_code == expect, result.output
    return result.stdout if expect == 0 else result.output


def test_a_process_that_looks_once_tells_of_the_newest_and_exports_it(training: Training, tmp_path: Path) -> None:
    training.save()
    file = tmp_path / "model.safetensors"
    command = [*COMMAND, str(tmp_path / "run"), "--once", "--export", str(file)]
    result = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    told, exported = result.stdout.splitlines()
    assert told.startswith("step 2 (incremental, ") and "rows, " in told
    assert f"{file} holds step 2: 340 rows changed" in exported and "nothing was applied yet" in exported
    assert same(load_file(file), dict(training.model.state_dict()))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["model.safetensors", "run"]


def test_a_process_that_goes_on_follows_with_increments(training: Training, tmp_path: Path) -> None:
    file = tmp_path / "model.safetensors"
    command = [*COMMAND, str(tmp_path / "run"), "--json", "--every", "0.01", "--export", str(file)]
    heed = partial(signal.signal, signal.SIGINT, signal.SIG_DFL)  # a shell's job in the background ignores it
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, preexec_fn=heed) as process:
        assert process.stdout is not None
        told: list[dict[str, Any]] = []

        def until(event: str, step: int) -> dict[str, Any]:
            while True:
                told.append(json.loads(process.stdout.readline()))  # type: ignore[union-attr]
                if (told[-1]["event"], told[-1].get("step")) == (event, step):
                    return told[-1]

        try:
            assert until("exported", 1)["whole"]
            for step in (2, 3):
                training.save()
                exported = until("exported", step)
                assert exported["from_step"] == step - 1 and not exported["whole"] and exported["rows"] < 340
                assert same(load_file(file), dict(training.model.state_dict()))
            process.send_signal(signal.SIGINT)
            assert process.wait(60) != 0
        finally:
            process.kill()
    assert [each["step"] for each in told if each["event"] == "committed"] == [1, 2, 3]
    assert all(each["rows"] > 0 and each["size_bytes"] > 0 and each["age_s"] >= 0 for each in told if "kind" in each)


def test_a_commit_is_reported_before_the_export_that_holds_it(
    training: Training, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    update = following._Export.update

    def save_first(export: following._Export) -> Update | None:
        training.save()  # after the look at the catalog
        return update(export)

    monkeypatch.setattr(following._Export, "update", save_first)
    lines = follow(tmp_path / "run", "--json", "--once", "--export", tmp_path / "model.safetensors").splitlines()
    told = [(each["event"], each["step"]) for each in map(json.loads, lines)]
    assert told == [("committed", 1), ("committed", 2), ("exported", 2)]


def test_going_back_is_told(training: Training, tmp_path: Path) -> None:
    watch, run = CatalogWatch(), hf.open_run(tmp_path / "run")
    training.save()
    assert [info.step for info in watch.look(run.head()).committed] == [2]
    training.guard.close()
    again = Training(tmp_path / "run", step=1)
    news = watch.look(run.head())
    assert news.committed == () and [info.step for info in news.abandoned] == [2]
    assert news.newest is not None and news.newest.step == 1
    again.save()
    news = watch.look(run.head())
    assert [info.step for info in news.committed] == [2] and news.abandoned == ()
    again.guard.close()


def test_errors_of_a_single_look_end_it(training: Training, tmp_path: Path) -> None:
    assert "holds no run yet" in follow(tmp_path / "nowhere", "--once", expect=2)
    assert "name it .safetensors" in follow(tmp_path / "run", "--once", "--export", tmp_path / "model.pt", expect=2)
    assert "does not exist" in follow(tmp_path / "run", "--export", tmp_path / "none" / "a.safetensors", expect=2)
    for path in (tmp_path / "run").glob("data/*/*.safetensors"):
        data = bytearray(path.read_bytes())
        data[len(data) // 2 :] = bytes(byte ^ 1 for byte in data[len(data) // 2 :])
        path.chmod(0o644)
        path.write_bytes(data)
    text = follow(tmp_path / "run", "--once", "--export", tmp_path / "model.safetensors", expect=2)
    assert ".safetensors: " in text and "reload everything" in text
    assert not (tmp_path / "model.safetensors").exists()
