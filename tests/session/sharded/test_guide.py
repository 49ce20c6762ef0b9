"""The script of the guide's page runs as it stands there: twice, with another number of ranks."""

from __future__ import annotations

from pathlib import Path

from tests.docs.pages import GUIDE, sections
from tests.session.sharded.script import run_script


def test_the_guides_script_trains_and_goes_on_with_fewer_ranks(tmp_path: Path) -> None:
    page = {section.title: section for section in sections(GUIDE / "sharded.md")}
    script = page["A complete script"].blocks[0].text
    assert "rank 1 of 2: steps 0 to 20" in run_script(script, str(tmp_path / "run"), tmp_path, 2)
    assert "rank 0 of 1: steps 20 to 40" in run_script(script, str(tmp_path / "run"), tmp_path, 1)
