"""The ``holdfast`` command, on a run that was trained, gone back in, and trained again."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from typer.testing import CliRunner

import holdfast as hf
from holdfast.checkpoint.commit.lease import Lease
from holdfast.cli import app
from holdfast.cluster.record import page_name
from tests.cli.command import holdfast
from tests.cluster.stories import story
from tests.tiny import Tiny, build, same, train_step


def lines(text: str, word: str) -> list[str]:
    return [line for line in text.splitlines() if word in line]


def steps(url: Path) -> list[int]:
    return [info.step for info in hf.open_run(url).checkpoints()]


def flip(path: Path, offset: int) -> None:
    data = bytearray(path.read_bytes())
    data[offset] ^= 1
    path.chmod(0o644)
    path.write_bytes(data)


def test_ls_lists_every_checkpoint_and_marks_the_abandoned(trained: tuple[Path, Tiny]) -> None:
    text = holdfast("ls", trained[0])
    listed = [line.split()[0] for line in text.splitlines() if line.split() and line.split()[0].isdigit()]
    assert listed[:-1] == [str(info.step) for info in hf.open_run(trained[0]).checkpoints()]
    (abandoned,) = lines(text, "abandoned")
    assert "end-5" in abandoned
    assert len(lines(text, "full  ")) == 1 + 1  # the heading, and the one baseline
    assert "auc=0.58" in text


def test_show_describes_the_run_its_tables_and_what_a_checkpoint_stands_on(trained: tuple[Path, Tiny]) -> None:
    text = holdfast("show", trained[0])
    assert "differential" in lines(text, "kind")[0]
    assert "step 2 (full" in lines(text, "depends on")[0]
    assert "exp_avg F32, exp_avg_sq F32" in lines(text, "emb.0")[0]
    assert "300" in lines(text, "emb.0")[0]
    assert "none" in lines(text, "leases")[0]
    assert "nothing: it is a baseline" in holdfast("show", trained[0], "--step", 2)


def test_show_tells_by_which_rung_each_death_was_made_up_for(run: Path) -> None:
    assert json.loads(holdfast("show", run, "--json"))["jobs"] == []
    page = run / page_name(1, 1)
    page.parent.mkdir()
    page.write_bytes(story().encode())
    text = holdfast("show", run)
    assert "3 servers, 2 workers, parity (2 + 1) → partial → full" in " ".join(text.split())
    row = next(line.split() for line in text.splitlines() if "server 1 (1)" in line)
    assert row[-6:] == ["partial", "1.0", "s", "30", "7,680", "0.0125"]
    (job,) = json.loads(holdfast("show", run, "--json"))["jobs"]
    assert [death["rung"] for death in job["deaths"]] == ["partial", None, None]
    assert (job["deaths"][0]["member"], job["deaths"][0]["lost_steps"]) == ("server 1 (1)", 30)


def test_show_as_json_holds_every_figure(trained: tuple[Path, Tiny]) -> None:
    shown = json.loads(holdfast("show", trained[0], "--json"))
    assert (shown["term"], shown["checkpoint"]["step"], shown["head"]) == (2, 9, shown["checkpoint"]["id"])
    assert [table["spec"]["rows"] for table in shown["tables"]] == [300, 40]
    assert shown["tables"][0]["size_bytes"] == 300 * 4 * 4 * 3
    assert [part["rank"] for part in shown["parts"]] == [0]


def test_verify_of_a_sound_run_ends_with_0(trained: tuple[Path, Tiny]) -> None:
    assert "all bytes intact" in holdfast("verify", trained[0])


def test_verify_names_the_damaged_object_and_ends_with_1(run: Path) -> None:
    victim = sorted(run.glob("data/*/*.safetensors"))[-1]
    flip(victim, -1)
    text = holdfast("verify", run, expect=1)
    assert str(victim.relative_to(run)) in text


def test_a_checkpoint_that_resume_passed_over_is_shown_as_suspect_and_stays_until_verify_condemns_it(run: Path) -> None:
    newest = next(info.id for info in hf.open_run(run).checkpoints() if info.step == 9)
    flip(sorted(run.glob(f"data/{newest}/*.safetensors"))[-1], -1)
    model, optimizers = build()
    with hf.Checkpointer(run, model=model, optimizer=optimizers, retention=hf.KeepAll()) as guard:
        assert guard.resume() == 8
    assert "(abandoned, suspect)" in lines(holdfast("ls", run), "end-9")[0]
    assert "kept: suspect" in holdfast("prune", run, "--keep-last", 1, "--yes", "--grace-minutes", 0)
    assert "step 9 was suspect and is damaged: it is condemned" in holdfast("verify", run, expect=1)
    assert "(abandoned, condemned)" in lines(holdfast("ls", run), "end-9")[0]
    holdfast("prune", run, "--keep-last", 1, "--yes", "--grace-minutes", 0)
    assert steps(run) == [2, 8]


def test_diff_counts_changed_rows(trained: tuple[Path, Tiny]) -> None:
    text = holdfast("diff", trained[0], 2, 9)
    (expected,) = [each for each in hf.open_run(trained[0]).diff(2, 9) if each.table == "emb.0"]
    assert lines(text, "emb.0")[0].split()[1:3] == ["300", str(expected.changed_rows)]


@pytest.mark.parametrize("file", ["model.safetensors", "model.pt"])
def test_export_writes_what_stock_readers_load(trained: tuple[Path, Tiny], tmp_path: Path, file: str) -> None:
    url, model = trained
    assert "step 9" in holdfast("export", url, tmp_path / file)
    loaded = load_file(tmp_path / file) if file.endswith("s") else torch.load(tmp_path / file, weights_only=True)
    assert same(loaded, dict(model.state_dict()))


def test_prune_shows_what_goes_and_what_is_depended_on_and_changes_nothing_when_dry(run: Path) -> None:
    before = steps(run)
    text = holdfast("prune", run, "--keep-last", 1, "--dry-run")
    assert "step 9 depends on it" in next(line for line in text.splitlines() if line.split()[:1] == ["2"])
    assert len(lines(text, "dropped")) == len(before) - 2
    assert steps(run) == before


def test_prune_asks_first(run: Path) -> None:
    before = steps(run)
    holdfast("prune", run, "--keep-last", 1, expect=1, answer="n\n")
    assert steps(run) == before
    holdfast("prune", run, "--keep-last", 1, answer="y\n")
    assert steps(run) == [2, 9]


def test_prune_with_yes_deletes_what_is_past_its_grace(run: Path) -> None:
    before = len(list(run.glob("data/*/*.safetensors")))
    holdfast("prune", run, "--keep-best", "loss:min", "--keep-tagged", "--yes", "--grace-minutes", 0)
    assert 5 in steps(run)
    assert len(list(run.glob("data/*/*.safetensors"))) < before
    assert holdfast("verify", run)


def test_prune_joins_its_rules_and_limits_them_by_age(run: Path) -> None:
    text = holdfast("prune", run, "--keep-every", 4, "--keep-last", 9, "--ttl-days", "0.0000001", "--dry-run")
    assert len(lines(text, "kept")) == 2  # the newest, and its baseline


def test_prune_without_a_rule_is_a_usage_error(run: Path) -> None:
    before = steps(run)
    assert "--keep-last" in holdfast("prune", run, "--yes", expect=2)
    assert steps(run) == before


def test_an_import_begins_a_run_that_ls_shows(trained: tuple[Path, Tiny], tmp_path: Path) -> None:
    source = tmp_path / "old.pt"
    torch.save({"state_dict": trained[1].state_dict(), "epoch": 3}, source)
    text = holdfast("import", tmp_path / "new", source, "--table", "emb.0", "--table", "emb.1", "--step", 40)
    assert "tables: emb.0, emb.1" in text
    assert "not part of the model" in lines(text, "epoch")[0]
    assert steps(tmp_path / "new") == [40]
    assert "already holds checkpoints" in holdfast("import", tmp_path / "new", source, expect=2)


def test_what_an_export_wrote_can_be_imported(trained: tuple[Path, Tiny], tmp_path: Path) -> None:
    holdfast("export", trained[0], tmp_path / "model.safetensors")
    holdfast("import", tmp_path / "new", tmp_path / "model.safetensors")
    model = build(seed=5)[0]
    hf.open_run(tmp_path / "new").restore(model=model)
    assert same(dict(model.state_dict()), dict(trained[1].state_dict()))


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["ls", "gopher://run"], "unknown scheme"),
        (["show", "{run}", "--step", "3"], "no checkpoint of step 3"),
        (["verify", "{tmp}/nowhere"], "holds no run yet"),
        (["export", "{run}", "{tmp}/model.onnx"], "model.onnx"),
        (["diff", "{run}", "2", "77"], "step 77"),
        (["prune", "{run}", "--keep-last", "0"], "KeepLast"),
        (["import", "{tmp}/new", "{tmp}/missing.pt"], "no such file"),
    ],
)
def test_an_error_is_one_line_and_ends_with_2(
    trained: tuple[Path, Tiny], tmp_path: Path, arguments: list[str], told: str
) -> None:
    text = holdfast(*(argument.format(run=trained[0], tmp=tmp_path) for argument in arguments), expect=2)
    assert told in text
    assert len(text.strip().splitlines()) == 1
    assert text.startswith("error: ")


def test_a_traceback_is_shown_when_asked_for(tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["--traceback", "ls", str(tmp_path / "nowhere")])
    assert isinstance(result.exception, hf.HoldfastError)


def test_store_options_must_be_pairs_and_reach_the_store(trained: tuple[Path, Tiny]) -> None:
    assert "KEY=VALUE" in holdfast("ls", trained[0], "--option", "region", expect=2)
    assert "['region']" in holdfast("ls", trained[0], "--option", "region=here", expect=2)


def test_the_installed_command_prints_plain_text_into_a_pipe(trained: tuple[Path, Tiny]) -> None:
    command = [sys.executable, "-c", "from holdfast.cli import main; main()", "ls", str(trained[0])]
    result = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    assert "\x1b" not in result.stdout + result.stderr
    assert "differential" in result.stdout


def test_help_and_version_do_not_wait_for_torch() -> None:
    check = "import sys; from holdfast.cli import app; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", check], check=True, timeout=60)
    assert holdfast("--version") == f"holdfast {hf.__version__}\n"
    assert "prune" in holdfast("--help")


def test_tags_and_names_with_terminal_escapes_and_markup_are_shown_as_they_are(tmp_path: Path) -> None:
    url = tmp_path / "run"
    model, optimizers = build()
    with hf.Checkpointer(url, model=model, optimizer=optimizers, save=hf.Never()) as guard:
        guard.step(loss=train_step(model, optimizers, 0))
        guard.save(tag="\x1b[2J[bold]best[/bold]\rhidden\nrow", wait=True)
    lease = Lease(kind="reader", holder="\x1b]0;owned\x07host:1", checkpoints=(), ttl_s=1e6)
    hf.open_run(url).store.put("leases/reader-0000000000000001", lease.encode())
    shown = r"\x1b[2J[bold]best[/bold]\x0dhidden\x0arow"
    for command in ("ls", "show"):
        assert shown in holdfast(command, url)
    assert r"\x1b]0;owned\x07host:1" in holdfast("show", url)
    assert json.loads(holdfast("ls", url, "--json"))[-1]["tag"] == "\x1b[2J[bold]best[/bold]\rhidden\nrow"
