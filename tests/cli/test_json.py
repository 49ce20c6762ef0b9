"""``--json``: one document on standard output, whatever happens."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import typer
from typer.testing import CliRunner

import holdfast as hf
from holdfast.cli import app
from tests.tiny import Tiny, build

COMMANDS = typer.main.get_command(app).commands  # type: ignore[attr-defined]


def document(*arguments: object, expect: int = 0) -> Any:
    """The only thing on standard output."""
    result = CliRunner().invoke(app, [*map(str, arguments), "--json"])
    assert result.exit_code == expect, result.output
    return json.loads(result.stdout)


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_speaks_json(name: str) -> None:
    assert "--json" in [option for parameter in COMMANDS[name].params for option in parameter.opts]


def test_ls_says_what_the_library_says_and_what_others_stand_on(trained: tuple[Path, Tiny]) -> None:
    listed = document("ls", trained[0])
    infos = hf.open_run(trained[0]).checkpoints()
    assert [item["id"] for item in listed] == [info.id for info in infos]
    assert listed[-1]["metrics"] == infos[-1].metrics
    assert listed[-1]["kind"] == "differential"
    assert (listed[0]["base_of"], listed[0]["only_base"]) == (len(infos) - 1, False)
    assert {(item["base_of"], item["only_base"]) for item in listed[1:]} == {(0, False)}


def test_diff_counts_changed_rows(trained: tuple[Path, Tiny]) -> None:
    found = {item["table"]: item["changed_rows"] for item in document("diff", trained[0], 2, 9)}
    assert found == {each.table: each.changed_rows for each in hf.open_run(trained[0]).diff(2, 9)}


def test_the_grid_is_told_as_it_is_drawn(trained: tuple[Path, Tiny]) -> None:
    assert document("show", trained[0], "--grid")["baseline"]["step"] == 2


def test_verify_lists_problems_and_ends_with_1(run: Path) -> None:
    assert document("verify", run)["problems"] == []
    victim = sorted(run.glob("data/*/*.safetensors"))[-1]
    victim.chmod(0o644)
    victim.write_bytes(victim.read_bytes()[:-1] + b"?")
    found = document("verify", run, expect=1)
    assert str(victim.relative_to(run)) in [problem["object_name"] for problem in found["problems"]]


def test_verify_tells_what_became_of_a_suspect(run: Path) -> None:
    newest = hf.open_run(run).checkpoints()[-1].id
    victim = sorted(run.glob(f"data/{newest}/*.safetensors"))[-1]
    sound = victim.read_bytes()
    victim.chmod(0o644)
    victim.write_bytes(sound[:-1] + b"?")
    model, optimizers = build()
    with hf.Checkpointer(run, model=model, optimizer=optimizers, retention=hf.KeepAll()) as guard:
        guard.resume()
    victim.write_bytes(sound)
    assert document("verify", run)["suspects"] == [{"step": 9, "id": newest, "became": "cleared"}]


def test_export_report_and_import_name_their_files(trained: tuple[Path, Tiny], tmp_path: Path) -> None:
    exported = document("export", trained[0], tmp_path / "model.safetensors")
    file = Path(exported["file"])
    assert (exported["checkpoint"]["step"], exported["size_bytes"]) == (9, file.stat().st_size)
    report = document("report", trained[0], "-o", tmp_path / "report.html")
    assert report["size_bytes"] == Path(report["file"]).stat().st_size
    torch.save({"state_dict": trained[1].state_dict(), "epoch": 3}, tmp_path / "old.pt")
    imported = document("import", tmp_path / "new", tmp_path / "old.pt", "--step", 40)
    assert (imported["checkpoint"]["step"], imported["tables"]) == (40, ["emb.0", "emb.1"])
    assert imported["skipped"].keys() == {"epoch"}


def test_prune_tells_verdicts_and_what_it_deleted_and_never_asks(run: Path) -> None:
    rules = ("prune", run, "--keep-last", 1, "--grace-minutes", 0)
    assert "--yes or --dry-run" in document(*rules, expect=2)["error"]["message"]
    planned = document(*rules, "--dry-run")
    assert (planned["dropped"], planned["deleted"]) == (None, None)
    goes = [each["checkpoint"]["id"] for each in planned["verdicts"] if not each["stays"]]
    assert [each["needed_by"]["step"] for each in planned["verdicts"] if each["needed_by"]] == [9]
    done = document(*rules, "--yes")
    assert done["dropped"] == goes and done["deleted"]["objects"] > 0
    assert [info.step for info in hf.open_run(run).checkpoints()] == [2, 9]


@pytest.mark.parametrize(
    ("arguments", "kind", "told"),
    [
        (["ls", "{tmp}/nowhere"], "CheckpointNotFound", "holds no run yet"),
        (["show", "{tmp}/nowhere"], "CheckpointNotFound", "holds no run yet"),
        (["follow", "{tmp}/nowhere", "--once"], "CheckpointNotFound", "holds no run yet"),
        (["import", "{tmp}/new", "{tmp}/missing.pt"], "ConfigurationError", "no such file"),
        (["plan", "--hours", "56", "--model-gb", "400"], "BadParameter", "--mtbf-hours"),
        (["simulate", "--failures", "often"], "BadParameter", "often"),
        (["report", "-o", "{tmp}/report.html"], "BadParameter", "--emulation FILE"),
        (["ls"], "MissingParameter", "URL"),
        (["ls", "{tmp}", "--colour"], "NoSuchOption", "--colour"),
        (["list", "{tmp}"], "UsageError", "list"),
    ],
)
def test_an_error_is_json_too_and_ends_with_2(tmp_path: Path, arguments: list[str], kind: str, told: str) -> None:
    error = document(*(argument.format(tmp=tmp_path) for argument in arguments), expect=2)["error"]
    assert error["type"] == kind and told in error["message"]
