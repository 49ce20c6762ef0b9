"""One update from equal state agrees with torch.optim, and where torch has no such optimizer, with its formula."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.policy import SGD, Adagrad, Adam, RowwiseAdagrad
from tests.kernels.optimize_cases import Case, Shard, cases, trained_shard

RELATIVE = 1e-6
pytestmark = pytest.mark.filterwarnings("ignore:Sparse invariant checks")  # torch's own tensors

rates = st.sampled_from([1e-4, 0.01, 0.5])
steps = st.sampled_from([0, 1, 2, 10, 999, 100_000])
betas = st.sampled_from([(0.9, 0.999), (0.0, 0.5), (0.4, 0.99), (0.95, 0.0)])


def parameter(shard: Shard) -> torch.nn.Parameter:
    return torch.nn.Parameter(torch.from_numpy(shard.weights.copy()))


def state_of(shard: Shard) -> dict[str, torch.Tensor]:
    return {name: torch.from_numpy(slot.copy()) for name, slot in shard.slots.items()}


def sparse(case: Case, gradients: np.ndarray) -> torch.Tensor:
    size = (case.rows, case.dim)
    return torch.sparse_coo_tensor(
        torch.from_numpy(case.ids)[None], torch.from_numpy(gradients), size, check_invariants=True
    )


def assert_close(found: np.ndarray, wanted: torch.Tensor | np.ndarray, terms: list[np.ndarray]) -> None:
    """Within 1e-6 of the largest number that a value was computed from; the same where one of them is not finite."""
    expected = np.asarray(wanted.detach() if isinstance(wanted, torch.Tensor) else wanted, np.float64)
    finite = np.isfinite(expected)
    assert np.array_equal(found[~finite], expected[~finite].astype(np.float32), equal_nan=True)
    with np.errstate(all="ignore"):
        scale = np.max([np.abs(np.broadcast_to(term, found.shape)) for term in (expected, *terms)], axis=0)
        error = np.abs(found.astype(np.float64) - expected)
    wrong = finite & ~(error <= RELATIVE * scale)
    assert not wrong.any(), (found[wrong][:5], expected[wrong][:5])


def whole(case: Case, gradients: np.ndarray) -> np.ndarray:
    """Their sums at their rows; 0 elsewhere."""
    found = np.zeros((case.rows, case.dim))
    with np.errstate(all="ignore"):
        np.add.at(found, case.ids, gradients.astype(np.float64))
    return found


@settings(deadline=None)
@given(cases(), rates)
def test_sgd_is_torchs_on_sparse_gradients(case: Case, lr: float) -> None:
    shard, gradients = (
        trained_shard(SGD(lr).rule(), case.rows, case.dim, case.seed),
        case.gradients_to_add_in_any_order(),
    )
    weight, before = parameter(shard), shard.weights.copy()
    weight.grad = sparse(case, gradients)
    torch.optim.SGD([weight], lr=lr).step()
    shard.apply(case.ids, gradients, lr)
    moved = lr * whole(case, np.abs(gradients))  # torch moves a weight by each gradient on its own
    assert_close(shard.weights, weight, [before, moved])


@settings(deadline=None)
@given(cases(), rates, st.sampled_from([0.3, 0.9]), st.booleans(), st.booleans())
def test_momentum_is_torchs_where_every_row_has_a_gradient(
    case: Case, lr: float, momentum: float, nesterov: bool, first: bool
) -> None:
    optimizer = SGD(lr, momentum=momentum, nesterov=nesterov)
    shard = trained_shard(optimizer.rule(), len(case.ids), case.dim, case.seed, step=0 if first else None)
    weight, state, gradients = parameter(shard), state_of(shard), case.gradients()
    weight.grad = torch.from_numpy(gradients)
    before, buffer = shard.weights.copy(), momentum * shard.slots["momentum_buffer"]
    theirs = torch.optim.SGD([weight], lr=lr, momentum=momentum, nesterov=nesterov)
    if not first:
        theirs.state[weight]["momentum_buffer"] = state["momentum_buffer"]
    theirs.step()
    shard.apply(None, gradients, lr)
    assert_close(shard.slots["momentum_buffer"], theirs.state[weight]["momentum_buffer"], [buffer, gradients])
    assert_close(shard.weights, weight, [before, lr * buffer, lr * gradients])


@settings(deadline=None)
@given(cases(), rates, st.sampled_from([1e-10, 1e-3]), st.sampled_from([0.0, 0.1]), st.booleans())
def test_adagrad_is_torchs_on_sparse_gradients(case: Case, lr: float, eps: float, initial: float, first: bool) -> None:
    optimizer = Adagrad(lr, eps=eps, initial_accumulator_value=initial)
    shard = trained_shard(optimizer.rule(), case.rows, case.dim, case.seed, step=0 if first else None)
    weight, gradients, before = parameter(shard), case.gradients_to_add_in_any_order(), shard.weights.copy()
    theirs = torch.optim.Adagrad([weight], lr=lr, eps=eps, initial_accumulator_value=initial)
    if not first:
        theirs.state[weight]["sum"].copy_(state_of(shard)["sum"])
    weight.grad = sparse(case, gradients)
    theirs.step()
    shard.apply(case.ids, gradients, lr)
    assert_close(shard.slots["sum"], theirs.state[weight]["sum"], [])
    assert_close(shard.weights, weight, [before])


@settings(deadline=None)
@given(cases(), rates, betas, st.sampled_from([1e-8, 1e-3]), steps)
def test_adam_of_a_table_is_torchs_sparse_adam_at_the_rows_step(
    case: Case, lr: float, betas: tuple[float, float], eps: float, step: int
) -> None:
    shard = trained_shard(Adam(lr, betas=betas, eps=eps).rule(), case.rows, case.dim, case.seed, step=step)
    weight, before, gradients = parameter(shard), shard.copy(), case.gradients_to_add_in_any_order()
    weight.grad = sparse(case, gradients)
    theirs = torch.optim.SparseAdam([weight], lr=lr, betas=betas, eps=eps)
    theirs.state[weight] |= {**state_of(shard), "step": step}
    theirs.step()
    shard.apply(case.ids, gradients, lr)
    g, root = whole(case, gradients), np.sqrt(1 - betas[1] ** (step + 1))
    assert_moments_and_weights(shard, before, theirs, weight, g, lr * root / (1 - betas[0] ** (step + 1)), eps)
    assert set(shard.slots["step"][case.ids].tolist()) <= {step + 1}


@settings(deadline=None)
@given(cases(), rates, betas, st.sampled_from([1e-8, 1e-3]), steps)
def test_adam_of_a_dense_parameter_is_torchs_adam(
    case: Case, lr: float, betas: tuple[float, float], eps: float, step: int
) -> None:
    rule = Adam(lr, betas=betas, eps=eps).rule(dense=True)
    shard = trained_shard(rule, len(case.ids), case.dim, case.seed, step=step)
    weight, before, gradients = parameter(shard), shard.copy(), case.gradients()
    weight.grad = torch.from_numpy(gradients)
    theirs = torch.optim.Adam([weight], lr=lr, betas=betas, eps=eps, foreach=False)
    theirs.state[weight] |= {**state_of(shard), "step": torch.tensor(float(step))}
    theirs.step()
    shard.apply(None, gradients, lr)
    root = np.sqrt(1 - betas[1] ** (step + 1))
    size = lr * root / (1 - betas[0] ** (step + 1))
    assert_moments_and_weights(shard, before, theirs, weight, gradients, size, eps * root)


def assert_moments_and_weights(
    shard: Shard,
    before: Shard,
    theirs: torch.optim.Optimizer,
    weight: torch.Tensor,
    g: np.ndarray,
    size: float,
    eps: float,
) -> None:
    """The mean may cancel; what it is computed from does not."""
    state, mean = theirs.state[weight], before.slots["exp_avg"]
    with np.errstate(all="ignore"):
        squares = np.square(g, dtype=np.float64)
        assert_close(shard.slots["exp_avg"], state["exp_avg"], [mean, g])
        assert_close(shard.slots["exp_avg_sq"], state["exp_avg_sq"], [before.slots["exp_avg_sq"], squares])
        denominator = np.sqrt(shard.slots["exp_avg_sq"].astype(np.float64)) + eps
        terms = [size * np.abs(term) / denominator for term in (mean, g)]
    assert_close(shard.weights, weight, [before.weights, *terms])


@settings(deadline=None)
@given(cases(), rates, st.sampled_from([1e-8, 1e-3]), st.booleans())
def test_rowwise_adagrad_is_its_formula_in_double_precision(case: Case, lr: float, eps: float, first: bool) -> None:
    shard = trained_shard(RowwiseAdagrad(lr, eps=eps).rule(), case.rows, case.dim, case.seed, step=0 if first else None)
    gradients, weights, sums = (
        case.gradients_to_add_in_any_order(),
        shard.weights.astype(np.float64),
        shard.slots["sum"],
    )
    size = np.abs(gradients)
    gradients = np.where((size == 0) | ((size > 1e-16) & (size < 1e16)), gradients, 1)  # float32 holds their squares
    g, rows = whole(case, gradients), np.unique(case.ids)
    wanted = sums.astype(np.float64)
    wanted[rows] += (g[rows] ** 2).mean(axis=1)
    weights[rows] -= lr * g[rows] / (np.sqrt(wanted[rows]) + eps)[:, None]
    before = shard.weights.copy()
    shard.apply(case.ids, gradients, lr)
    assert_close(shard.slots["sum"], wanted, [])
    assert_close(shard.weights, weights, [before])


@pytest.mark.parametrize("unusual", [np.nan, np.inf, -np.inf])
def test_a_value_that_is_not_finite_spoils_all_of_its_row_under_rowwise_adagrad_and_no_other_row(
    unusual: float,
) -> None:
    shard = trained_shard(RowwiseAdagrad(0.1).rule(), 3, 20, seed=1)
    before = shard.weights.copy()
    shard.apply(np.array([1]), np.where(np.arange(20) == 7, unusual, 1).astype(np.float32)[None], 0.1)
    assert not np.isfinite(shard.slots["sum"][1]) and np.isnan(shard.weights[1, 7])
    assert np.array_equal(shard.weights[[0, 2]], before[[0, 2]])


def test_a_row_that_comes_late_is_corrected_by_its_own_count_and_not_by_the_tables() -> None:
    """Where we differ from torch: its first update is as large as that of a row that came early."""
    shard = trained_shard(Adam(0.1).rule(), 2, 4, seed=2, step=0)
    shard.weights[:] = 0
    for _ in range(50):
        shard.apply(np.array([0]), np.ones((1, 4), np.float32), 0.1)
    shard.apply(np.array([1]), np.ones((1, 4), np.float32), 0.1)
    assert shard.weights[1] == pytest.approx(-0.1)


def test_momentum_rests_with_its_row() -> None:
    """Where we differ from torch: a row without a gradient neither moves nor loses its momentum."""
    shard = trained_shard(SGD(0.1, momentum=0.5).rule(), 2, 4, seed=3, step=0)
    shard.weights[:] = 0
    for ids in ([0, 1], [1], [1], [0, 1]):
        shard.apply(np.array(ids), np.ones((len(ids), 4), np.float32), 0.1)
    assert shard.weights[0] == pytest.approx(-0.1 * (1 + 1.5))
    assert shard.weights[1] == pytest.approx(-0.1 * (1 + 1.5 + 1.75 + 1.875))
