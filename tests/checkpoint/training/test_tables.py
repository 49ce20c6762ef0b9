from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel

from holdfast.checkpoint.training.tables import Table, find_tables, stable_buffers, stable_parameters
from holdfast.errors import ConfigurationError, UnsupportedState
from holdfast.types import ColumnSpec, TableSpec


class Tower(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.emb = nn.ModuleList([nn.Embedding(10, 4), nn.EmbeddingBag(7, 2)])
        self.norm = nn.BatchNorm1d(4)
        self.head = nn.Linear(4, 1)
        self.register_buffer("scratch", torch.zeros(3), persistent=False)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.head(self.norm(self.emb[0](ids)))


class WithTower(nn.Module):
    def __init__(self, tower: nn.Module) -> None:
        super().__init__()
        self.tower = tower


@pytest.fixture(scope="module")
def one_process_group(tmp_path_factory: pytest.TempPathFactory):
    store = tmp_path_factory.mktemp("store") / "store"
    torch.distributed.init_process_group("gloo", init_method=f"file://{store}", rank=0, world_size=1)
    yield
    torch.distributed.destroy_process_group()


def ddp(model: nn.Module) -> nn.Module:
    return nn.parallel.DistributedDataParallel(model)


def compiled(model: nn.Module) -> nn.Module:
    return torch.compile(model, backend="eager")


WRAPPERS = {
    "ddp": lambda: ddp(Tower()),
    "data_parallel": lambda: nn.DataParallel(Tower()),
    "compiled": lambda: compiled(Tower()),
    "averaged": lambda: AveragedModel(Tower()),
    "compiled_ddp": lambda: compiled(ddp(Tower())),
    "ddp_of_compiled": lambda: ddp(compiled(Tower())),
    "averaged_ddp": lambda: AveragedModel(ddp(Tower())),
    "averaged_compiled_ddp": lambda: AveragedModel(compiled(ddp(Tower()))),
}


@pytest.mark.usefixtures("one_process_group")
@pytest.mark.parametrize("wrap", WRAPPERS.values(), ids=WRAPPERS)
def test_names_do_not_show_wrappers(wrap) -> None:
    plain, wrapped = Tower(), wrap()
    assert [t.name for t in find_tables({"": wrapped})] == ["emb.0", "emb.1"]
    assert stable_parameters(wrapped).keys() == stable_parameters(plain).keys()
    own = {"n_averaged"} if isinstance(wrapped, AveragedModel) else set()
    assert stable_buffers(wrapped).keys() == stable_buffers(plain).keys() | own


@pytest.mark.usefixtures("one_process_group")
@pytest.mark.parametrize("wrap", WRAPPERS.values(), ids=WRAPPERS)
def test_names_do_not_show_wrappers_deep_inside(wrap) -> None:
    names = [t.name for t in find_tables({"": WithTower(wrap())})]
    assert names == ["tower.emb.0", "tower.emb.1"]
    assert "tower.head.weight" in stable_parameters(WithTower(wrap()))


def test_a_compiled_model_that_was_run_keeps_its_names() -> None:
    model = compiled(Tower())
    model(torch.tensor([1, 2])).sum().backward()
    assert [t.name for t in find_tables({"": model})] == ["emb.0", "emb.1"]


def test_a_module_that_is_called_module_is_no_wrapper() -> None:
    model = nn.Module()
    model.module = nn.Embedding(3, 2)
    model._orig_mod = nn.Linear(2, 1)
    assert [t.name for t in find_tables({"": model})] == ["module"]
    assert list(stable_parameters(model)) == ["module.weight", "_orig_mod.weight", "_orig_mod.bias"]


def test_without_wrappers_names_are_torchs_own() -> None:
    model = Tower()
    assert list(stable_parameters(model)) == [name for name, _ in model.named_parameters()]
    assert set(stable_buffers(model)) == {n for n, _ in model.named_buffers()} - {"scratch"}


def test_several_models_prefix_their_tables_with_their_key() -> None:
    tables = find_tables({"user": Tower(), "item": nn.Embedding(3, 2)})
    assert [t.name for t in tables] == ["user.emb.0", "user.emb.1", "item.weight"]


def test_a_model_that_is_an_embedding_is_called_weight() -> None:
    assert [t.name for t in find_tables({"": nn.Embedding(3, 2)})] == ["weight"]


def test_a_subclass_of_embedding_is_a_table() -> None:
    class Hashed(nn.Embedding):
        pass

    assert [t.name for t in find_tables({"": nn.Sequential(Hashed(3, 2))})] == ["0"]


def test_a_table_shared_by_modules_or_tied_is_found_once_by_its_first_embedding() -> None:
    model = nn.ModuleDict({"out": nn.Linear(4, 10, bias=False), "a": nn.Embedding(10, 4), "b": nn.Embedding(10, 4)})
    model["out"].weight = model["b"].weight = model["a"].weight
    (table,) = find_tables({"": model})
    assert table.name == "a"
    assert table.modules == (model["a"], model["b"])
    assert list(stable_parameters(model)) == ["out.weight"]


def test_an_embedding_whose_weight_is_computed_is_not_a_table() -> None:
    model = nn.Sequential(nn.utils.parametrizations.weight_norm(nn.Embedding(3, 2)), nn.Embedding(4, 2))
    assert [t.name for t in find_tables({"": model})] == ["1"]


def test_extra_parameters_are_tables_too() -> None:
    weight = nn.Parameter(torch.zeros(5, 2))
    optimizer = torch.optim.SGD([weight], lr=0.1)
    (table,) = find_tables({"": nn.Linear(1, 1)}, [optimizer], {"codes": weight})
    assert (table.name, table.parameter is weight, table.optimizer) == ("codes", True, optimizer)


def test_extra_parameters_that_make_no_sense_are_refused() -> None:
    model = nn.Sequential(nn.Embedding(3, 2))
    with pytest.raises(ConfigurationError, match="'mine' is already known as '0'"):
        find_tables({"": model}, [], {"mine": model[0].weight})
    with pytest.raises(ConfigurationError, match=r"'scalar' must be an nn\.Parameter"):
        find_tables({"": model}, [], {"scalar": nn.Parameter(torch.tensor(1.0))})


def test_a_parameter_in_two_optimizers_is_refused_by_name() -> None:
    model = nn.Sequential(nn.Embedding(3, 2), nn.Linear(2, 1))
    optimizers = [torch.optim.SGD(model.parameters(), lr=0.1), torch.optim.Adam(model[1].parameters())]
    with pytest.raises(ConfigurationError, match=r"'1\.weight' is in two optimizers \(SGD and Adam\)"):
        find_tables({"": model}, optimizers)


def test_two_tables_of_one_name_are_refused() -> None:
    inner = nn.ModuleDict({"b": nn.Embedding(3, 2)})
    with pytest.raises(ConfigurationError, match=r"two tables are named 'a\.b'"):
        find_tables({"a": inner, "": nn.ModuleDict({"a": nn.ModuleDict({"b": nn.Embedding(3, 2)})})})


def test_a_table_knows_its_optimizer_and_group() -> None:
    model = Tower()
    sparse = torch.optim.SparseAdam([{"params": [model.emb[1].weight]}, {"params": [model.emb[0].weight], "lr": 0.5}])
    dense = torch.optim.Adam(model.head.parameters())
    first, second = find_tables({"": model}, [dense, sparse])
    assert first.optimizer is second.optimizer is sparse
    assert first.group is sparse.param_groups[1]
    assert second.group is sparse.param_groups[0]
    assert find_tables({"": model})[0].group is None


def after_one_step(table: nn.Embedding, optimizer: torch.optim.Optimizer) -> Table:
    table(torch.tensor([1, 2])).square().sum().backward()
    optimizer.step()
    return find_tables({"": table}, [optimizer])[0]


def test_slots_are_the_row_aligned_tensors_of_the_optimizer_by_name() -> None:
    embedding = nn.Embedding(10, 4, dtype=torch.bfloat16)
    optimizer = torch.optim.Adam(embedding.parameters())
    (before,) = find_tables({"": embedding}, [optimizer])
    assert before.slots() == {}
    table = after_one_step(embedding, optimizer)
    state = optimizer.state[embedding.weight]
    assert list(table.slots()) == ["exp_avg", "exp_avg_sq"]
    assert table.slots()["exp_avg"] is state["exp_avg"]
    state["exp_avg_sq"] = state["exp_avg_sq"].float()
    assert table.spec() == TableSpec(
        name="weight",
        rows=10,
        columns=(
            ColumnSpec(name="weight", dtype="BF16", row_shape=(4,)),
            ColumnSpec(name="exp_avg", dtype="BF16", row_shape=(4,)),
            ColumnSpec(name="exp_avg_sq", dtype="F32", row_shape=(4,)),
        ),
    )
    assert (table.rows, table.row_shape) == (10, (4,))


def test_state_that_is_not_row_aligned_is_no_slot() -> None:
    factored = nn.Embedding(10, 4)
    assert list(after_one_step(factored, torch.optim.Adafactor(factored.parameters())).slots()) == ["row_var"]
    momentum = nn.Embedding(10, 4, sparse=True)  # its momentum is a sparse tensor
    assert after_one_step(momentum, torch.optim.SGD(momentum.parameters(), lr=0.1, momentum=0.9)).slots() == {}


def test_asking_for_slots_leaves_the_optimizer_as_it_was() -> None:
    embedding = nn.Embedding(10, 4)
    optimizer = torch.optim.SGD(embedding.parameters(), lr=0.1)
    find_tables({"": embedding}, [optimizer])[0].spec()
    assert dict(optimizer.state) == {}


def test_a_column_that_cannot_be_stored_is_named() -> None:
    with pytest.raises(UnsupportedState, match=r"table 'weight', column 'weight': .*complex128"):
        find_tables({"": nn.Embedding(3, 2, dtype=torch.complex128)})[0].spec()


def test_a_table_without_rows_is_a_table() -> None:
    (table,) = find_tables({"": nn.Embedding(0, 4)})
    assert table.rows == 0
    assert table.spec().rows == 0
