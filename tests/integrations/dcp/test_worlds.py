"""DCP's promises of a storage, in worlds of 1, 2 and 4 processes; larger worlds also read what smaller ones wrote."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.integrations.dcp.cases import CASES, DEATHS, SLOW_CASES, WORLDS
from tests.integrations.dcp.world import Outcome, run_worlds

pytestmark = pytest.mark.timeout(300)


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> dict[int, Outcome]:
    return run_worlds(tmp_path_factory.mktemp("worlds"), WORLDS, [case.__name__ for case in CASES])


@pytest.mark.parametrize("world", WORLDS)
@pytest.mark.parametrize("case", [case.__name__ for case in CASES])
def test_case(outcomes: dict[int, Outcome], world: int, case: str) -> None:
    assert not outcomes[world][case], "\n".join(outcomes[world][case])


@pytest.mark.slow
@pytest.mark.parametrize(("case", "rank"), [(case.__name__, rank) for case, rank in DEATHS.items()])
def test_death(tmp_path: Path, case: str, rank: int) -> None:
    problems = run_worlds(tmp_path, [2], [case], dying=rank)[2][case]
    assert not problems, "\n".join(problems)


@pytest.mark.slow
@pytest.mark.parametrize("world", WORLDS)
@pytest.mark.parametrize("case", [case.__name__ for case in SLOW_CASES])
def test_slow_case(tmp_path: Path, world: int, case: str) -> None:
    problems = run_worlds(tmp_path, [world], [case])[world][case]
    assert not problems, "\n".join(problems)
