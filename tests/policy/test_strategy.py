from __future__ import annotations

import math
from fractions import Fraction
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.errors import ConfigurationError
from holdfast.policy import Consecutive, Full, Grid, Intermittent, OneShot, Strategy, StrategyContext
from holdfast.types import DeltaSizes, Kind

# Differential sizes in the shape of Check-N-Run's figure 8: about a quarter of the model at first, past a half after
# ten intervals. The paper prints no numbers, only that its rule took a baseline at interval 8, short of a half.
PAPER_SHAPE = (0.26, 0.33, 0.38, 0.42, 0.45, 0.47, 0.49, 0.495, 0.50, 0.505)

ALL = (Full(), OneShot(), Consecutive(), Intermittent(), Grid())


def after(*delta_fractions: float) -> StrategyContext:
    return StrategyContext(baseline_exists=True, deltas=DeltaSizes.of(*delta_fractions))


def baselines(strategy: Strategy, delta_sizes: tuple[float, ...], intervals: int) -> list[int]:
    """Intervals at which a baseline is taken when the deltas after each grow as ``delta_sizes``."""
    taken, since, exists = [], 0, False
    for interval in range(intervals):
        context = StrategyContext(baseline_exists=exists, deltas=DeltaSizes.of(*delta_sizes[:since]))
        if strategy.decide(context) is Kind.FULL:
            taken.append(interval)
            since, exists = 0, True
        else:
            since += 1
    return taken


def paper_rule(sizes: tuple[float, ...]) -> bool:
    """F_c ≤ I_c of section 4.1.1 in exact arithmetic."""
    exact = [Fraction(size) for size in sizes]
    i = len(exact)
    return 1 + sum(exact) <= (i + 1) * exact[-1]


@pytest.mark.parametrize("strategy", ALL, ids=repr)
def test_without_a_baseline_every_strategy_takes_one(strategy: Strategy) -> None:
    assert strategy.decide(StrategyContext(baseline_exists=False)) is Kind.FULL


@pytest.mark.parametrize(
    ("strategy", "kind"),
    [(Full(), Kind.FULL), (OneShot(), Kind.DIFFERENTIAL), (Consecutive(), Kind.INCREMENTAL)],
    ids=repr,
)
@given(sizes=st.lists(st.floats(0, 2), max_size=12))
def test_only_intermittent_looks_at_history(strategy: Strategy, kind: Kind, sizes: list[float]) -> None:
    assert strategy.decide(after(*sizes)) is kind


def test_right_after_a_baseline_intermittent_takes_a_delta() -> None:
    assert Intermittent().decide(after()) is Kind.DIFFERENTIAL


def test_intermittent_takes_its_baseline_at_the_papers_interval_before_deltas_reach_half() -> None:
    taken = baselines(Intermittent(), PAPER_SHAPE, intervals=12)
    assert taken == [0, 8]
    assert max(PAPER_SHAPE[:7]) < 0.5


def test_the_papers_shape_meets_the_rule_at_no_earlier_interval() -> None:
    pays = [i + 1 for i in range(1, len(PAPER_SHAPE) + 1) if paper_rule(PAPER_SHAPE[:i])]
    assert pays[0] == 8


def test_tables_that_never_change_never_need_another_baseline() -> None:
    assert baselines(Intermittent(), (0.0,) * 1000, intervals=1000) == [0]


def test_deltas_that_do_not_grow_never_need_another_baseline() -> None:
    assert baselines(Intermittent(), (0.75,) * 100, intervals=100) == [0]


def test_tables_that_change_whole_get_a_baseline_right_after_the_first_delta() -> None:
    assert Intermittent().decide(after(1.0)) is Kind.FULL
    assert baselines(Intermittent(), (1.0,), intervals=6) == [0, 2, 4]


@given(st.lists(st.integers(0, 1200), min_size=1, max_size=20))
def test_intermittent_follows_the_rule_in_exact_arithmetic(sizes_per_1024: list[int]) -> None:
    sizes = tuple(size / 1024 for size in sizes_per_1024)  # sums and products of these are exact in floats too
    expected = Kind.FULL if paper_rule(sizes) else Kind.DIFFERENTIAL
    assert Intermittent().decide(after(*sizes)) is expected


@given(st.lists(st.integers(0, 1024), min_size=1, max_size=12))
def test_a_tie_takes_the_baseline(sizes_per_1024: list[int]) -> None:
    past = sorted(Fraction(size, 1024) for size in sizes_per_1024)
    tie = (1 + sum(past)) / (len(past) + 1)  # solves 1 + sum + s = (i + 1) * s
    sizes = (*map(float, past), float(tie))
    if Fraction(sizes[-1]) == tie:
        assert Intermittent().decide(after(*sizes)) is Kind.FULL


@pytest.mark.parametrize("fraction", [-0.1, math.nan, math.inf, None, True])
def test_a_fraction_that_is_no_size_is_refused_by_name(fraction: object) -> None:
    with pytest.raises(ConfigurationError, match="deltas"):
        StrategyContext(baseline_exists=True, deltas=DeltaSizes(count=1, total=0.2, last=fraction))  # type: ignore


def average_written(strategy: Strategy, sizes: tuple[float, ...], intervals: int) -> float:
    """Over whole cycles of a baseline and the deltas after it, whose sizes are given."""
    *_, last = taken = baselines(strategy, sizes, intervals=intervals)
    if not last:
        return (1 + sum(sizes[: intervals - 1])) / intervals
    return sum(1 + sum(sizes[: after - before - 1]) for before, after in pairwise(taken)) / last


SLOWING = tuple(1 - 0.74 ** (n**0.75) for n in range(1, 2000))


@pytest.mark.parametrize("share", [1.0, 0.3])
@pytest.mark.parametrize("least_gain", [0.01, 0.03, 0.1])
def test_a_least_gain_costs_about_that_much_bandwidth_and_keeps_less(share: float, least_gain: float) -> None:
    sizes = tuple(share * size for size in SLOWING)
    best = min((1 + sum(sizes[:n])) / (n + 1) for n in range(1, 2000))
    early, papers = Intermittent(least_gain=least_gain), Intermittent()
    assert average_written(early, sizes, 1000) <= (1.01 + 1.1 * least_gain) * best
    assert cycle(early, sizes) < cycle(papers, sizes)


def cycle(strategy: Strategy, sizes: tuple[float, ...]) -> int:
    taken = baselines(strategy, sizes, intervals=2000)
    return taken[1] if len(taken) > 1 else 2000


def test_deltas_of_one_size_are_taken_until_the_baseline_is_spread_thin() -> None:
    interval = cycle(Intermittent(least_gain=0.03), (0.75,) * 100)
    assert (1 + 0.75 * (interval - 1)) / interval == pytest.approx(0.75 / 0.97, rel=0.01)


@pytest.mark.parametrize("least_gain", [-0.1, 1.0, math.nan, "much"])
def test_a_least_gain_is_a_share(least_gain: object) -> None:
    with pytest.raises(ConfigurationError, match="least_gain"):
        Intermittent(least_gain=least_gain)  # type: ignore[arg-type]
