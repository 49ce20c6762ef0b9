"""What a checkpoint says of the job beside its rows and state."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class SaveAccount:
    """As the controller knows it when a save begins.

    Args:
        pls: The meter of lost samples. None: not metered.
        metrics: Of all workers together, by name; finite numbers.
    """

    pls: Mapping[str, float | None] | None = None
    metrics: Mapping[str, float] = field(default_factory=dict)

    def to_json(self) -> bytes:
        """To be sent."""
        pls = None if self.pls is None else dict(self.pls)
        return json.dumps({"pls": pls, "metrics": dict(self.metrics)}).encode()

    @classmethod
    def from_json(cls, report: bytes) -> SaveAccount:
        """As ``to_json`` wrote it."""
        body: dict[str, Any] = json.loads(report)
        return cls(pls=body["pls"], metrics=body["metrics"])
