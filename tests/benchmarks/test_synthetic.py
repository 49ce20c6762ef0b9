from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torchdata.stateful_dataloader import StatefulDataLoader

from benchmarks.data.schema import KAGGLE_CARDINALITIES, Batch
from benchmarks.data.synthetic import ClickDataset, ClickStream
from benchmarks.training import build_dlrm, evaluate, train_step
from holdfast.errors import ReaderError

SAMPLE = 137_000


@pytest.fixture(scope="module")
def sample() -> Batch:
    return ClickStream(seed=0).samples(0, SAMPLE)


def accesses_by_value(batch: Batch) -> np.ndarray:
    """How often each distinct value of each field is seen, most often first."""
    counts = [np.unique(column, return_counts=True)[1] for column in batch.ids.numpy().T]
    return np.sort(np.concatenate(counts))[::-1]


def same(one: Batch, other: Batch) -> bool:
    return all(torch.equal(left, right) for left, right in zip(one, other, strict=True))


def joined(batches: list[Batch]) -> Batch:
    return Batch(*(torch.cat(column) for column in zip(*batches, strict=True)))


@pytest.mark.parametrize(("top", "share"), [(0.01, 0.73), (0.10, 0.89)])
def test_popular_values_take_the_share_of_accesses_seen_in_criteo(sample: Batch, top: float, share: float) -> None:
    counts = accesses_by_value(sample)
    assert counts[: int(len(counts) * top)].sum() / counts.sum() == pytest.approx(share, abs=0.01)


def test_three_quarters_of_the_values_are_seen_once(sample: Batch) -> None:
    assert (accesses_by_value(sample) == 1).mean() == pytest.approx(0.76, abs=0.01)


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_a_quarter_of_the_samples_are_clicked_whatever_the_seed(seed: int) -> None:
    assert ClickStream(seed, 0.01).samples(0, 20_000).labels.mean().item() == pytest.approx(0.26, abs=0.03)


def test_batches_have_the_shapes_and_types_that_models_take(sample: Batch) -> None:
    assert (sample.dense.shape, sample.dense.dtype) == ((SAMPLE, 13), torch.float32)
    assert (sample.ids.shape, sample.ids.dtype) == ((SAMPLE, 26), torch.int64)
    assert (sample.labels.shape, sample.labels.dtype) == ((SAMPLE,), torch.float32)
    assert set(sample.labels.unique().tolist()) == {0.0, 1.0}
    assert torch.isfinite(sample.dense).all()


@pytest.mark.parametrize("scale", [1.0, 0.01, 1e-9])
def test_ids_stay_within_their_cardinalities_at_every_scale(scale: float) -> None:
    stream = ClickStream(scale=scale)
    ids = stream.samples(10**12, 5_000).ids
    assert (ids >= 0).all()
    assert (ids < torch.tensor(stream.cardinalities)).all()
    assert min(stream.cardinalities) == 3
    assert (stream.cardinalities == KAGGLE_CARDINALITIES) == (scale == 1.0)


def test_popular_rows_are_scattered_over_the_table(sample: Batch) -> None:
    field = 2
    ids, counts = np.unique(sample.ids[:, field].numpy(), return_counts=True)
    popular = ids[np.argsort(counts)[-1000:]] / KAGGLE_CARDINALITIES[field]
    assert np.histogram(popular, bins=10, range=(0, 1))[0].min() > 50


def test_a_sample_depends_on_its_number_alone() -> None:
    whole = ClickStream(seed=3, scale=0.01).samples(1_000, 900)
    for cut in (1, 333, 899):
        stream = ClickStream(seed=3, scale=0.01)
        tail = stream.samples(1_000 + cut, 900 - cut)
        assert same(joined([stream.samples(1_000, cut), tail]), whole)
    assert same(ClickStream(seed=3, scale=0.01).batch(2, 500), ClickStream(seed=3, scale=0.01).samples(1_000, 500))


def test_another_seed_gives_another_stream() -> None:
    assert not torch.equal(ClickStream(0, 0.01).batch(0, 100).ids, ClickStream(1, 0.01).batch(0, 100).ids)


def popular_values(stream: ClickStream, start: int, field: int) -> set[int]:
    ids, counts = np.unique(stream.samples(start, 50_000).ids[:, field].numpy(), return_counts=True)
    return set(ids[np.argsort(counts)[-50:]].tolist())


def test_popular_values_change_slowly_and_for_good() -> None:
    stream = ClickStream(seed=0, scale=0.1, drift_samples=2_000_000)
    at_first = popular_values(stream, 0, field=2)
    soon = popular_values(stream, 200_000, field=2)
    late = popular_values(stream, 4_000_000, field=2)
    assert 30 <= len(at_first & soon) < 50
    assert len(at_first & late) < 5


def test_popular_values_of_small_fields_stay() -> None:
    stream = ClickStream(seed=0, drift_samples=1_000_000)
    field = KAGGLE_CARDINALITIES.index(305)
    assert len(popular_values(stream, 0, field) & popular_values(stream, 10**8, field)) >= 40


def loader_of(samples: int = 1_050, batch_size: int = 100, **options: object) -> StatefulDataLoader:
    dataset = ClickDataset(ClickStream(seed=5, scale=0.001), batch_size=batch_size, samples=samples)
    return StatefulDataLoader(dataset, batch_size=None, **options)


@pytest.mark.parametrize("workers", [0, 2])
def test_loader_gives_the_stream_in_order_with_its_remainder(workers: int) -> None:
    batches = list(loader_of(num_workers=workers))
    assert [len(batch.labels) for batch in batches] == [100] * 10 + [50]
    assert same(joined(batches), ClickStream(seed=5, scale=0.001).samples(0, 1_050))


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("taken", [0, 1, 5, 10, 11])
def test_loader_goes_on_where_its_state_was_taken(workers: int, taken: int) -> None:
    whole = list(loader_of(num_workers=workers))
    loader = loader_of(num_workers=workers)
    batches = iter(loader)
    for _ in range(taken):
        next(batches)
    resumed = loader_of(num_workers=workers)
    resumed.load_state_dict(loader.state_dict())
    rest = list(resumed)
    assert len(rest) == len(whole) - taken
    assert all(same(one, other) for one, other in zip(rest, whole[taken:], strict=True))


def test_the_epoch_after_a_resume_starts_from_the_beginning() -> None:
    loader = loader_of()
    list(loader)
    resumed = loader_of()
    resumed.load_state_dict(loader.state_dict())  # taken at the epoch's end
    assert len(list(resumed)) == 11
    assert len(list(resumed)) == 11


def test_state_of_another_number_of_workers_is_refused() -> None:
    dataset = ClickDataset(ClickStream(scale=0.001), batch_size=10, samples=100)
    with pytest.raises(ReaderError, match="num_workers"):
        dataset.load_state_dict({"next_batch": 3, "shards": 2})


class LogisticRegression(nn.Module):
    """One weight per value and per dense feature."""

    def __init__(self, cardinalities: tuple[int, ...]) -> None:
        super().__init__()
        self.values = nn.ModuleList(
            nn.EmbeddingBag(rows, 1, mode="sum", sparse=True, _weight=torch.zeros(rows, 1)) for rows in cardinalities
        )
        self.dense = nn.Linear(13, 1)

    def forward(self, dense: Tensor, ids: Tensor) -> Tensor:
        parts = [field(ids[:, number : number + 1]) for number, field in enumerate(self.values)]
        return (self.dense(dense) + torch.stack(parts).sum(dim=0)).squeeze(-1)


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.usefixtures("one_thread")
def test_trained_dlrm_finds_what_a_logistic_regression_cannot() -> None:
    stream = ClickStream(seed=0, scale=0.01)
    dlrm, optimizers = build_dlrm(stream.cardinalities, bottom=(64,), top=(128, 64))
    regression = LogisticRegression(stream.cardinalities)
    regression_optimizer = torch.optim.Adagrad(regression.parameters(), lr=0.05)
    for index in range(500):
        batch = stream.batch(index, 1024)
        train_step(dlrm, batch, optimizers)
        train_step(regression, batch, [regression_optimizer])
    unseen = [stream.batch(index, 1024) for index in range(500, 550)]
    dlrm_auc, regression_auc = evaluate(dlrm, unseen), evaluate(regression, unseen)
    assert 0.78 <= dlrm_auc <= 0.80
    assert regression_auc <= dlrm_auc - 0.01
