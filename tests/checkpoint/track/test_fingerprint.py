from __future__ import annotations

import torch
from torch import nn
from torch.multiprocessing.reductions import StorageWeakRef

from holdfast.checkpoint.track.fingerprint import Fingerprint
from holdfast.checkpoint.training.tables import Table


def adagrad_table() -> Table:
    weight = nn.Parameter(torch.zeros(10, 4))
    return Table(name="t", parameter=weight, optimizer=torch.optim.Adagrad([weight], lr=0.1))


def sum_of(table: Table) -> torch.Tensor:
    assert table.optimizer is not None
    return table.optimizer.state[table.parameter]["sum"]


def test_what_was_not_touched_is_unchanged() -> None:
    table = adagrad_table()
    fingerprint = Fingerprint(table)
    table.parameter.detach().clone().add_(1)
    assert fingerprint.weight_is_unchanged()
    assert fingerprint.advance(0)
    assert fingerprint.has_same_slots()


def test_a_change_of_the_weight_or_a_slot_is_seen_until_it_is_accounted_for() -> None:
    for part in (lambda table: table.parameter.detach(), sum_of):
        table = adagrad_table()
        fingerprint = Fingerprint(table)
        part(table).add_(1)
        assert fingerprint.weight_is_unchanged() == (part is sum_of)
        assert not fingerprint.advance(0)
        assert fingerprint.weight_is_unchanged()
        assert fingerprint.advance(0)


def test_changes_are_counted_for_each_tensor() -> None:
    table = adagrad_table()
    fingerprint = Fingerprint(table)
    table.parameter.detach().add_(1)
    sum_of(table).add_(1)
    assert fingerprint.advance(1)
    table.parameter.detach().add_(1).add_(1)
    assert not fingerprint.advance(1)


def test_memory_behind_data_that_was_replaced_is_seen() -> None:
    table = adagrad_table()
    fingerprint = Fingerprint(table)
    table.parameter.data = torch.zeros(10, 4)
    assert not fingerprint.weight_is_unchanged()
    assert not fingerprint.advance(1)
    fingerprint.take()
    assert fingerprint.advance(0)


def test_memory_that_was_exchanged_is_seen_though_its_address_came_back() -> None:
    for part in (lambda table: table.parameter, sum_of):
        table, memory = adagrad_table(), bytearray(10 * 4 * 4)
        tensor = part(table)
        tensor.data = torch.frombuffer(memory, dtype=torch.float32).view(10, 4)
        fingerprint, address = Fingerprint(table), tensor.data_ptr()
        assert fingerprint.has_same_memory()
        tensor.data = torch.zeros(10, 4)
        tensor.data = torch.frombuffer(memory, dtype=torch.float32).view(10, 4)
        assert tensor.data_ptr() == address
        assert not fingerprint.has_same_memory()


def test_a_fingerprint_keeps_no_memory_that_was_given_up() -> None:
    table = adagrad_table()
    fingerprint = Fingerprint(table)
    storage = StorageWeakRef(table.parameter.untyped_storage())
    table.parameter.data = torch.zeros(10, 4)
    assert storage.expired()
    assert not fingerprint.has_same_memory()


def test_slots_that_were_replaced_are_seen() -> None:
    table = adagrad_table()
    fingerprint = Fingerprint(table)
    assert table.optimizer is not None
    table.optimizer.state[table.parameter]["sum"] = sum_of(table).clone()
    assert not fingerprint.has_same_slots()
    fingerprint.take()
    table.optimizer.state.clear()
    assert not fingerprint.has_same_slots()


def test_slots_that_appear_are_no_change_of_what_was_there() -> None:
    table = adagrad_table()
    assert table.optimizer is not None
    state = table.optimizer.state.pop(table.parameter)
    fingerprint = Fingerprint(table)
    table.optimizer.state[table.parameter] = state
    assert fingerprint.has_same_slots()
    assert fingerprint.advance(0)


def test_tensors_that_nobody_counts_are_never_unchanged() -> None:
    with torch.inference_mode():
        table = Table(name="t", parameter=nn.Parameter(torch.zeros(10, 4), requires_grad=False))
    fingerprint = Fingerprint(table)
    assert not fingerprint.weight_is_unchanged()
    assert not fingerprint.advance(5)
