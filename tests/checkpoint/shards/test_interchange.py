"""Runs of a Checkpointer and of shards are of one kind: each continues what the other wrote."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import safetensors.numpy
import torch
from torch import nn

import holdfast as hf
from holdfast.checkpoint.shards import SavePolicies, Shard, ShardedRun, ShardWriter, torch_optimizer
from holdfast.format.host_values import HostTensor, arrays_in
from holdfast.format.state import RankState
from holdfast.format.tree import decode_tree, encode_tree
from holdfast.policy import SGD, Adagrad, Adam, Optimizer
from holdfast.storage import MemoryStore
from tests.checkpoint.shards.job import SETTINGS, Job, load, some_tables

ROWS, DIM = 40, 4


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.emb = nn.Embedding(ROWS, DIM, sparse=True)
        self.top = nn.Linear(DIM, 1)

    def step(self, optimizers: list[torch.optim.Optimizer], seed: int) -> None:
        ids = torch.from_numpy(np.random.default_rng(seed).integers(0, ROWS, 8))
        for optimizer in optimizers:
            optimizer.zero_grad()
        self.top(self.emb(ids)).square().sum().backward()
        for optimizer in optimizers:
            optimizer.step()


def built(kind: str) -> tuple[Model, list[torch.optim.Optimizer]]:
    torch.manual_seed(1)
    model = Model()
    if kind == "adam":
        sparse = torch.optim.SparseAdam(list(model.emb.parameters()), lr=0.05)
        return model, [sparse, torch.optim.Adam(model.top.parameters(), lr=0.05)]
    make = torch.optim.Adagrad if kind == "adagrad" else torch.optim.SGD
    return model, [make(model.emb.parameters(), lr=0.05), make(model.top.parameters(), lr=0.05)]


def slots_of(optimizers: list[torch.optim.Optimizer], parameter: nn.Parameter) -> dict[str, np.ndarray]:
    state = next((each.state[parameter] for each in optimizers if parameter in each.state), {})
    return {
        name: value.numpy()
        for name, value in state.items()
        if isinstance(value, torch.Tensor) and value.shape == parameter.shape
    }


DECLARED: dict[str, Optimizer] = {"adagrad": Adagrad(lr=0.05), "sgd": SGD(lr=0.05), "adam": Adam(lr=0.05)}


@pytest.mark.parametrize("kind", DECLARED)
def test_what_a_checkpointer_wrote_is_loaded_into_shards_and_resumed_from_them(kind: str) -> None:
    store = MemoryStore()
    model, optimizers = built(kind)
    with hf.Checkpointer(store, model=model, optimizer=optimizers, settings=SETTINGS) as trainer:
        trainer.resume()
        for seed in range(3):
            model.step(optimizers, seed)
            trainer.step()
    live = {"weight": model.emb.weight.detach().numpy(), **slots_of(optimizers, model.emb.weight)}

    runs = [ShardedRun(store, settings=SETTINGS) for _ in range(2)]
    half = ROWS // 2
    shards = [
        Shard(
            table="emb",
            rows=ROWS,
            first=first,
            columns={name: np.zeros_like(values[:half]) for name, values in live.items()}
            | ({"row_step": np.full(half, 3, dtype=np.float32)} if kind == "adam" else {}),  # which torch has not
        )
        for first in (half, 0)  # the first writer holds the second half
    ]
    term = runs[0].take_over()
    loaded = [run.load([shard]) for run, shard in zip(runs, shards, strict=True)]
    for shard in shards:
        assert all(np.array_equal(shard.columns[name], v[shard.first : shard.stop]) for name, v in live.items())
    assert loaded[0].missing == ({"emb": ("row_step",)} if kind == "adam" else {}) and loaded[0].unused == {}
    training = arrays_in(loaded[0].state.training)
    assert np.array_equal(training["model"]["top.weight"], model.top.weight.detach().numpy())

    dense = {name: slots_of(optimizers, p) for name, p in model.top.named_parameters(prefix="top")}
    training["optimizers"] = [
        torch_optimizer(DECLARED[kind], step=4, tables={"emb.weight": shards[0].spec.shape}),
        torch_optimizer(DECLARED[kind], step=4, slots=dense, dense=True),
    ]
    training["model"] = {name: values + 1 for name, values in training["model"].items()}
    writers = [
        ShardWriter(run, [shard], part=part, parts=2, settings=SETTINGS)
        for part, (run, shard) in enumerate(zip(runs, shards, strict=True))
    ]
    for writer, shard, found in zip(writers, shards, loaded, strict=True):
        writer.start(term, found)
        shard.columns["weight"][3] += 1
        writer.mark("emb", np.array([3]))
    intent = writers[0].intend(4, force=True)
    assert intent is not None
    for part, writer in enumerate(writers):
        writer.capture(intent, RankState(step=4), training=training if part == 0 else None)
    for writer in writers:
        writer.drain()
        writer.close()

    again, others = built(kind)
    with hf.Checkpointer(store, model=again, optimizer=others, settings=SETTINGS) as trainer:
        assert trainer.resume() == 4
        expected = model.emb.weight.detach().clone()
        expected[[3, 23]] += 1
        assert torch.equal(again.emb.weight, expected)
        assert torch.equal(again.top.weight, model.top.weight + 1)
        for name, values in slots_of(optimizers, model.emb.weight).items():
            assert np.array_equal(slots_of(others, again.emb.weight)[name], values)
        again.step(others, 9)
        trainer.step()


def test_a_tree_has_the_same_bytes_with_torch_and_without() -> None:
    random = np.random.default_rng(0)
    weights, noise = random.normal(size=(3, 2)).astype(np.float32), random.integers(0, 255, 9, dtype=np.uint8)
    half = torch.arange(4).to(torch.bfloat16)
    values = {"step": 3, "array": noise, "size": torch.Size([2]), "dtype": torch.float16, "list": [1.5, None, ("x",)]}
    with_torch = encode_tree({**values, "w": torch.from_numpy(weights), "half": half})
    host = {
        **values,
        "w": HostTensor(weights),
        "half": HostTensor(half.view(torch.int16).numpy().view(np.uint16), "BF16"),
    }
    without = encode_tree(host, host=True)
    assert with_torch.skeleton == without.skeleton
    for ours, theirs in zip(without.tensors, with_torch.tensors, strict=True):
        assert ours.raw.tobytes() == theirs.contiguous().view(torch.uint8).numpy().tobytes()
    again = encode_tree(decode_tree(without.skeleton, without.tensors, host=True), host=True)
    assert again.skeleton == without.skeleton


PROGRAM = """
import sys
from tests.checkpoint.shards.job import Job, load, same, some_tables
tables = some_tables([50, 7])
with Job(sys.argv[1], tables, 2) as job:
    job.start()
    for seed in range(2):
        job.save()
        job.update(seed)
    job.save()
    assert job.writers[0].agent_pid is not None
assert same(load(sys.argv[1], tables, 3), tables)
print("torch" in sys.modules)
"""


def test_a_process_that_saves_and_loads_shards_does_not_import_torch(tmp_path: Path) -> None:
    root = Path(__file__).parents[3]
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(tmp_path / "run")], cwd=root, capture_output=True, text=True, timeout=100
    )
    assert done.stdout == "False\n", done.stderr


@pytest.mark.parametrize("precision", [hf.Exact(), hf.Bits(4, difference=True)], ids=["exact", "differences"])
def test_runs_of_shards_are_listed_exported_followed_and_verified(
    precision: hf.Bits | hf.Exact, tmp_path: Path
) -> None:
    store, tables = MemoryStore(), {"emb": some_tables([300], dim=DIM)["emb.0"]}
    policies = SavePolicies(strategy=hf.Grid(), precision=precision, retention=hf.KeepAll())
    with Job(store, tables, 3, policies=policies) as job:
        job.start()
        job.save()
        served = nn.Module()
        served.emb = nn.Embedding(300, DIM)
        served.mlp = nn.Module()
        served.mlp.weight = nn.Parameter(torch.zeros(6))
        follower = hf.Follower(store, served)
        assert follower.update() is not None
        for seed in range(4):
            job.update(seed)
            job.save()
        assert follower.update() is not None and follower.step == 4
    run = hf.open_run(store)
    assert [info.step for info in run.checkpoints()] == [0, 1, 2, 3, 4]
    loaded = load(store, tables, 2)["emb"]
    for step in range(5):
        run.export(tmp_path / f"{step}.safetensors", step)
    exported = safetensors.numpy.load_file(tmp_path / "4.safetensors")
    assert np.array_equal(exported["emb.weight"], loaded["weight"])
    assert np.array_equal(served.emb.weight.detach().numpy(), loaded["weight"])
    found = run.read_rows("emb", [0, 170, 299])
    assert np.array_equal(found["sum"].numpy(), loaded["sum"][[0, 170, 299]])
    assert run.verify() == []
