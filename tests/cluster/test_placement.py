"""Every row and every dense value lives on exactly one server, and both ways of asking agree."""

from __future__ import annotations

import subprocess
import sys
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.cluster.placement import SERVER_SHIFT, Group, Placement
from holdfast.cluster.plan import DenseSpec, ModelPlan, TableSpec
from holdfast.errors import ConfigurationError
from holdfast.policy import Constant, Normal, Uniform

inits = st.sampled_from([Normal(), Uniform(-0.5, 0.5), Constant(1.0)])


@st.composite
def plans(draw: st.DrawFn) -> ModelPlan:
    shapes = draw(
        st.lists(st.tuples(st.sampled_from([0, 1, 2, 3, 7, 40, 101]), st.sampled_from([4, 8, 16])), max_size=8)
    )
    tables = [
        TableSpec(
            name=f"t{number}.weight", rows=rows, width=width, init=draw(inits), padding_idx=rows - 1 if rows else None
        )
        for number, (rows, width) in enumerate(shapes)
    ]
    dense = draw(st.lists(st.lists(st.integers(0, 9), max_size=3), max_size=6))
    specs = [DenseSpec(name=f"d{number}", shape=tuple(shape)) for number, shape in enumerate(dense)]
    return ModelPlan(tables=tuple(tables), dense=tuple(specs), seed=draw(st.integers(0, 5)))


servers = st.sampled_from([1, 2, 3, 5, 8, 64])


@settings(deadline=None)
@given(plans(), servers)
def test_a_row_has_one_key_and_a_key_one_row(plan: ModelPlan, count: int) -> None:
    for group in Placement(plan, count).groups:
        keys = [group.keys(member, np.arange(rows)) for member, rows in enumerate(group.rows.tolist())]
        together = np.concatenate(keys)
        assert len(np.unique(together)) == group.rows.sum()
        found = group.rows_of(together)
        np.testing.assert_array_equal(found.ids, np.concatenate([np.arange(rows) for rows in group.rows]))
        np.testing.assert_array_equal(found.tables, np.repeat(group.tables, group.rows))
        assert np.array_equal(group.keys(np.repeat(np.arange(len(keys)), group.rows), found.ids), together)


@settings(deadline=None)
@given(plans(), servers)
def test_keys_count_the_rows_of_each_servers_array(plan: ModelPlan, count: int) -> None:
    for group in Placement(plan, count).groups:
        keys = [group.keys(member, np.arange(rows)) for member, rows in enumerate(group.rows.tolist())]
        together = np.sort(np.concatenate(keys))
        cuts = group.cuts(together)
        for server in range(count):
            rows = together[cuts[server] : cuts[server + 1]] - (server << SERVER_SHIFT)
            np.testing.assert_array_equal(rows, np.arange(group.size(server)))


@settings(deadline=None)
@given(plans(), servers)
def test_ranges_tile_a_servers_array_and_every_table(plan: ModelPlan, count: int) -> None:
    for group in Placement(plan, count).groups:
        held: dict[int, list[int]] = {table: [] for table in group.tables}
        for server in range(count):
            at = 0
            for each in group.ranges(server):
                member = group.tables.index(each.table)
                ids = np.arange(each.first, each.end)
                expected = (server << SERVER_SHIFT) + each.at + np.arange(len(ids))
                assert each.at == at and len(ids)
                np.testing.assert_array_equal(group.keys(member, ids), expected)
                held[each.table] += ids.tolist()
                at += len(ids)
            assert at == group.size(server)
        assert {table: sorted(ids) for table, ids in held.items()} == {
            table: list(range(plan.tables[table].rows)) for table in group.tables
        }


def test_the_first_rows_of_tables_are_on_different_servers() -> None:
    tables = tuple(TableSpec(name=str(number), rows=10, width=4, init=Normal()) for number in range(5))
    (group,) = Placement(ModelPlan(tables=tables, dense=()), 5).groups
    assert {int(group.keys(member, np.array([0]))[0]) >> SERVER_SHIFT for member in range(5)} == set(range(5))


def test_more_servers_than_rows_leave_some_without_any() -> None:
    (group,) = Placement(ModelPlan(tables=(TableSpec(name="a", rows=2, width=4, init=Normal()),), dense=()), 5).groups
    assert [group.size(server) for server in range(5)] == [1, 1, 0, 0, 0]


@settings(deadline=None)
@given(plans(), servers)
def test_pieces_tile_the_dense_vector_in_whole_rows(plan: ModelPlan, count: int) -> None:
    pieces = Placement(plan, count).dense
    assert len(pieces) == count and pieces[0].start == 0 and pieces[-1].end == plan.dense_size
    assert all(one.end == other.start for one, other in pairwise(pieces))
    rows: dict[str, list[int]] = {}
    for piece in pieces:
        at = 0
        for part in piece.parts:
            assert part.at == at and part.rows > 0
            at += part.rows * part.width
            rows.setdefault(part.name, []).extend(range(part.first, part.first + part.rows))
        assert at == piece.size
    assert rows == {each.name: list(range(each.rows)) for each in plan.dense if each.size}


def test_pieces_differ_by_at_most_a_row() -> None:
    shapes = [(512, 13), (512,), (256, 512), (256,), (1, 256), (1,)]
    plan = ModelPlan(
        tables=(), dense=tuple(DenseSpec(name=str(number), shape=each) for number, each in enumerate(shapes))
    )
    sizes = [piece.size for piece in Placement(plan, 4).dense]
    assert max(sizes) - min(sizes) <= 2 * 512


@given(plans())
def test_a_plan_comes_back_from_json_as_it_was(plan: ModelPlan) -> None:
    assert ModelPlan.from_json(plan.to_json()) == plan


def test_what_cannot_be_placed_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="at least 1 server, got 0"):
        Placement(ModelPlan(tables=(), dense=()), 0)
    group = Group(width=4, tables=[0], rows=[10], servers=2)
    with pytest.raises(ConfigurationError, match="no row of width 4 has the key 0x5"):
        group.rows_of(np.array([5]))
    with pytest.raises(ConfigurationError, match="not known to this release"):
        ModelPlan.from_json('{"version": 99}')


def test_what_servers_need_is_there_without_torch() -> None:
    code = "import sys, holdfast.cluster.shard, holdfast.cluster.train.local_exchange; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
