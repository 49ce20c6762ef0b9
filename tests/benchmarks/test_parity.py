"""The parity claim at a scale that proves nothing but that it measures."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from benchmarks.claims import parity
from benchmarks.claims._cluster_duel import Ratio, Result, overhead
from benchmarks.claims._parity_counts import count, moved_bytes
from benchmarks.claims._parity_floor import wire_floor
from benchmarks.claims._parity_job import Gate
from benchmarks.claims._parity_links import can_limit_links
from benchmarks.claims._parity_recovery import rebuilding
from benchmarks.claims._parity_twice import SentTwice
from holdfast.cluster.placement import SERVER_SHIFT, Placement
from holdfast.cluster.plan import ModelPlan, TableSpec
from holdfast.cluster.train.exchange import PushedStep
from holdfast.policy.tables import Constant


def test_a_gate_is_the_same_for_all_who_look_at_it(tmp_path: Path) -> None:
    mine, others = Gate(tmp_path), Gate(tmp_path)
    assert not others.is_open
    mine.set(is_open=True)
    assert others.is_open


def test_parity_takes_its_share_of_memory_and_an_update_for_each_of_a_row() -> None:
    rows_only = replace(parity.PLANS["tiny"].job, is_linear=True)
    found = count(rows_only, servers=3)
    assert found.parity_bytes / found.model_bytes == pytest.approx(0.5, abs=0.02)
    assert found.updates >= 1 and found.updates_with_parity >= 1


def test_all_that_a_lost_server_had_comes_back_over_streams() -> None:
    job = parity.PLANS["tiny"].job
    streams = moved_bytes(job, servers=3, lost=1)
    found = count(job, servers=3)
    received = sum(size for (_, receiver), size in streams.items() if receiver == 1)
    assert received > found.model_bytes / 3  # its rows, and what its parities are made of
    assert all(sender != 1 for sender, _ in streams)


def test_bytes_are_moved_between_processes_that_do_nothing_else() -> None:
    moved = wire_floor({(0, 1): 300_000, (1, 0): 1000}, block_bytes=100_000)
    assert 0 < moved.took_s < 60 and 0 < moved.cpu_s < 60


def test_a_recovery_is_compared_with_the_steps_before_it() -> None:
    normal = [0.1 * step for step in range(31)]  # until 3.0
    slower = [3.0 + 0.5 + 0.2 * step for step in range(11)]  # until 5.5
    found = rebuilding([*normal, *slower], killed_s=3.01, whole_s=5.4)
    assert found.longest_pause_s == pytest.approx(0.5)
    assert found.throughput == pytest.approx((11 / 2.5) / 10)
    assert found.took_s == pytest.approx(2.39)


def test_rivals_are_compared_by_all_their_steps_in_the_same_rounds() -> None:
    rival, base = Result(starts=[[90.0, 180.0], [99.0]]), Result(starts=[[100.0, 200.0], [100.0]])
    ratio = Ratio.of(rival, base)
    assert ratio.value == pytest.approx(369 / 400)
    alone = [279 / 300, 189 / 200, 270 / 300]  # with each round left out
    middle = sum(alone) / 3
    assert ratio.standard_error == pytest.approx((2 / 3 * sum((each - middle) ** 2 for each in alone)) ** 0.5)
    assert overhead(rival, base) == pytest.approx(400 / 369 - 1)
    assert Ratio.of(Result(starts=[[2.0]]), Result(starts=[[1.0]])).standard_error == 0


def test_gradients_are_sent_to_a_row_and_to_its_parity_on_another_server() -> None:
    names = {"emb.0.weight": 100, "twice.0.weight": 60, "twice.1.weight": 5}
    tables = tuple(TableSpec(name=name, rows=rows, width=2, init=Constant(0.0)) for name, rows in names.items())
    pushed: list[PushedStep] = []
    twice = SentTwice(pushed.append, Placement(ModelPlan(tables=tables, dense=(), seed=1), 5), data=4)
    keys = twice._group.keys(0, np.arange(0, 100, 7))
    keys.sort()
    gradients = np.arange(2 * len(keys), dtype=np.float32).reshape(-1, 2)
    dense = np.ones(9, np.float32)
    twice.push(PushedStep(keys=[keys], gradients=[gradients], dense=dense, lr_tables=1, lr_dense=1, place=b""))
    (step,) = pushed
    servers = step.keys[0] >> SERVER_SHIFT
    assert (np.diff(servers) >= 0).all()
    assert len(step.keys[0]) == 2 * len(keys) + 5
    assert step.gradients[0].sum() == 2 * gradients.sum() + dense.sum()


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_every_part_gives_its_figures() -> None:
    figures = parity.run("tiny", [name for name in parity.PARTS if name != "links"]).figures
    for name in (
        "parity_overhead",
        "parity_overhead_2_workers",
        "parity_overhead_linear",
        "server_cpu_us_per_step_with_parity_1_worker",
        "scaling_2_workers",
        "parity_overhead_beside_rivals",
        "throughput_in_recovery",
        "rebuild_over_wire_floor",
        "fast_server_cpu_s",
        "faster_than_checkpoint_average",
    ):
        assert isinstance(figures[name], float)


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_servers_whose_links_are_limited_are_rebuilt_no_faster_than_these_allow() -> None:
    if not can_limit_links():
        pytest.skip("no network namespace with limits can be made here")
    figures = parity.run("tiny", ["links"]).figures
    assert 0 < float(figures["link_floor_s"]) < float(figures["link_rebuild_s"])
