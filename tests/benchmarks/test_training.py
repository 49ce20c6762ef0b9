from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.data.schema import Batch
from benchmarks.data.synthetic import ClickStream
from benchmarks.training import OptimizerName, auc, build_dlrm, evaluate, train_step

pytestmark = pytest.mark.usefixtures("one_thread")

STREAM = ClickStream(seed=0, scale=1e-4)


def small_dlrm(optimizer: OptimizerName = "adagrad", *, sparse: bool = True):  # type: ignore[no-untyped-def]
    return build_dlrm(STREAM.cardinalities, 4, sparse=sparse, optimizer=optimizer, bottom=(8,), top=(8,))


@given(st.lists(st.tuples(st.booleans(), st.integers(-3, 3)), min_size=2, max_size=40))
def test_auc_is_the_share_of_pairs_in_the_right_order(pairs: list[tuple[bool, int]]) -> None:
    positive = [score for label, score in pairs if label]
    negative = [score for label, score in pairs if not label]
    if not positive or not negative:
        return
    won = sum((p > n) + 0.5 * (p == n) for p in positive for n in negative)
    labels, scores = zip(*pairs, strict=True)
    assert auc(labels, scores) == pytest.approx(won / len(positive) / len(negative))


def test_auc_takes_tensors_and_arrays_alike() -> None:
    labels, scores = np.array([0.0, 1.0, 1.0, 0.0]), np.array([0.1, 0.8, 0.2, 0.2], dtype=np.float32)
    assert auc(torch.from_numpy(labels), torch.from_numpy(scores)) == auc(labels, scores) == 0.875


def test_auc_of_one_class_is_refused() -> None:
    with pytest.raises(ValueError, match="both labels: 2 positive, 0 negative"):
        auc([1, 1], [0.5, 0.6])


@pytest.mark.parametrize(
    ("optimizer", "sparse"),
    [("adagrad", True), ("adagrad", False), ("sgd", True), ("sgd", False), ("sparse_adam", True)],
)
def test_a_step_moves_the_looked_up_rows_only(optimizer: OptimizerName, sparse: bool) -> None:
    model, optimizers = small_dlrm(optimizer, sparse=sparse)
    before = [table.weight.detach().clone() for table in model.emb]
    batch = STREAM.batch(0, 8)
    loss = train_step(model, batch, optimizers)
    assert not loss.requires_grad
    for number, table in enumerate(model.emb):
        moved = (table.weight != before[number]).any(dim=1).nonzero()[:, 0]
        assert set(moved.tolist()) == set(batch.ids[:, number].tolist())


def test_the_tables_optimizer_comes_first_and_each_parameter_has_one() -> None:
    model, (tables, rest) = small_dlrm()
    owned = [
        parameter for optimizer in (tables, rest) for group in optimizer.param_groups for parameter in group["params"]
    ]
    assert {id(parameter) for parameter in owned} == {id(parameter) for parameter in model.parameters()}
    assert len(owned) == len(list(model.parameters()))
    assert len(tables.param_groups[0]["params"]) == 26


def test_sparse_adam_without_sparse_gradients_is_refused() -> None:
    with pytest.raises(ValueError, match="sparse=True"):
        small_dlrm("sparse_adam", sparse=False)


def test_training_lowers_the_loss_and_two_runs_agree_bit_for_bit() -> None:
    def run() -> list[float]:
        model, optimizers = small_dlrm()
        return [train_step(model, STREAM.batch(index, 256), optimizers).item() for index in range(30)]

    losses = run()
    assert losses == run()
    assert sum(losses[-5:]) < sum(losses[:5])


def test_evaluation_leaves_the_model_in_the_mode_it_was_in() -> None:
    model, _ = small_dlrm()
    batches: list[Batch] = [STREAM.batch(index, 100) for index in range(2)]
    assert evaluate(model, batches) == auc(
        torch.cat([batch.labels for batch in batches]),
        torch.cat([model(batch.dense, batch.ids).detach() for batch in batches]),
    )
    assert model.training
