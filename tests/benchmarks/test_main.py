from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
import torch

from benchmarks import claims
from benchmarks.__main__ import main

CLAIM = '''
"""Trained twice, a model is the same.

More words that the list leaves out.
"""
from benchmarks.report import Report, Table

def run(scale):
    table = Table(caption="runs", headers=("run", "loss"), rows=[(1, 0.123456), (2, "[as above]")])
    return Report(title="Sameness", tables=[table], figures={"difference": 0.0, "runs": 2, "scale_seen": scale})
'''


@pytest.fixture(autouse=True)
def claim_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "sameness.py").write_text(CLAIM)
    (tmp_path / "_shared.py").write_text("raise RuntimeError('not a claim')")
    monkeypatch.setattr(claims, "__path__", [str(tmp_path)])
    monkeypatch.delitem(sys.modules, f"{claims.__name__}.sameness", raising=False)
    return tmp_path


def test_without_a_name_the_claims_are_listed_with_their_first_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 0
    assert " ".join(capsys.readouterr().out.split()) == "sameness Trained twice, a model is the same."


def test_figures_land_in_one_flat_object_with_the_machine(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["sameness", "--json", str(tmp_path / "out.json"), "--scale", "small"]) == 0
    figures = json.loads((tmp_path / "out.json").read_text())
    assert figures["difference"] == 0.0
    assert (figures["benchmark"], figures["scale"], figures["scale_seen"]) == ("sameness", "small", "small")
    assert figures["machine_torch_threads"] == torch.get_num_threads()
    assert figures["machine_torch_version"] == torch.__version__
    assert figures["machine_cores"] >= 1
    assert all(isinstance(value, int | float | str) for value in figures.values())
    shown = capsys.readouterr().out
    assert all(text in shown for text in ("Sameness", "runs", "0.1235", "[as above]"))


def test_an_unknown_name_is_answered_with_the_known_ones(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exit_info:
        main(["samenes"])
    assert exit_info.value.code == 2
    assert "no benchmark 'samenes'; known: sameness" in capsys.readouterr().err


def test_a_folder_that_does_not_exist_is_told_before_the_measurement(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "sameness.py").write_text('"""Never imported."""\nraise RuntimeError("measured")')
    with pytest.raises(SystemExit):
        main(["sameness", "--json", str(tmp_path / "missing" / "out.json")])
    assert "does not exist" in capsys.readouterr().err


def test_a_claim_that_asks_for_it_learns_where_its_figures_go(tmp_path: Path) -> None:
    (tmp_path / "keeping.py").write_text(
        '"""Keeps."""\nfrom benchmarks.report import Report\n'
        "def run(scale, beside=None):\n"
        "    return Report(title='Keeping', figures={'beside': beside.name})\n"
    )
    sys.modules.pop(f"{claims.__name__}.keeping", None)
    assert main(["keeping", "--json", str(tmp_path / "out.json")]) == 0
    assert json.loads((tmp_path / "out.json").read_text())["beside"] == "out.json"
