"""The measured cost of restores from few bits: the study on which ``Auto`` and the planner base their decisions.

``python -m benchmarks accuracy --scale full --json FILE`` runs the study; ``python -m benchmarks.study FILE`` replaces
the bounds below with its results (docs/design/003-precision.md, "What restores cost").
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from holdfast.types import BASELINE_BITS, EXACTLY, Stored

MEASURED_METHODS = ("default", "published")


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """A setting that trainings were restored from so often, and the AUC that this cost them at most.

    In percent of the AUC, the upper end of the one-sided 95% interval of the mean over the study's seeds.
    """

    method: str
    bits: int
    restores: int
    auc_drop_bound_percent: float
    difference: bool = False


# begin of what the study writes
STUDY = (
    Measurement(method="published", bits=2, restores=1, auc_drop_bound_percent=0.0159),
    Measurement(method="published", bits=3, restores=3, auc_drop_bound_percent=0.0159),
    Measurement(method="published", bits=4, restores=20, auc_drop_bound_percent=0.0383),
    Measurement(method="published", bits=8, restores=100, auc_drop_bound_percent=-0.0022),
    Measurement(method="default", bits=2, restores=1, auc_drop_bound_percent=0.0151),
    Measurement(method="default", bits=3, restores=3, auc_drop_bound_percent=0.014),
    Measurement(method="default", bits=4, restores=20, auc_drop_bound_percent=0.0253),
    Measurement(method="default", bits=8, restores=100, auc_drop_bound_percent=-0.0022),
    Measurement(method="default", bits=2, restores=20, auc_drop_bound_percent=0.0123, difference=True),
    Measurement(method="default", bits=3, restores=20, auc_drop_bound_percent=0.0032, difference=True),
)
# end of what the study writes


@dataclass(frozen=True, slots=True, kw_only=True)
class Shown:
    """A setting, and how many restores the study shows it to bear within the target."""

    stored: Stored
    restores: float


def cheapest(
    restores: float,
    auc_drop_percent: float,
    *,
    difference: bool | None,
    method: str,
    study: Iterable[Measurement] = STUDY,
) -> Shown:
    """The setting with the fewest bytes that is shown to tolerate this many restores; exact rows if none is.

    The study is never extrapolated. Fewer restores cost no more than those measured, but half as many need not cost
    half, so a bound is never scaled down. The cost of more restores than were measured is unknown, so a bound is never
    stretched. If only differences are wanted, 8 bits of the row are used beyond them.
    """
    fits = [each for each in study if each.method == method and difference in (None, each.difference)]
    fits += [each for each in study if each.method == method and each.bits == BASELINE_BITS and each not in fits]
    shown = [
        Shown(stored=Stored(bits=each.bits, method=method, difference=each.difference), restores=each.restores)
        for each in fits
        if each.auc_drop_bound_percent <= auc_drop_percent and restores <= each.restores
    ]
    return min(shown, key=lambda each: _bits(each.stored), default=Shown(stored=EXACTLY, restores=float("inf")))


def _bits(stored: Stored) -> tuple[int, int]:
    """Bits of a value in a delta, then in a baseline: deltas are what is written most."""
    assert stored.bits is not None
    return stored.bits, BASELINE_BITS if stored.difference else stored.bits
