"""The rows that a policy puts first, against CPR's rules written down with dictionaries."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from holdfast.checkpoint.track.selectors import MfuSelector, ScarSelector, Selector, SsuSelector, selector
from holdfast.checkpoint.training.tables import Table
from holdfast.errors import ConfigurationError
from holdfast.policy import MFU, SCAR, SSU, Priority, largest

ROWS, DIM = 40, 3


def make_table(rows: int = ROWS) -> Table:
    return Table(name="t", parameter=nn.Parameter(torch.zeros(rows, DIM)))


def gradient(ids: list[int], rows: int = ROWS, *, dense: bool = False) -> Tensor:
    sparse = torch.sparse_coo_tensor(
        torch.tensor([ids]), torch.ones(len(ids), DIM), (rows, DIM), check_invariants=False
    )
    return sparse.to_dense() if dense else sparse


# A history: uses of rows, priority saves and checkpoints whose commits succeed or fail some uses later.
batch = st.lists(st.integers(0, ROWS - 1), min_size=1, max_size=12)
save = st.tuples(st.booleans(), st.lists(batch, max_size=3), st.booleans())  # checkpoint?, meanwhile, committed?
histories = st.lists(batch | save, max_size=20)
shares = st.sampled_from([0.01, 0.125, 0.3, 1.0])


@given(histories, shares, st.booleans())
@settings(deadline=None, max_examples=150)
def test_mfu_saves_the_rows_used_most_since_their_last_save_and_clears_their_counters(
    history: list, r: float, dense: bool
) -> None:
    chosen_by = selector(MFU(r), make_table(), 0, ROWS)
    uses: Counter[int] = Counter()

    def use(ids: list[int]) -> None:
        chosen_by.see(gradient(ids, dense=dense))
        uses.update(set(ids) if dense else ids)

    for event in history:
        if isinstance(event, list):
            use(event)
            continue
        is_checkpoint, meanwhile, committed = event
        before = Counter(uses)
        ids = chosen_by.choose().tolist()
        assert_most_used(ids, before, MFU(r).rows(ROWS))
        chosen_by.begin(None if is_checkpoint else torch.tensor(ids, dtype=torch.int64))
        for each in meanwhile:
            use(each)
        if committed:
            chosen_by.committed()
            for row in range(ROWS) if is_checkpoint else ids:
                uses[row] -= before[row]
        else:
            chosen_by.failed()
    assert_most_used(chosen_by.choose().tolist(), uses, MFU(r).rows(ROWS))


def assert_most_used(ids: list[int], uses: Counter[int], limit: int) -> None:
    """Which of equally used rows come first is open; a row that was not used has nothing to save."""
    ranked = sorted((count for count in uses.values() if count > 0), reverse=True)[:limit]
    assert sorted((uses[row] for row in ids), reverse=True) == ranked
    assert ids == sorted(set(ids))


@given(histories, shares)
@settings(deadline=None, max_examples=100)
def test_scar_saves_the_rows_that_moved_furthest_since_their_last_save(history: list, r: float) -> None:
    table = make_table()
    weights = table.parameter.data
    chosen_by = selector(SCAR(r), table, 0, ROWS)
    saved = {row: 0.0 for row in range(ROWS)}
    moved = 0

    def use(ids: list[int]) -> None:
        nonlocal moved
        for row in ids:
            moved += 1
            weights[row] += moved * (-1) ** moved  # no two rows move equally far

    def change(row: int, value: float) -> float:
        return abs(value - saved[row])

    for event in history:
        if isinstance(event, list):
            use(event)
            continue
        is_checkpoint, meanwhile, committed = event
        now = {row: float(weights[row, 0]) for row in range(ROWS)}
        changed = sorted(change(row, now[row]) for row in range(ROWS) if change(row, now[row]))
        ids = chosen_by.choose().tolist()
        limit = SCAR(r).rows(ROWS)
        assert sorted(change(row, now[row]) for row in ids) == changed[max(0, len(changed) - limit) :]
        chosen_by.begin(None if is_checkpoint else torch.tensor(ids, dtype=torch.int64))
        for each in meanwhile:
            use(each)
        if committed:
            chosen_by.committed()
            saved |= {row: now[row] for row in (range(ROWS) if is_checkpoint else ids)}
        else:
            chosen_by.failed()


@given(histories)
@settings(deadline=None, max_examples=100)
def test_ssu_lists_every_row_of_its_samples_once_until_it_is_saved(history: list) -> None:
    chosen_by = selector(SSU(r=1.0, period=1), make_table(), 0, ROWS)  # no overflow, every sample
    listed: set[int] = set()
    for event in history:
        if isinstance(event, list):
            chosen_by.see(gradient(event))
            listed |= set(event)
            continue
        is_checkpoint, meanwhile, committed = event
        ids = chosen_by.choose()
        assert ids.tolist() == sorted(listed)
        chosen_by.begin(None if is_checkpoint else ids)
        later = {row for each in meanwhile for row in each}
        for each in meanwhile:
            chosen_by.see(gradient(each))
        listed = later if committed else listed | later
        if committed:
            chosen_by.committed()
        else:
            chosen_by.failed()
    assert chosen_by.choose().tolist() == sorted(listed)


@given(st.lists(batch, max_size=40), shares, st.integers(1, 4), st.integers(0, 3))
@settings(deadline=None, max_examples=100)
def test_ssu_never_lists_more_than_its_share_nor_a_row_that_was_not_sampled(
    batches: list[list[int]], r: float, period: int, seed: int
) -> None:
    policy = SSU(r=r, period=period, seed=seed)
    chosen_by, again = (selector(policy, make_table(), 0, ROWS) for _ in range(2))
    for each in batches:
        chosen_by.see(gradient(each))
        again.see(gradient(each))
    ids = chosen_by.choose().tolist()
    assert len(ids) <= policy.rows(ROWS) and ids == sorted(set(ids)) and set(ids) <= {row for b in batches for row in b}
    assert again.choose().tolist() == ids  # the seed decides everything


@pytest.mark.parametrize("period", [2, 3])
def test_ssu_samples_every_period_th_lookup_of_a_step(period: int) -> None:
    chosen_by = SsuSelector(make_table(), 0, ROWS, ROWS, period=period, seed=5)
    chosen_by.see(gradient(list(range(ROWS))))
    ids = chosen_by.choose().tolist()
    assert ids in [list(range(first, ROWS, period)) for first in range(period)]


def test_every_place_of_a_sample_is_sampled_sooner_or_later() -> None:
    chosen_by = SsuSelector(make_table(), 0, ROWS, ROWS, period=2, seed=0)
    for _ in range(20):
        chosen_by.see(gradient([3, 9] * 8))  # each sample looks up rows 3 and 9, in this order
    assert chosen_by.choose().tolist() == [3, 9]


def test_rows_used_often_stay_in_an_overflowing_list_more_often_than_others() -> None:
    rows, often = 4000, 100
    kept = 0
    generator = torch.Generator().manual_seed(1)
    for seed in range(10):
        chosen_by = SsuSelector(make_table(rows), 0, rows, 400, period=2, seed=seed)
        for _ in range(40):
            rare = torch.randint(often, rows, (128,), generator=generator)
            common = torch.randint(0, often, (128,), generator=generator)
            chosen_by.see(gradient(torch.stack([rare, common], dim=1).reshape(-1).tolist(), rows))
        ids = chosen_by.choose()
        assert len(ids) == 400
        kept += int((ids < often).sum())
    assert kept > 0.6 * 10 * often  # 400 of 4000 by chance alone: a tenth


def selectors(table: Table) -> Iterator[Selector]:
    yield MfuSelector(table, 10, 30, 20)
    yield ScarSelector(table, 10, 30, 20)
    yield SsuSelector(table, 10, 30, 20, period=1, seed=0)


def test_a_rank_chooses_among_its_own_rows_only() -> None:
    table = make_table()
    for each in selectors(table):
        each.see(gradient(list(range(ROWS))))
        table.parameter.data += 1.0
        assert each.choose().tolist() == list(range(10, 30))


def test_rows_brought_back_from_the_newest_save_have_nothing_new_to_save() -> None:
    table = make_table()
    for each in selectors(table):
        each.see(gradient(list(range(ROWS))))
        table.parameter.data += 1.0
        each.forget(0, 15)
        each.forget(25, ROWS)
        assert each.choose().tolist() == list(range(15, 25))


def test_what_policies_hold_is_what_the_paper_says() -> None:
    rows, dim = 80_000, 16
    table = Table(name="t", parameter=nn.Parameter(torch.zeros(rows, dim)))
    every = gradient(list(range(rows)), rows)
    shares = {}
    for policy in (SCAR(), MFU(), SSU()):
        chosen_by = selector(policy, table, 0, rows)
        chosen_by.see(every)
        shares[type(policy)] = chosen_by.memory_bytes / table.parameter.nbytes
    assert shares[SCAR] == 1.0
    assert shares[MFU] == pytest.approx(0.0625, rel=1e-3)
    assert shares[SSU] <= 0.0078 * 9 / 8 + 1e-4


def test_only_the_largest_tables_that_make_up_99_percent_are_chosen_from() -> None:
    assert largest({"a": 600, "b": 395, "c": 4, "d": 1}) == {"a", "b"}
    assert largest({"a": 600, "b": 380, "c": 15, "d": 5}) == {"a", "b", "c"}
    assert largest({"a": 1, "b": 1}) == {"a", "b"}
    assert largest({}) == frozenset()


@pytest.mark.parametrize("r", [0, -0.1, 1.1, float("nan"), True, "0.1"])
@pytest.mark.parametrize("policy", [SCAR, MFU, SSU])
def test_a_share_outside_of_0_to_1_is_refused(policy: type[Priority], r: object) -> None:
    with pytest.raises(ConfigurationError, match="r must be above 0 and at most 1"):
        policy(r)  # type: ignore[call-arg]


def test_a_period_that_is_no_whole_number_above_zero_is_refused() -> None:
    for period in (0, -1, 1.5):
        with pytest.raises(ConfigurationError, match="period"):
            SSU(period=period)  # type: ignore[arg-type]
