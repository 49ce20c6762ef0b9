"""EmulatedServers fail, and get back what was last saved of their rows: no more, no less."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.optim import SGD, SparseAdam

from holdfast.checkpoint.training.tables import Table, find_tables, row_range
from holdfast.emulation import EmulatedServers
from holdfast.errors import ConfigurationError
from holdfast.policy.priority import MFU, SCAR, SSU, Priority
from tests.tiny import Tiny, build, snapshot, train_step

Rows = dict[str, dict[str, Tensor]]


def rows_of(tables: tuple[Table, ...]) -> Rows:
    """Every column of every row, copied."""
    return {
        table.name: {"weight": table.parameter.detach().clone()} | {k: v.clone() for k, v in table.slots().items()}
        for table in tables
    }


def test_only_the_rows_of_failed_servers_go_back_and_with_them_their_slots() -> None:
    model, optimizers = build()
    tables = find_tables({"": model}, optimizers)
    for step in range(5):
        train_step(model, optimizers, step)
    servers = EmulatedServers(tables, 4)
    saved = rows_of(tables)
    for step in range(5, 20):
        train_step(model, optimizers, step)
    before, everything = rows_of(tables), snapshot(model, optimizers)
    servers.fail([1, 3])
    for table in tables:
        failed = torch.zeros(table.rows, dtype=torch.bool)
        for server in (1, 3):
            failed[slice(*row_range(table.rows, server, 4))] = True
        for column, now in rows_of((table,))[table.name].items():
            assert torch.equal(now[failed], saved[table.name][column][failed])
            assert torch.equal(now[~failed], before[table.name][column][~failed])
            assert not torch.equal(now[failed], before[table.name][column][failed])
    after = snapshot(model, optimizers)
    dense = [name for name in after if name.startswith(("top", "1/"))]
    assert dense and all(torch.equal(after[name], everything[name]) for name in dense)


def test_slots_that_the_baseline_did_not_have_go_back_to_nothing() -> None:
    model, optimizers = build()
    tables = find_tables({"": model}, optimizers)
    servers = EmulatedServers(tables, 2)  # before SparseAdam's first step
    train_step(model, optimizers, 0)
    assert any(table.slots()["exp_avg"].any() for table in tables)
    servers.fail([0, 1])
    assert not any(slot.any() for table in tables for slot in table.slots().values())


def use(model: nn.Module, optimizer: SGD, ids: list[int]) -> None:
    """A step that moves these rows of the first table, by more the more often they are named."""
    optimizer.zero_grad()
    model.emb[0](torch.tensor(ids)[:, None]).sum().backward()  # type: ignore[index,operator]
    optimizer.step()


@pytest.mark.parametrize("priority", [SCAR(0.02), MFU(0.02), SSU(0.02, period=1)], ids=lambda each: type(each).__name__)
def test_rows_saved_first_come_back_as_they_were_then_and_others_as_in_the_baseline(priority: Priority) -> None:
    model = Tiny()
    optimizer = SGD(model.parameters(), lr=0.1)
    (large, small) = find_tables({"": model}, [optimizer])
    servers = EmulatedServers((large, small), 3, priority)
    expected = {row: values.clone() for row, values in enumerate(large.parameter.detach())}  # the plain model
    often, once = [5, 77, 130, 200, 250, 299], [10]
    used = often if isinstance(priority, SSU) else often * 3 + once  # SSU does not count
    use(model, optimizer, used)
    servers.save_first()  # six rows of 300
    expected |= {row: large.parameter.detach()[row].clone() for row in often}
    use(model, optimizer, [5, 10, 299])  # later than the save: lost
    servers.fail(range(3))
    for row, values in expected.items():
        assert torch.equal(large.parameter.detach()[row], values), row


def test_a_small_table_is_saved_whole_with_every_priority_save() -> None:
    torch.manual_seed(0)
    model = Tiny((5000, 40))
    optimizer = SGD(model.parameters(), lr=0.1)
    tables = find_tables({"": model}, [optimizer])
    servers = EmulatedServers(tables, 2, MFU())
    with torch.no_grad():
        tables[1].parameter += 1.0
    servers.save_first()
    assert torch.equal(servers.saved_rows("emb.1")["weight"], tables[1].parameter)


def lost(priority: Priority | None) -> float:
    """How far a failure of everything takes the tables back, of a training that uses few rows often."""
    torch.manual_seed(0)
    model = Tiny((2000, 40))
    optimizers = [SparseAdam(list(model.emb.parameters())), SGD(model.top.parameters(), lr=0.1)]
    tables = find_tables({"": model}, optimizers)
    servers = EmulatedServers(tables, 4, priority)
    generator = torch.Generator().manual_seed(1)
    for step in range(60):
        ids = (2000 * torch.rand(32, 2, 1, generator=generator) ** 6).long()
        for optimizer in optimizers:
            optimizer.zero_grad()
        model(ids).square().mean().backward()
        for optimizer in optimizers:
            optimizer.step()
        if priority and step % 10 == 9 and step < 50:
            servers.save_first()
    before = tables[0].parameter.detach().clone()
    servers.fail(range(4))
    return float((tables[0].parameter.detach() - before).norm())


@pytest.mark.parametrize("priority", [SCAR(), MFU(), SSU()])
def test_saving_some_rows_first_leaves_less_to_lose(priority: Priority) -> None:
    assert lost(priority) < 0.7 * lost(None)


def test_a_priority_looks_at_gradients_until_it_is_closed() -> None:
    model = Tiny()
    optimizer = SGD(model.parameters(), lr=0.1)
    servers = EmulatedServers(find_tables({"": model}, [optimizer]), 2, MFU())
    assert optimizer._optimizer_step_pre_hooks
    servers.close()
    assert not optimizer._optimizer_step_pre_hooks


def test_a_server_that_does_not_exist_cannot_fail() -> None:
    model, optimizers = build()
    servers = EmulatedServers(find_tables({"": model}, optimizers), 4)
    before = snapshot(model, optimizers)
    with pytest.raises(ConfigurationError, match=r"there are 4 servers, from 0; \[4\] cannot fail"):
        servers.fail([0, 4])
    assert all(torch.equal(value, before[name]) for name, value in snapshot(model, optimizers).items())
    with pytest.raises(ConfigurationError, match="servers must be a whole number"):
        EmulatedServers((), 0)
