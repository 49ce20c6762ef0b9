"""The documents, held to what they say: every example runs, every message is quoted as it is printed."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any, get_args

import pytest
import torch
import typer

import holdfast as hf
from holdfast import errors
from holdfast.checkpoint.position import SaveStats
from holdfast.cli import app
from holdfast.events import TrainingEvent
from tests.docs.pages import GUIDE, KINDS, ROOT, SETUP, Section, anchors, guide_pages, links, sections
from tests.docs.playing import Player

SECTIONS = [section for page in guide_pages() for section in sections(page)]
DOCUMENTS = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]


@pytest.fixture
def namespace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, Any]]:
    """An empty folder, one thread, and the model of the examples."""
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {"__name__": "guide"}
    (setup,) = [block for section in SECTIONS for block in section.blocks if block.kind == SETUP]
    exec(setup.compiled(), names)  # type: ignore[arg-type]
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield names
    torch.set_num_threads(threads)


@pytest.mark.parametrize("section", [each for each in SECTIONS if each.runs], ids=lambda section: section.name)
def test_every_example_of_the_guide_runs_and_prints_what_it_says(section: Section, namespace: dict[str, Any]) -> None:
    Player(namespace).play(section)


def text(*names: str) -> str:
    return "\n".join((GUIDE / name).read_text(encoding="utf-8") for name in names)


def test_every_block_says_what_it_is() -> None:
    assert {block.kind for section in SECTIONS for block in section.blocks} <= set(KINDS)


def test_the_guide_names_every_public_name() -> None:
    written = text(*(page.name for page in guide_pages()))
    assert [name for name in hf.__all__ if not re.search(rf"\bhf\.{name}\b", written)] == []


def test_the_guide_says_what_to_do_about_every_error() -> None:
    named = set(re.findall(r"^\| .*", text("failures.md"), re.MULTILINE))
    classes = [each for each in vars(errors).values() if isinstance(each, type) and issubclass(each, BaseException)]
    told = {errors.HoldfastError, errors.HoldfastWarning}  # what the others are, and what is no error
    assert [each.__name__ for each in classes if each not in told and f"{each.__name__}`" not in " ".join(named)] == []


@pytest.mark.parametrize(
    ("described", "page"),
    [(hf.Settings, "operating.md"), (SaveStats, "saving.md"), (hf.CheckpointInfo, "inspecting.md")],
)
def test_the_guide_describes_every_field(described: type, page: str) -> None:
    missing = [field.name for field in fields(described) if f"`{field.name}`" not in text(page)]
    assert missing in ([], ["last_commit_s"])  # a monotonic clock's reading: nothing for people


def test_the_guide_describes_every_event_that_hooks_receive() -> None:
    written = text("saving.md")
    for event in get_args(TrainingEvent):
        missing = [field.name for field in fields(event) if f"`{field.name}`" not in written]
        assert f"`{event.__name__}`" in written and missing == []


def test_the_guide_shows_every_command_and_its_options() -> None:
    for name, command in typer.main.get_command(app).commands.items():  # type: ignore[attr-defined]
        assert f"holdfast {name}" in text("inspecting.md")
        options = [option for parameter in command.params for option in parameter.opts if option.startswith("--")]
        assert [option for option in options if option not in text("inspecting.md", "planning.md")] == []


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_lead_somewhere(document: Path) -> None:
    for target, fragment in links(document):
        assert target.exists(), target
        assert not fragment or fragment in anchors(target), f"{target}#{fragment}"


def test_the_loop_of_the_readme_runs(namespace: dict[str, Any]) -> None:
    model, optimizers, loader = namespace["build"]()
    namespace |= {"model": model, "sparse_optimizer": optimizers[0], "dense_optimizer": optimizers[1], "loader": loader}
    namespace["scheduler"] = torch.optim.lr_scheduler.StepLR(optimizers[1], step_size=50)
    train_step = namespace["train_step"]
    namespace["train_step"] = lambda batch: train_step(model, optimizers, batch)
    (loop,) = [block for section in sections(ROOT / "README.md") for block in section.blocks if block.kind == "python"]
    Player(namespace).execute(loop)
    assert hf.open_run("runs/17").checkpoints()[-1].step == 200


def test_the_readme_names_commands_and_figures_that_exist() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    for target in re.findall(r"^make ([a-z-]+)", readme, re.MULTILINE):
        assert f"\n{target}:" in makefile
    name = ""
    for command, key in re.findall(r"^\|(?: `python -m benchmarks (\w+)`)? \| `(\w+)` \|", readme, re.MULTILINE):
        name = command or name
        claims = ROOT / "benchmarks" / "claims"
        files = [claims / f"{name}.py", *claims.glob(f"_{name}_*.py")]
        source = "".join(file.read_text(encoding="utf-8") for file in files)
        assert key in source or any(re.fullmatch(each, key) for each in _templates(source)), f"{name}: {key}"


def _templates(source: str) -> list[str]:
    """What the f-strings of a source can come to, as patterns."""
    literals = re.findall(r"f\"([a-z0-9_{}]*)\"", re.sub(r"\{[^{}\"]*\}", "{}", source))
    return [literal.replace("{}", r"\w*") for literal in literals if len(literal.replace("{}", "")) > 4]
