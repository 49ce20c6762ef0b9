"""Tables fit the terminal: nothing is clipped, and what had to go is named."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from rich.cells import cell_len
from rich.console import Console

import holdfast as hf
from holdfast.cli.tables import FittedTable
from tests.cli.command import holdfast
from tests.tiny import build, train_step


def drawn(table: FittedTable, width: int) -> str:
    console = Console(file=io.StringIO(), width=width)
    console.print(table)
    return console.file.getvalue()  # type: ignore[attr-defined,no-any-return]


def widest(text: str) -> int:
    return max(cell_len(line.rstrip()) for line in text.splitlines())


def test_optional_columns_go_one_by_one_and_are_named() -> None:
    table = FittedTable("step", "kind", "size", "created", "note", optional=("created", "size"))
    table.add_row("100000", "differential", "12.3 MB", "2026-11-15 13:18", "auc=0.7931 loss=0.6829")
    wide, middle, narrow = (drawn(table, width) for width in (80, 50, 38))
    assert "created" in wide and "too narrow" not in wide
    assert "2026" not in middle and "12.3 MB" in middle and "too narrow for: created\n" in middle
    assert "12.3 MB" not in narrow and "too narrow for: created, size\n" in narrow
    for text, width in ((wide, 80), (middle, 50), (narrow, 38)):
        assert widest(text) <= width
        assert text.split()[0] == "step"
        assert {"100000", "differential", "auc=0.7931", "loss=0.6829"} <= set(text.split())


@pytest.fixture(scope="module")
def broad(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run whose checkpoints have many metrics, of a grid."""
    url = tmp_path_factory.mktemp("runs") / "a-run-with-quite-a-long-name-in-a-folder-with-a-long-name"
    model, optimizers = build()
    metrics = {"validation_auc": 0.78125, "calibration": 1.0125, "normalized_entropy": 0.8125}
    with hf.Checkpointer(
        url,
        model=model,
        optimizer=optimizers,
        save=hf.EverySteps(1),
        strategy=hf.Grid(),
        retention=hf.KeepAll(),
        overlap=hf.Overlap.WAIT,
    ) as guard:
        for step in range(8):
            guard.step(loss=train_step(model, optimizers, step), **metrics)
        guard.drain(arranged=True)
    return url


@pytest.mark.parametrize(
    "arguments",
    [
        ["ls"],
        ["show"],
        ["show", "--grid"],
        ["diff", "1", "8"],
        ["prune", "--keep-last", "1", "--dry-run"],
    ],
    ids=" ".join,
)
def test_tables_of_a_run_fit_80_columns(broad: Path, arguments: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    command, *rest = arguments
    text = holdfast(command, broad, *rest)
    assert widest(text) <= 80 and "…" not in text


def test_ls_begins_with_the_step_and_clips_no_metric(broad: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    text = holdfast("ls", broad)
    assert text.split()[0] == "step"
    assert text.split().count("validation_auc=0.7812") == 8
    assert text.split().count("normalized_entropy=0.8125") == 8


def test_problems_fit_80_columns(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    victim = sorted(run.glob("data/*/*.safetensors"))[-1]
    victim.chmod(0o644)
    victim.write_bytes(victim.read_bytes()[:-1] + b"?")
    assert widest(holdfast("verify", run, expect=1)) <= 80


@pytest.mark.parametrize(
    "arguments",
    [
        "plan --hours 56 --model-gb 400 --nodes 8 --mtbf-hours 28 --pls 0.1 --parity 4+1",
        "plan --hours 5600 --model-gb 400000 --nodes 80 --mtbf-hours 28 --write-gb-per-s 1000",
        "simulate --steps 40 --seeds 1 --strategy full --strategy cpr-mfu",
    ],
)
def test_tables_of_plans_and_emulations_fit_80_columns(arguments: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    text = holdfast(*arguments.split())
    assert widest(text) <= 80 and "…" not in text


def test_what_is_likely_kept_only_as_a_base_is_marked_and_garbage_is_counted(run: Path) -> None:
    whole = holdfast("ls", run)
    assert "(base of 5)" in whole and "only base" not in whole and "garbage" not in whole
    holdfast("prune", run, "--keep-last", 2, "--yes")
    text = holdfast("ls", run)
    (marked,) = [line for line in text.splitlines() if "(likely only base of 2)" in line]
    assert marked.split()[0] == "2"
    assert "; garbage in 3 folders" in text and "likely only base: it has no tag" in text
    (garbage,) = [line for line in holdfast("show", run).splitlines() if "garbage" in line]
    objects = sum(len(list(each.iterdir())) for each in (run / "data").iterdir())
    kept = {info.id for info in hf.open_run(run).checkpoints()}
    waiting = objects - sum(len(list((run / "data" / each).iterdir())) for each in kept)
    assert f"{waiting} objects, " in garbage
