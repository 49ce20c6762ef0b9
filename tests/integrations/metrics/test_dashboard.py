"""The dashboard in the documentation: Grafana can read it, and it asks for metrics that exist."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from holdfast.integrations.metrics.instruments import INSTRUMENTS, Form

BOARD = Path(__file__).parents[3] / "docs" / "grafana.json"
SUFFIXES = {Form.COUNT: ("_total",), Form.LAST: ("",), Form.SECONDS: ("_bucket", "_sum", "_count")}
NOT_SHOWN = {"saves", "step", "loss", "workers"}  # as commits, the last commit's step, and metrics show

# No package has a Grafana server, so what Grafana publishes of its own model judges: the types of its dashboards.
PACKAGES = ("@grafana/schema@13.2.3", "typescript@5.9.3")
PROGRAM = """
import type { Dashboard } from "@grafana/schema";

// As JSON has it: names of an enumeration are plain strings.
type Plain<T> = T extends string ? `${T}` : T extends object ? { [K in keyof T]: Plain<T[K]> } : T;

export const board: Plain<Dashboard> = """


@pytest.fixture(scope="module")
def board() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(BOARD.read_text())
    return found


def test_the_dashboard_asks_for_every_metric_that_exists_and_for_no_other(board: dict[str, Any]) -> None:
    there = {f"holdfast_{each.name}{suffix}": each.name for each in INSTRUMENTS for suffix in SUFFIXES[each.form]}
    asked = set(re.findall(r"holdfast_[a-z_]+", json.dumps([board["panels"], board["templating"]])))
    assert asked <= there.keys()
    assert {each.name for each in INSTRUMENTS} - {there[name] for name in asked} == NOT_SHOWN


def test_panels_have_places_and_numbers_of_their_own(board: dict[str, Any]) -> None:
    assert board["schemaVersion"] >= 36 and board["title"] and board["uid"]
    for panel in board["panels"]:
        assert panel["type"] in ("stat", "timeseries") and panel["gridPos"].keys() == {"x", "y", "w", "h"}
        assert all(target["refId"] and target["expr"] for target in panel["targets"])
    places = [(panel["gridPos"]["x"], panel["gridPos"]["y"]) for panel in board["panels"]]
    assert len(set(places)) == len(places) == len({panel["id"] for panel in board["panels"]})


@pytest.fixture(scope="module")
def grafana_types(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with Grafana's types, and a compiler that checks against them."""
    if shutil.which("npm") is None:
        pytest.skip("npm, which fetches Grafana's own schema, is not installed")
    folder = tmp_path_factory.mktemp("grafana")
    command = ["npm", "install", "--no-audit", "--no-fund", "--ignore-scripts", "--prefix", str(folder), *PACKAGES]
    fetched = subprocess.run(command, capture_output=True, text=True, timeout=200, check=False)
    if fetched.returncode:
        pytest.skip(f"{' and '.join(PACKAGES)} cannot be fetched: {fetched.stderr.strip().splitlines()[-1:]}")
    return folder


def complaints(folder: Path, board: dict[str, Any]) -> str:
    """What a compiler has to say to a board, in Grafana's types."""
    (folder / "board.ts").write_text(f"{PROGRAM}{json.dumps(board)};\n")
    compiler = [str(folder / "node_modules" / ".bin" / "tsc"), "--noEmit", "--strict", "--skipLibCheck"]
    options = ["--module", "nodenext", "--moduleResolution", "nodenext", "board.ts"]
    checked = subprocess.run(
        [*compiler, *options], cwd=folder, capture_output=True, text=True, timeout=100, check=False
    )
    return checked.stdout + checked.stderr


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_the_dashboard_is_one_by_grafanas_own_schema(grafana_types: Path, board: dict[str, Any]) -> None:
    assert complaints(grafana_types, board) == ""
    misspelt = {**board, "panels": [{**board["panels"][0], "gridPoz": {}}]}
    assert "gridPoz" in complaints(grafana_types, misspelt)
    assert "not assignable" in complaints(grafana_types, {**board, "refresh": 30})
