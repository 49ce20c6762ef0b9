from __future__ import annotations

import pytest

from tests.checkpoint.tracker_cases import CASES, Case
from tests.checkpoint.tracker_checks import Run, prove_no_row_is_missed

pytestmark = pytest.mark.filterwarnings("ignore::holdfast.errors.HoldfastWarning", "ignore:Sparse invariant checks")


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_no_changed_row_or_slot_is_missed(case: Case) -> None:
    prove_no_row_is_missed(Run(case))
