from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from benchmarks.models import DLRM, PNN, DeepFM
from benchmarks.models.deepfm import second_order
from benchmarks.models.layers import look_up, pairwise_dots

CARDINALITIES = (7, 3, 50, 11)
SAMPLES = 5
MODELS = [DLRM, DeepFM, PNN]


def inputs(values_per_field: int | None = None) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    shape = (SAMPLES,) if values_per_field is None else (SAMPLES, values_per_field)
    ids = torch.stack([torch.randint(rows, shape, generator=generator) for rows in CARDINALITIES], dim=1)
    return torch.rand(SAMPLES, 13, generator=generator), ids


@pytest.mark.parametrize("model_class", MODELS)
@pytest.mark.parametrize("bag", [True, False])
@pytest.mark.parametrize("values_per_field", [None, 1, 3])
def test_one_logit_a_sample(model_class: type[nn.Module], bag: bool, values_per_field: int | None) -> None:
    logits = model_class(CARDINALITIES, 4, bag=bag)(*inputs(values_per_field))
    assert logits.shape == (SAMPLES,)
    assert torch.isfinite(logits).all()


@pytest.mark.parametrize("model_class", MODELS)
def test_bags_and_single_lookups_agree(model_class: type[nn.Module]) -> None:
    dense, ids = inputs(3)
    bags, singles = (model_class(CARDINALITIES, 4, bag=bag, seed=1) for bag in (True, False))
    torch.testing.assert_close(bags(dense, ids), singles(dense, ids))


@pytest.mark.parametrize("model_class", MODELS)
def test_weights_depend_on_the_seed_alone(model_class: type[nn.Module]) -> None:
    torch.manual_seed(1)
    first = model_class(CARDINALITIES, 4, seed=9).state_dict()
    torch.manual_seed(2)
    again = model_class(CARDINALITIES, 4, seed=9).state_dict()
    other = model_class(CARDINALITIES, 4, seed=8).state_dict()
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert not any(torch.equal(first[name], other[name]) for name in first)


@pytest.mark.parametrize("model_class", MODELS)
def test_building_a_model_leaves_the_global_generator_alone(model_class: type[nn.Module]) -> None:
    before = torch.get_rng_state()
    model_class(CARDINALITIES, 4)
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("model_class", MODELS)
@pytest.mark.parametrize("bag", [True, False])
@pytest.mark.parametrize("sparse", [True, False])
def test_every_table_gets_a_gradient_of_the_kind_asked_for(
    model_class: type[nn.Module], bag: bool, sparse: bool
) -> None:
    dense, ids = inputs()
    model = model_class(CARDINALITIES, 4, bag=bag, sparse=sparse)
    model(dense, ids).sum().backward()
    for number in range(len(CARDINALITIES)):
        gradient = model.get_parameter(f"emb.{number}.weight").grad
        assert gradient is not None
        assert gradient.is_sparse == sparse
        touched = gradient.coalesce().indices()[0] if sparse else gradient.abs().sum(dim=1).nonzero()[:, 0]
        assert set(touched.tolist()) == set(ids[:, number].tolist())


def test_pairwise_dots_equal_the_naive_computation() -> None:
    vectors = torch.rand(SAMPLES, 6, 4)
    naive = [vectors[:, i] * vectors[:, j] for i in range(6) for j in range(i)]
    torch.testing.assert_close(pairwise_dots(vectors), torch.stack(naive, dim=1).sum(dim=-1))


def test_second_order_equals_the_sum_of_all_pairs() -> None:
    vectors = torch.rand(SAMPLES, 6, 4)
    torch.testing.assert_close(second_order(vectors), pairwise_dots(vectors).sum(dim=1))


def test_dlrm_logit_equals_one_computed_step_by_step() -> None:
    dense, ids = inputs()
    model = DLRM(CARDINALITIES, 4, bottom=(8,), top=(6,))
    for sample in range(SAMPLES):
        bottom = model.bottom(dense[sample]).clamp(min=0)
        vectors = [bottom, *(model.emb[field].weight[ids[sample, field]] for field in range(len(CARDINALITIES)))]
        dots = [vectors[i] @ vectors[j] for i in range(len(vectors)) for j in range(i)]
        expected = model.top(torch.cat([bottom, torch.stack(dots)]))[0]
        torch.testing.assert_close(model(dense, ids)[sample], expected)


def test_vectors_of_several_values_are_added() -> None:
    _, ids = inputs(3)
    model = DLRM(CARDINALITIES, 4)
    vectors = look_up(model.emb, ids)
    torch.testing.assert_close(vectors[2, 1], model.emb[1].weight[ids[2, 1]].sum(dim=0))


def test_default_dlrm_is_cprs_for_kaggle() -> None:
    model = DLRM([3] * 26)
    widths = [
        [layer.weight.shape[1] for layer in mlp if isinstance(layer, nn.Linear)] for mlp in (model.bottom, model.top)
    ]
    assert widths == [[13, 512, 256, 64], [16 + 27 * 26 // 2, 512, 256]]
    assert model.emb[0].weight.shape == (3, 16)
