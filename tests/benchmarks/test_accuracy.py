from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

import holdfast as hf
from benchmarks.claims import accuracy
from benchmarks.claims._accuracy_seeds import PLAIN, Result, Results, missing, train_seed
from benchmarks.claims._accuracy_settings import SETTINGS, Setting
from benchmarks.claims._accuracy_statistics import drops, student_95, whole_seeds
from benchmarks.claims._accuracy_trainer import Trainer
from benchmarks.data.synthetic import ClickStream
from benchmarks.models import DLRM
from benchmarks.training import Learner, build_dlrm, train_step
from holdfast.storage import MemoryStore

pytestmark = pytest.mark.usefixtures("one_thread")

TINY = accuracy.PLANS["tiny"].job
QUANTIZED = {name: each.precision for name, each in SETTINGS.items() if each.precision is not None}


def learner(stream: ClickStream, seed: int = 0) -> Learner:
    return build_dlrm(stream.cardinalities, 16, optimizer="sgd", bottom=(8,), top=(8,), seed=seed)


def rows_of(model: DLRM) -> Tensor:
    return torch.cat([table.detach() for table in model.emb.parameters()])


def checkpointer(store: MemoryStore, precision: hf.Bits, trained: Learner) -> hf.Checkpointer:
    return hf.Checkpointer(
        store,
        model=trained.model,
        optimizer=trained.optimizers,
        save=hf.Never(),
        strategy=hf.OneShot(),
        precision=precision,
        settings=hf.Settings(handle_sigterm=False),
    )


@pytest.mark.parametrize("precision", sorted(set(QUANTIZED.values()), key=str), ids=str)
def test_restores_in_place_give_the_rows_of_real_ones_bit_for_bit(precision: hf.Bits) -> None:
    stream, store = ClickStream(3, 0.0005), MemoryStore("in-place")
    firsts = torch.tensor([0, *stream.cardinalities[:-1]]).cumsum(0)
    perturbation = Setting(restores=1, precision=precision).perturbation
    rows = torch.empty(0)
    for restart in range(3):  # the first one leaves a baseline, the others what changed since then
        trained = learner(stream, seed=restart)
        with checkpointer(store, precision, trained) as guard:
            assert guard.resume() == 3 * restart
            if restart > 1:
                assert torch.equal(rows, rows_of(trained.model))
            for step in range(3 * restart, 3 * restart + 3):
                batch = stream.batch(step, 64)
                if restart:
                    perturbation.touch((batch.ids + firsts).reshape(-1))
                train_step(trained.model, batch, trained.optimizers)
                guard.step()
            guard.save(wait=True)
        rows = rows_of(trained.model)
        if not restart:
            perturbation.take_baseline(rows)
        else:
            perturbation.restore(rows)
            assert not torch.equal(rows, rows_of(trained.model))
    last = learner(stream, seed=9).model
    hf.open_run(store).restore(model=last)
    assert torch.equal(rows, rows_of(last))
    assert torch.equal(trained.model.top[0].weight, last.top[0].weight)


def test_the_fast_trainer_takes_the_steps_of_the_plain_one() -> None:
    job = replace(TINY, steps=5)
    fast, stream = Trainer(4, job), ClickStream(4, job.scale)
    model, optimizers = build_dlrm(
        stream.cardinalities, job.dim, optimizer="sgd", bottom=(job.width,), top=(job.width,), seed=4
    )
    for step in range(job.steps):
        fast.step(step)
        train_step(model, stream.batch(step, job.batch_size), optimizers)
    torch.testing.assert_close(fast.rows, rows_of(model), rtol=1e-4, atol=1e-6)
    test = stream.samples(job.samples, job.test_samples)
    with torch.no_grad():
        loss = F.binary_cross_entropy_with_logits(model(test.dense, test.ids), test.labels)
    assert fast.score(job.test_samples).log_loss == pytest.approx(float(loss), rel=1e-4)


def test_restores_are_spread_evenly_and_none_comes_at_the_end() -> None:
    assert SETTINGS["published_2x1"].steps(100) == [50]
    assert SETTINGS["published_3x3"].steps(100) == [25, 50, 75]
    assert len(SETTINGS["published_8x100"].steps(TINY.steps)) == 100
    assert all(min(each.steps(2500)) > 0 and max(each.steps(2500)) < 2500 for each in SETTINGS.values())


def test_what_was_trained_before_is_not_trained_again(tmp_path: Path) -> None:
    whole, halved = (Results(tmp_path / name, TINY) for name in ("whole", "halved"))
    train_seed(1, TINY, whole)
    for each in whole.read()[:4]:
        halved.add(each)
    with (tmp_path / "halved").open("a") as file:
        file.write('{"seed": 1, "setting": "default_')  # killed while it wrote
    train_seed(1, TINY, halved)
    assert len(halved.read()) == 1 + len(SETTINGS)  # nothing twice
    assert sorted(map(str, halved.read())) == sorted(map(str, whole.read()))


def test_results_of_another_job_do_not_count(tmp_path: Path) -> None:
    result = Result(seed=0, setting=PLAIN, auc=0.7, log_loss=0.5, points=[])
    Results(tmp_path / "runs", TINY).add(result)
    assert Results(tmp_path / "runs", TINY).read() == [result]
    assert Results(tmp_path / "runs", replace(TINY, steps=7)).read() == []


def results(*, drop: dict[int, float]) -> list[Result]:
    """Plain runs of AUC 0.8, and every setting below it by a share per seed."""
    plain = [Result(seed=seed, setting=PLAIN, auc=0.8, log_loss=0.5, points=[0.8]) for seed in drop]
    others = [
        Result(seed=seed, setting=name, auc=0.8 * (1 - share), log_loss=0.5 * (1 + share), points=[0.8])
        for seed, share in drop.items()
        for name in SETTINGS
    ]
    return plain + others


def test_bounds_are_students_over_pairs_of_whole_seeds() -> None:
    found = results(drop={0: 1e-4, 1: 3e-4, 2: 2e-4})
    cut = [*found, Result(seed=3, setting=PLAIN, auc=0.1, log_loss=9.0, points=[0.1])]
    assert whole_seeds(cut) == [0, 1, 2]
    assert missing(cut, 3) == list(SETTINGS)
    drop = drops(cut)["published_2x1"]
    assert drop.auc.mean == pytest.approx(2e-4)
    assert drop.log_loss.mean == pytest.approx(2e-4)
    assert drop.auc.bound == pytest.approx(2e-4 + student_95(2) * 1e-4 / math.sqrt(3))


@pytest.mark.parametrize(("freedom", "quantile"), [(4, 2.132), (9, 1.833), (29, 1.699), (1000, 1.646)])
def test_students_quantiles_are_those_of_the_tables(freedom: int, quantile: float) -> None:
    assert student_95(freedom) == pytest.approx(quantile, rel=3e-3)


@pytest.mark.slow
def test_the_claim_leaves_figures_trainings_and_a_plot(tmp_path: Path) -> None:
    report = accuracy.run("tiny", beside=tmp_path / "accuracy.json")
    assert report.figures["seeds"] == 2
    assert len(report.tables[0].rows) == len(SETTINGS)
    assert len(Results(tmp_path / "accuracy.runs.jsonl", TINY).read()) == 2 * (1 + len(SETTINGS))
    assert (tmp_path / "accuracy.svg").read_text().startswith("<svg")
    bound = float(report.figures["published_2x1_auc_drop_bound_percent"])
    assert bound > float(report.figures["published_2x1_auc_drop_percent"])
