"""Rings over machines are settled before training starts: with a clear message, and the memory that parity takes."""

from __future__ import annotations

import logging

import pytest
from hypothesis import given, settings

from holdfast.cluster.parity.layout import RingLayout
from holdfast.cluster.parity.mirror import dense_words
from holdfast.cluster.parity.parity_rows import ParityRows
from holdfast.cluster.parity.seats import parity_bytes, require_memory, seats
from holdfast.cluster.placement import Placement
from holdfast.cluster.shard import DenseShard
from holdfast.erasure.ring import Ring
from holdfast.erasure.seating import seat
from holdfast.errors import ConfigurationError
from holdfast.policy import Adam, Parity, RowwiseAdagrad
from tests.cluster.parity.models import placements


def test_machines_with_two_servers_each_lose_one_of_each_ring(caplog: pytest.LogCaptureFixture) -> None:
    seating = seats(Parity(), [f"m{server // 2}" for server in range(10)])
    assert len(seating.rings) == 2 and not seating.crowds and not caplog.records


def test_all_servers_on_one_machine_are_warned_of_or_refused(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "holdfast"):
        assert seats(Parity(), ["here"] * 5).most_lost == 5
    assert "machine here runs servers 0, 1, 2, 3, 4, which protect each other" in caplog.text
    assert "Start at most 1 of 5 servers on one machine" in caplog.text
    with pytest.raises(ConfigurationError, match=r"Parity\(strict=True\): machine here runs servers"):
        seats(Parity(strict=True), ["here"] * 5)


def test_processes_count_on_their_own_if_the_user_says_so(caplog: pytest.LogCaptureFixture) -> None:
    assert not seats(Parity(strict=True, domain="process"), ["here"] * 5).crowds
    assert not caplog.records


def test_two_parities_make_up_for_two_servers_of_a_machine(caplog: pytest.LogCaptureFixture) -> None:
    seating = seats(Parity(data=2, parity=2, strict=True), ["a", "a", "b", "b"])
    assert seating.most_lost == 2 and not caplog.records


def test_a_job_of_too_few_servers_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="needs 5 servers, and this job has 3"):
        seats(Parity(), ["a", "b", "c"])


@settings(deadline=None, max_examples=30)
@given(placements())
def test_parity_takes_what_was_said_before(made: tuple[Placement, Ring]) -> None:
    placement, (data, parity) = made[0], (made[1].data, made[1].parity)
    rule, dense_rule = RowwiseAdagrad(0.1).rule(), Adam(0.1).rule(dense=True)
    seating = seat(placement.servers, data=data, parity=parity)
    said = parity_bytes(placement, seating, rule, dense_rule)
    for ring in seating.rings:
        layout = RingLayout(placement, ring)
        for server in ring.servers:
            mirrors = [
                DenseShard(placement.plan, placement.dense[each], dense_rule) for each in layout.mirrored(server)
            ]
            taken = ParityRows(layout, server, rule).size_bytes + sum(dense_words(each).nbytes for each in mirrors)
            assert said[server] == taken


def test_memory_that_does_not_suffice_is_refused_with_the_figure() -> None:
    require_memory("server 3", 10**9, None)
    require_memory("server 3", 10**9, 2 * 10**9)
    with pytest.raises(ConfigurationError, match=r"parity takes 44 GB of server 3, where 12\.5 GB .* on more machines"):
        require_memory("server 3", 44 * 10**9, 12_500_000_000)
