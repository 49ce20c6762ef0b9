"""The planner's choice: parity where servers, machines and memory allow it and it pays; nothing lossy on its own."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from holdfast.planner import Ladder, Outlook, Parity, ParityOption, choose, parities_for
from holdfast.planner.measured import PARITY_OVERHEAD
from holdfast.policy import PLS

HOUR_S = 3600.0
ASKED = Ladder()


def options(servers: int, *, left_bytes: int | None = None, most_lost: int = 1) -> list[ParityOption]:
    """Of servers with 8 GB of rows each."""
    return [
        ParityOption(
            parity=each,
            needed_bytes=8_000_000_000 * each.parity // each.data,
            left_bytes=left_bytes,
            where="machine m1",
            most_lost=most_lost,
        )
        for each in parities_for(servers)
    ]


@pytest.mark.parametrize(
    ("servers", "data"), [(1, []), (2, []), (3, [2]), (4, [3, 2]), (5, [4, 3, 2]), (8, [4, 3, 2, 5, 6, 7])]
)
def test_four_rows_share_a_parity_where_there_are_servers_enough(servers: int, data: list[int]) -> None:
    assert [each.data for each in parities_for(servers)] == data
    assert len(parities_for(100)) == 7


def test_parity_is_chosen_where_it_fits_and_partial_recovery_stays_as_asked() -> None:
    chosen = choose(ASKED, options(8, left_bytes=10**10))
    assert chosen.ladder == Ladder(parity=Parity(data=4, parity=1))
    assert chosen.why == "parity of 4 + 1 takes 2 GB of machine m1"
    asked = Ladder(partial=True, budget=PLS(0.1))
    assert choose(asked, options(8)).ladder == replace(asked, parity=Parity(data=4, parity=1))


def test_few_servers_have_no_parity() -> None:
    chosen = choose(ASKED, options(2))
    assert chosen.ladder == ASKED and "needs 3 servers or more" in chosen.why


def test_memory_that_is_short_takes_a_wider_parity_and_then_none_with_the_figure() -> None:
    wider = choose(ASKED, options(8, left_bytes=1_200_000_000)).ladder.parity
    assert wider is not None and wider.data == 7
    chosen = choose(ASKED, options(8, left_bytes=10**9))
    assert chosen.ladder == ASKED
    assert chosen.why == "parity of 7 + 1 would take 1.14 GB of machine m1, where 1 GB are left beside the rows"
    assert "0 GB are left" in choose(ASKED, options(8, left_bytes=-5)).why


def test_the_first_parity_that_survives_a_machine_is_taken_else_processes_count() -> None:
    crowded = [replace(each, most_lost=2 if each.parity.data > 2 else 1) for each in options(8)]
    assert choose(ASKED, crowded).ladder.parity == Parity(data=2, parity=1)
    alone = choose(ASKED, options(8, most_lost=8))
    assert alone.ladder.parity == Parity(data=4, parity=1, domain="process")
    assert "for deaths of processes" in alone.why


def test_parity_that_costs_more_than_it_saves_is_left_out_with_both_figures() -> None:
    rare = Outlook(mtbf_s=28 * HOUR_S, interval_s=0.5 * HOUR_S, server_bytes=8e9)
    chosen = choose(ASKED, options(8), rare)
    assert chosen.ladder == ASKED
    found = re.match(r"parity would cost ([\d.]+)% of the time, and full recovery costs 0\.89%", chosen.why)
    assert found is not None and float(found[1]) == pytest.approx(100 * PARITY_OVERHEAD.value, abs=0.1)
    often = replace(rare, mtbf_s=2 * HOUR_S)
    assert choose(ASKED, options(8), often).ladder.parity is not None
    assert choose(Ladder(partial=True), options(8), often).ladder.parity is None  # which trains nothing again
    assert choose(ASKED, options(8), replace(rare, interval_s=None)).ladder.parity is not None  # not known
