from __future__ import annotations

import math
from typing import Any

import pytest

from holdfast.checkpoint.trainer.settings import Settings
from holdfast.errors import ConfigurationError


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("buffer_bytes", -1),
        ("buffer_bytes", 2.5e9),
        ("frame_bytes", 0),
        ("uploads", 0),
        ("grace_s", -1.0),
        ("retry_s", math.inf),
        ("takeover_s", "300"),
        ("part_timeout_s", math.nan),
        ("lease_s", 0.0),
        ("niceness", 1.5),
    ],
)
def test_a_setting_that_cannot_work_is_refused_by_its_name(name: str, value: Any) -> None:
    with pytest.raises(ConfigurationError, match=f"Settings: {name} must be"):
        Settings(**{name: value})


def test_nothing_needs_to_be_waited_for_or_kept() -> None:
    Settings(grace_s=0, retry_s=0, takeover_s=0.0, part_timeout_s=0, buffer_bytes=2**20, niceness=0)
