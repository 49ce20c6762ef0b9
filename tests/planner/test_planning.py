"""Delta sizes, parity, and plans that compare every rung."""

from __future__ import annotations

import ast
import math
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import holdfast as hf
from holdfast.errors import ConfigurationError
from holdfast.planner import (
    Budget,
    ChangedShare,
    Job,
    Parity,
    ParityPrice,
    ParityRates,
    Rates,
    Recovery,
    RowFormat,
    Sizes,
    Workload,
    full_interval_s,
    full_recovery,
    full_rung,
    parity_rung,
    partial_rung,
    plan,
    python_call,
    sizes_of,
    stored_for,
)
from holdfast.planner.measured import PARITY_OVERHEAD
from holdfast.policy import Stored, Strategy
from holdfast.storage import MemoryStore
from tests.tiny import build

MINUTE_S, HOUR_S = 60.0, 3600.0
FAST = 1e18
RATES = Rates(copy_bytes_per_s=2e9, write_bytes_per_s=2e9, read_bytes_per_s=4e9)
WORK = Workload(
    total_s=56 * HOUR_S, mtbf_s=28 * HOUR_S, model_bytes=4e11, rates=RATES, reschedule_s=5 * MINUTE_S, servers=8
)


def priced(**parity: int) -> ParityPrice:
    return ParityPrice(parity=Parity(**parity))  # type: ignore[arg-type]


def play(strategy: Strategy, saves: int = 12, delta_share: float = 1.0) -> Sizes:
    interval_s = 0.5 * HOUR_S
    return sizes_of(
        strategy,
        changed=ChangedShare(),
        interval_s=interval_s,
        total_s=(saves + 0.5) * interval_s,
        delta_share=delta_share,
    )


def sizes(strategy: Strategy, saves: int = 12) -> tuple[float, float]:
    found = play(strategy, saves)
    assert found.rows == found.written
    return found.written, found.read


def test_changed_rows_grow_as_check_n_run_reports() -> None:
    changed = ChangedShare()
    assert changed.within(1800) == pytest.approx(0.26)
    assert changed.within(10 * 1800) == pytest.approx(0.5, abs=0.001)
    assert changed.within(1e9) == 1
    assert ChangedShare.through((18_000, 0.5), (1800, 0.26)).growth == pytest.approx(changed.growth, abs=1e-3)


def test_sizes_of_strategies_are_in_the_papers_order() -> None:
    """Check-N-Run, 5.1: over 12 intervals, consecutive increments take a third less than the others' deltas."""
    full, one_shot, intermittent, consecutive, grid = (
        sizes(each) for each in (hf.Full(), hf.OneShot(), hf.Intermittent(), hf.Consecutive(), hf.Grid())
    )
    assert full == (1.0, 1.0)
    assert consecutive[0] == pytest.approx(0.26) and consecutive[0] < 0.7 * one_shot[0]
    assert consecutive[0] < intermittent[0] < 1
    assert consecutive[1] > one_shot[1] > grid[1] > 1  # what a restore reads
    assert grid[0] <= intermittent[0]


def test_the_intermittent_strategy_takes_baselines_as_it_does_in_a_training() -> None:
    written, _ = sizes(hf.Intermittent(), saves=60)
    assert 0.4 < written < 0.55 < sizes(hf.OneShot(), saves=60)[0]


@pytest.mark.parametrize(("restores", "bits"), [(0.5, 8), (1, 8), (20, 8), (100, 8), (101, None)])
def test_bits_follow_from_the_restores_that_the_study_shows_them_to_bear(restores: float, bits: int | None) -> None:
    assert stored_for(restores) == Stored(bits=bits)


@pytest.mark.parametrize(("restores", "bits"), [(1, 3), (20, 3)])
def test_fewer_bits_of_difference_bear_as_many_restores(restores: float, bits: int) -> None:
    assert stored_for(restores, difference=True) == Stored(bits=bits, difference=True)
    assert stored_for(21, difference=True) == Stored(bits=8)


def test_deltas_of_difference_write_less_on_a_larger_baseline() -> None:
    """Beside 4 bits of the row, which bear as many restores."""
    rows, differences = (
        full_rung("", WORK, hf.Consecutive(), stored=each) for each in (Stored(bits=4), Stored(bits=2, difference=True))
    )
    assert differences.written_bytes < rows.written_bytes
    one, other = (play(hf.Consecutive(), delta_share=each) for each in (1.0, 0.3))
    assert other.rows == one.rows and other.written == pytest.approx(0.3 * one.written)
    assert 1 < other.read < one.read


def test_fewer_bits_take_fewer_bytes_metadata_included() -> None:
    shares = [RowFormat(bits=bits, dim=64).size_share for bits in (2, 3, 4, 8, 32)]
    assert shares == sorted(shares)
    assert shares[0] == pytest.approx((16 + 6) / 256) and shares[-1] == pytest.approx(258 / 256)


def test_full_checkpoints_find_the_closed_forms_interval() -> None:
    work = replace(WORK, rates=Rates(copy_bytes_per_s=2e9, write_bytes_per_s=FAST, read_bytes_per_s=4e9))
    rung = full_rung("full", work, hf.Full())
    load_s = work.model_bytes * RowFormat().size_share / 4e9
    job = Job(total_s=56 * HOUR_S, mtbf_s=28 * HOUR_S, save_s=200, load_s=load_s, reschedule_s=300)
    best = full_recovery(job, full_interval_s(job, corrected=True), corrected=True)
    assert rung.interval_s == pytest.approx(full_interval_s(job, corrected=True), rel=0.01)
    assert rung.overheads.total_s == pytest.approx(best.total_s, rel=1e-4)


def test_a_slow_store_stretches_the_interval_and_ages_what_a_failure_finds() -> None:
    slow = replace(WORK, rates=replace(RATES, write_bytes_per_s=4e7))  # 10,000 s for all rows
    rung = full_rung("full", slow, hf.Full())
    assert rung.interval_s is not None and rung.interval_s >= rung.write_s
    assert rung.overheads.lost_s == pytest.approx(2 * (rung.interval_s / 2 + rung.write_s))
    hopeless = replace(WORK, rates=replace(RATES, write_bytes_per_s=1e6))
    assert full_rung("full", hopeless, hf.Full()).overhead_share == math.inf


def test_deltas_cost_less_than_full_checkpoints_and_fewer_bits_no_more() -> None:
    full, deltas = full_rung("", WORK, hf.Full()), full_rung("", WORK, hf.Intermittent())
    assert deltas.overhead_share < full.overhead_share
    assert full_rung("", WORK, hf.Intermittent(), stored=Stored(bits=4)).overhead_share < deltas.overhead_share


@given(st.floats(0.005, 0.3), st.integers(1, 32), st.floats(1e8, 1e12))
@settings(max_examples=30, deadline=None)
def test_partial_recovery_keeps_within_its_budget(pls: float, servers: int, write_bytes_per_s: float) -> None:
    work = replace(WORK, servers=servers, rates=replace(RATES, write_bytes_per_s=write_bytes_per_s))
    rung = partial_rung("partial", work, hf.Full(), pls)
    assert rung.expected_pls <= pls * (1 + 1e-6) or rung.overhead_share == math.inf
    assert rung.recovery is Recovery.PARTIAL and rung.overheads.lost_s == 0


def test_parity_costs_little_at_a_failure_and_something_all_the_time() -> None:
    price = ParityPrice(parity=Parity(data=4), rates=ParityRates(overhead_share=0.026, throughput_in_recovery=0.9))
    rung = parity_rung("parity", WORK, price, lambda rest: full_rung("", rest, hf.Intermittent()))
    assert rung.memory_share == 0.25
    repair_s = 2 * 0.1 * (300 + price.rebuild_s(5e10))
    assert rung.overheads.parity_s == pytest.approx(0.026 * WORK.total_s + repair_s, rel=0.01)
    assert rung.overheads.parity_s < rung.overheads.total_s < rung.overheads.parity_s + 0.01 * WORK.total_s
    assert rung.is_exact


def test_a_new_server_receives_its_rows_and_what_its_parities_are_made_of() -> None:
    rates = ParityRates(network_bytes_per_s=1e9, rebuild_over_wire_floor=1.5, gentle_rebuild_bytes_per_s=1e8)
    fast, gentle, two = (
        ParityPrice(parity=Parity(data=3, parity=parities, rebuild=pace), rates=rates)
        for parities, pace in ((1, "fast"), (1, "gentle"), (2, "fast"))
    )
    assert fast.rebuild_s(1e10) == pytest.approx(1.5 * 20)
    assert two.rebuild_s(1e10) == pytest.approx(1.5 * 30)
    assert gentle.rebuild_s(1e10) == pytest.approx(200)  # whatever the network could carry


def test_parity_does_not_help_against_more_losses_than_it_has_parities() -> None:
    work = replace(WORK, lost_servers=2)
    beneath = full_rung("", work, hf.Full())
    one, two = (
        parity_rung("", work, priced(data=4, parity=parities), lambda rest: full_rung("", rest, hf.Full()))
        for parities in (1, 2)
    )
    assert one.overhead_share == pytest.approx(beneath.overhead_share + PARITY_OVERHEAD.value)
    assert two.overhead_share < one.overhead_share
    likely = dict(mtbf_s=100.0, window_s=10.0, servers=5)
    assert priced().escape_probability(**likely, lost_servers=1) == pytest.approx(0.1 * 4 / 5)  # type: ignore[arg-type]


def test_nothing_is_lost_unless_the_budget_allows_it() -> None:
    exact = plan(WORK)
    assert exact.recommended.is_exact and exact.recommended.price is None
    names = {each.rung.name: each.objections for each in exact.alternatives}
    assert names["partial"] == ("loses PLS 0.1",) and names["grid, quantized"] == ("keeps 8 bits",)
    assert plan(WORK, Budget(quantized=True)).recommended.bits == 3
    shares = [each.rung.overhead_share for each in exact.alternatives]
    assert shares == sorted(shares)


def test_what_needs_servers_is_not_recommended_without_them_but_told() -> None:
    made = plan(WORK, Budget(pls=0.1), parity=priced())
    needs = {each.rung.name: each.needs for each in made.alternatives}
    assert {name for name, needed in needs.items() if needed} == {
        "partial",
        "partial, quantized",
        "parity",
        "parity, partial",
    }
    assert made.recommended.name == "grid" and made.recommended.recovery is Recovery.FULL
    assert made.unavailable is not None and made.unavailable.rung.name == "partial"
    assert made.unavailable.needs is not None and "hf.Cluster" in made.unavailable.needs
    assert made.reduction_by(made.unavailable.rung) > 0.8 > made.reduction
    assert plan(WORK).unavailable is None


def test_parity_is_the_best_where_failures_are_frequent_and_memory_is_there() -> None:
    often = replace(WORK, mtbf_s=3 * HOUR_S)
    best = plan(often, Budget(memory_share=0.25), parity=priced()).unavailable
    assert best is not None and best.rung.price == priced()
    assert plan(often, Budget(memory_share=0.2), parity=priced()).unavailable is None
    cluster = plan(replace(often, is_cluster=True), Budget(memory_share=0.25), parity=priced())
    assert cluster.recommended.price == priced() and cluster.unavailable is None


def test_a_cluster_may_recover_partially_within_its_budget() -> None:
    made = plan(replace(WORK, is_cluster=True), Budget(pls=0.1))
    assert made.recommended.name == "partial" and not any(each.needs for each in made.alternatives)


def test_an_error_never_offers_what_the_job_cannot_have_as_the_closest() -> None:
    hopeless = replace(WORK, rates=replace(RATES, write_bytes_per_s=1.5e5))
    with pytest.raises(ConfigurationError, match=r"no setting meets the budget; the closest is '(?!partial)"):
        plan(hopeless, Budget(pls=1.0))
    with pytest.raises(ConfigurationError, match=r"'partial' would, but it needs tables on servers"):
        plan(WORK, Budget(pls=0.1, overhead_share=0.008))


@pytest.mark.parametrize(
    ("call", "complaint"),
    [
        (
            lambda: plan(WORK, Budget(overhead_share=0.005)),
            r"within 0.50%; the closest is '\w+' with \d.\d+%; 'partial, quantized' would, but it loses PLS",
        ),
        (
            lambda: plan(replace(WORK, rates=replace(RATES, write_bytes_per_s=1.5e5))),
            r"no setting meets the budget; the closest is .* which",
        ),
        (lambda: plan(WORK, parity=priced(data=8)), r"needs 9 servers, and this job has 8: .* or pass data=7"),
        (lambda: replace(WORK, mtbf_s=0.0), "mtbf_s must be a finite number above 0"),
        (lambda: replace(WORK, lost_servers=9), "9 of 8 servers"),
        (lambda: replace(RATES, read_bytes_per_s=-1.0), "read_bytes_per_s"),
        (lambda: ChangedShare(share=0.0), "share"),
        (lambda: ChangedShare.through((1.0, 0.5), (2.0, 0.4)), "grows with time"),
        (lambda: RowFormat(bits=5), "bits must be 2, 3, 4, 8 or 32"),
        (lambda: ParityRates(overhead_share=1.0), "overhead_share"),
        (lambda: ParityRates(throughput_in_recovery=0.0), "throughput_in_recovery"),
        (lambda: ParityRates(network_bytes_per_s=0.0), "network_bytes_per_s"),
        (lambda: Budget(pls=2.0), "PLS budget"),
        (lambda: Budget(overhead_share=0.0), "overhead_share"),
    ],
)
def test_bad_input_is_refused_with_its_remedy(call: object, complaint: str) -> None:
    with pytest.raises(ConfigurationError, match=complaint):
        call()  # type: ignore[operator]


def test_the_call_of_every_setting_that_this_version_has_is_accepted() -> None:
    available = [each.rung for each in plan(WORK, parity=priced()).alternatives if each.needs is None]
    assert len(available) == 7
    for rung in available:
        model, optimizers = build()
        names = {"hf": hf, "url": MemoryStore(), "model": model, "optimizer": optimizers, "loader": None}
        with eval(python_call(rung), names) as guard:
            guard.resume()


def names_of(call: str) -> set[str]:
    tree = ast.parse(call)
    return {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}


def names_strategy(call: str) -> str:
    (line,) = [line for line in call.splitlines() if line.strip().startswith("strategy=")]
    return line.strip().removeprefix("strategy=").removesuffix(",")


def test_the_call_to_paste_is_python_that_names_what_exists() -> None:
    for work in (WORK, replace(WORK, is_cluster=True)):
        for each in plan(work, parity=priced()).alternatives:
            assert names_of(python_call(each.rung, work)) <= set(hf.__all__), each.rung.name


def test_the_call_to_paste_says_what_was_planned() -> None:
    rung = plan(WORK).recommended
    call = ast.parse(python_call(rung), mode="eval").body
    assert isinstance(call, ast.Call)
    given_ = {keyword.arg: eval(ast.unparse(keyword.value), {"hf": hf}) for keyword in call.keywords[3:]}
    assert given_["strategy"] == rung.strategy
    assert rung.interval_s is not None
    assert given_["save"].minutes == pytest.approx(rung.interval_s / 60, rel=0.01)
    partial = partial_rung("partial", WORK, hf.Full(), 0.1)
    strategy = eval(names_strategy(python_call(partial, pls=0.1)), {"hf": hf})
    assert strategy == hf.Partial(priority=hf.MFU(r=0.125), consistent=partial.strategy, budget=hf.PLS(0.1))
    assert "precision=hf.Bits(3, difference=True)" in python_call(plan(WORK, Budget(quantized=True)).recommended)
    short = partial_rung("partial", replace(WORK, total_s=5 * HOUR_S), hf.Full(), 0.1)
    assert short.interval_s is None and "save=hf.Never()" in python_call(short, pls=0.1)


def test_the_call_of_a_cluster_is_one_that_it_takes(tmp_path: Path) -> None:
    cluster = replace(WORK, is_cluster=True)
    names = {"hf": hf, "url": tmp_path, "build_model": build, "train": build, "workers": 2, "optimizer": hf.SGD(0.1)}
    rungs = {each.rung.name: each.rung for each in plan(cluster, parity=priced()).alternatives}
    assert "ladder=hf.Ladder(parity=hf.Parity(data=4, parity=1), partial=True, budget=hf.PLS(0.1)" in python_call(
        rungs["parity, partial"], cluster, pls=0.1
    )
    for rung in rungs.values():
        assert isinstance(eval(python_call(rung, cluster, pls=0.1), names), hf.Cluster), rung.name
