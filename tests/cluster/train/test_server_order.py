"""Rows go from tables to servers and back without being sorted."""

from __future__ import annotations

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from holdfast.cluster.placement import Group
from holdfast.cluster.train.server_order import TABLE_SHIFT, Cells, ServerOrder


@given(st.data())
def test_both_orders_hold_the_same_rows(data: st.DataObject) -> None:
    rows = data.draw(st.lists(st.sampled_from([0, 1, 2, 7, 30]), min_size=1, max_size=6))
    numbers = data.draw(st.sets(st.integers(0, 20), min_size=len(rows), max_size=len(rows)))
    group = Group(width=2, tables=sorted(numbers), rows=rows, servers=data.draw(st.sampled_from([1, 2, 3, 5, 40])))
    ids = [np.array(sorted(data.draw(st.sets(st.integers(0, count - 1)))) if count else [], np.int64) for count in rows]
    order = ServerOrder(Cells(group), np.concatenate([each + (at << TABLE_SHIFT) for at, each in enumerate(ids)]))
    keys = [group.keys(member, each) for member, each in enumerate(ids)]
    assert order.counts == [len(each) for each in ids]
    np.testing.assert_array_equal(order.keys, np.sort(np.concatenate(keys)))
    assert order.starts == [sum(order.counts[:at]) for at in range(len(rows))]
    by_table, by_server = torch.from_numpy(np.concatenate(keys)), torch.from_numpy(order.keys)
    assert torch.equal(order.to_servers(by_table), by_server)
    assert torch.equal(order.to_tables(by_server), by_table)


@given(st.lists(st.integers(0, 9), min_size=1, max_size=4), st.integers(0, 3), st.integers(-2, 12))
def test_an_address_outside_every_table_is_noticed(rows: list[int], member: int, row: int) -> None:
    group = Group(width=2, tables=range(len(rows)), rows=rows, servers=3)
    member %= len(rows)
    order = ServerOrder(Cells(group), np.array([(member << TABLE_SHIFT) + row]))
    assert order.is_inside == (0 <= row < rows[member])
