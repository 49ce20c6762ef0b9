from __future__ import annotations

import pytest
import torch
from torch import nn

import holdfast as hf
from holdfast.checkpoint.track.aliasing import require_memory_of_their_own
from holdfast.checkpoint.training.tables import find_tables
from holdfast.errors import ConfigurationError, HoldfastWarning
from holdfast.storage import MemoryStore


def check(**modules: nn.Module) -> None:
    models = {"": nn.ModuleDict(modules)}
    require_memory_of_their_own(find_tables(models), models)


def table() -> nn.Embedding:
    return nn.Embedding(10, 4)


def test_two_tables_over_one_memory_with_counts_of_their_own_are_refused_by_name() -> None:
    a = table()
    with pytest.raises(ConfigurationError, match=r"table 'a' and table 'b' share memory.*b.weight = a.weight.*clone"):
        check(a=a, b=nn.Embedding.from_pretrained(a.weight.data))


def test_the_checkpointer_refuses_them_before_anything_is_written() -> None:
    a, store = table(), MemoryStore()
    model = nn.ModuleDict({"a": a, "b": nn.Embedding.from_pretrained(a.weight.data, freeze=False)})
    with pytest.raises(ConfigurationError, match="share memory"):
        hf.Checkpointer(store, model=model, optimizer=torch.optim.SGD(model.parameters(), lr=0.1))
    assert not list(store.list(""))


def test_a_dense_parameter_or_buffer_over_a_tables_memory_is_refused_by_name() -> None:
    a, tied, kept = table(), nn.Linear(4, 10, bias=False), nn.Module()
    tied.weight.data = a.weight.data
    with pytest.raises(ConfigurationError, match=r"table 'a' and parameter 'tied\.weight' share memory"):
        check(a=a, tied=tied)
    kept.register_buffer("view", a.weight.data[3:5])
    with pytest.raises(ConfigurationError, match=r"table 'a' and buffer 'kept\.view' share memory"):
        check(a=a, kept=kept)


def test_tables_that_count_together_or_lie_side_by_side_are_allowed() -> None:
    a, tied = table(), table()
    tied.weight = a.weight
    check(a=a, b=nn.Embedding.from_pretrained(a.weight), tied=tied)
    memory = torch.zeros(20, 4)
    check(a=nn.Embedding.from_pretrained(memory.data[:10]), b=nn.Embedding.from_pretrained(memory.data[10:]))
    left, right = nn.Linear(4, 4), nn.Linear(4, 4)
    right.weight.data = left.weight.data  # no table: always saved whole
    check(left=left, right=right)


def test_tables_that_count_together_are_saved_exactly() -> None:
    a = nn.Embedding(30, 2, sparse=True)
    model = nn.ModuleDict({"a": a, "b": nn.Embedding.from_pretrained(a.weight)})
    optimizer, store = torch.optim.SGD([a.weight], lr=0.1), MemoryStore()
    settings = hf.Settings(buffer_bytes=2**18, frame_bytes=2**16, handle_sigterm=False)
    with (
        pytest.warns(HoldfastWarning, match=r"outside of optimizer\.step"),
        hf.Checkpointer(
            store, model=model, optimizer=optimizer, save=hf.EverySteps(1), overlap=hf.Overlap.WAIT, settings=settings
        ) as guard,
    ):
        for step in range(4):
            optimizer.zero_grad()
            a(torch.tensor([step])).sum().backward()
            optimizer.step()
            guard.step()
    rows = torch.arange(30)
    for name in ("a", "b"):
        assert torch.equal(hf.open_run(store).read_rows(name, rows)["weight"], a.weight.detach())
