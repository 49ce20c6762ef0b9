"""``hf.lightning.Guard`` in real ``Trainer`` runs that are interrupted: they end where undisturbed ones do."""

from __future__ import annotations

from typing import Any

import lightning.pytorch as pl
import pytest
import torch
from lightning.pytorch.callbacks import EarlyStopping
from torch import Tensor
from torch.utils.data import DataLoader, TensorDataset

import holdfast as hf
from holdfast.errors import ConfigurationError, ReaderError, RunError
from holdfast.storage import MemoryStore
from tests.docs.docstrings import arguments, explained, members
from tests.integrations.lightning.program import BATCH, Module, Setup, Told, everything, samples
from tests.tiny import same

pytestmark = pytest.mark.filterwarnings("ignore")


class Interrupted(Exception):
    """What happens to a program in the middle of its work."""


def until(batch: int | None) -> Told:
    def tell(trained: int) -> None:
        if trained == batch:
            raise Interrupted

    return Told(tell)


def undisturbed(setup: Setup, store: MemoryStore | None = None) -> dict[str, Tensor]:
    trainer, module, _ = setup.fit(store or MemoryStore())
    return everything(trainer, module)


def interrupt(setup: Setup, store: MemoryStore, batch: int, *callbacks: pl.Callback) -> None:
    with pytest.raises(Interrupted):
        setup.fit(store, until(batch), *callbacks)


PROGRAMS = {
    "automatic": (Setup(), (3, 14, 16, 30, 44)),
    "stateful": (Setup(loader="stateful"), (7, 15, 31)),
    "without a length": (Setup(loader="stream"), (7, 15, 16, 31)),
    "accumulated": (Setup(trainer={"accumulate_grad_batches": 4}, guard={"save": hf.EverySteps(2)}), (14, 20, 31)),
    "manual and sparse": (Setup(module={"manual": True, "sparse": True}), (15, 20)),
    "manual, every second": (Setup(module={"manual": True, "every": 2}, guard={"save": hf.EverySteps(3)}), (14, 22)),
    "validated in mid-epoch": (Setup(trainer={"val_check_interval": 5}), (6, 11, 31)),
    "cut short": (Setup(trainer={"limit_train_batches": 7}), (6, 8, 15)),
    "cut short, stateful": (Setup(loader="stateful", trainer={"limit_train_batches": 7}), (8, 15)),
    "counted in steps": (
        Setup(trainer={"max_steps": 40, "max_epochs": -1, "val_check_interval": 6, "check_val_every_n_epoch": None}),
        (7, 29, 39),
    ),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_an_interrupted_program_ends_where_an_undisturbed_one_does(name: str) -> None:
    setup, batches = PROGRAMS[name]
    expected = undisturbed(setup)
    store = MemoryStore()
    for batch in batches:
        interrupt(setup, store, batch)
    assert same(undisturbed(setup, store), expected)


def test_a_guard_changes_nothing() -> None:
    setup = Setup(module={"drawn": 0})  # before the first batch
    trainer, module, _ = setup.fit(None)
    assert same(undisturbed(setup), everything(trainer, module))


def test_a_finished_run_is_not_trained_further_unless_more_epochs_are_asked_for() -> None:
    store, trained = MemoryStore(), list[int]()
    first = undisturbed(Setup(trainer={"max_epochs": 2}), store)
    trainer, module, guard = Setup(trainer={"max_epochs": 2}).fit(store, Told(trained.append))
    assert trained == [] and guard.steps == 30
    assert same(everything(trainer, module) | {"rng": first["rng"]}, first)
    Setup().fit(store, Told(trained.append))
    assert trained == [*range(31, 46)]


def test_a_training_that_was_stopped_early_stays_stopped() -> None:
    store, trained = MemoryStore(), list[int]()
    stopping = {"monitor": "val", "patience": 1, "min_delta": 100.0}  # nothing is that much better
    Setup().fit(store, EarlyStopping(**stopping), Told(trained.append))
    assert len(trained) == 30
    _, _, guard = Setup().fit(store, EarlyStopping(**stopping), Told(trained.append))
    assert len(trained) == guard.steps == 30


def test_callbacks_continue_with_their_state() -> None:
    store = MemoryStore()
    stopping = {"monitor": "val", "patience": 2, "min_delta": 100.0}
    interrupt(Setup(), store, 39, EarlyStopping(**stopping))
    resumed = EarlyStopping(**stopping)
    _, _, guard = Setup(trainer={"max_epochs": 9}).fit(store, resumed)
    assert resumed.wait_count == 2 and guard.steps == 45


class Counting(Module):
    """Keeps something in Lightning's checkpoints."""

    seen = 0

    def on_train_batch_end(self, *_: Any) -> None:
        self.seen += 1

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        checkpoint["seen"] = self.seen

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        self.seen = checkpoint["seen"]


def test_what_the_module_adds_to_checkpoints_comes_back() -> None:
    store = MemoryStore()
    for batch in (10, None):
        module = Counting()
        trainer = pl.Trainer(
            max_epochs=1,
            accelerator="cpu",
            logger=False,
            enable_progress_bar=False,
            enable_model_summary=False,
            callbacks=[hf.lightning.Guard(store, save=hf.EverySteps(4), overlap=hf.Overlap.WAIT), until(batch)],
        )
        loader = DataLoader(TensorDataset(*samples()), batch_size=BATCH)
        if batch is not None:
            with pytest.raises(Interrupted):
                trainer.fit(module, loader, loader)
        else:
            trainer.fit(module, loader, loader)
    assert module.seen == 15


def test_checkpoints_carry_what_was_logged_and_the_best_is_kept() -> None:
    kept, everything_kept = MemoryStore(), MemoryStore()
    Setup(guard={"save": hf.EverySteps(15), "retention": hf.KeepBest("val", mode="min")}).fit(kept)
    Setup(guard={"save": hf.EverySteps(15), "retention": hf.KeepAll()}).fit(everything_kept)
    measured = {info.step: info.metrics["val"] for info in hf.open_run(everything_kept).checkpoints()}
    best = min(measured, key=lambda step: measured[step])
    assert len(measured) == 3 and best in {info.step for info in hf.open_run(kept).checkpoints()}
    assert all("loss" in info.metrics for info in hf.open_run(kept).checkpoints())


def test_a_hook_can_ask_for_a_save_which_is_taken_when_the_batch_is_done() -> None:
    store = MemoryStore()
    setup = Setup(guard={"save": hf.Never(), "retention": hf.KeepAll()})

    class Asking(pl.Callback):
        def on_validation_end(self, trainer: pl.Trainer, *_: Any) -> None:
            if not trainer.sanity_checking:
                (guard,) = (each for each in trainer.callbacks if isinstance(each, hf.lightning.Guard))
                guard.save("validated")

    expected = undisturbed(setup)
    interrupt(setup, store, 20, Asking())
    (saved,) = hf.open_run(store).checkpoints()
    assert (saved.step, saved.tag) == (15, "validated")
    assert same(undisturbed(setup, store), expected)


def test_a_save_outside_of_fit_is_refused() -> None:
    with pytest.raises(RunError, match="running fit"):
        hf.lightning.Guard(MemoryStore()).save()


def test_a_checkpoint_of_lightnings_beside_the_guard_is_refused_before_training(tmp_path: Any) -> None:
    trainer, module, _ = Setup(trainer={"max_epochs": 1}).fit(MemoryStore())
    trainer.save_checkpoint(tmp_path / "theirs.ckpt")
    store, trained = MemoryStore(), list[int]()
    beside = pl.Trainer(
        callbacks=[hf.lightning.Guard(store), Told(trained.append)],
        accelerator="cpu",
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    loader = DataLoader(TensorDataset(*samples()), batch_size=BATCH)
    with pytest.raises(ConfigurationError, match=r"theirs\.ckpt.*Leave ckpt_path= out"):
        beside.fit(module, loader, ckpt_path=tmp_path / "theirs.ckpt")
    assert trained == [] and list(store.list("")) == []


class ReadsItself(Module):
    def training_step(self, dataloader_iter: Any) -> Tensor:  # type: ignore[override]
        return self.loss(next(dataloader_iter)[0])


@pytest.mark.parametrize(
    ("module", "loaders", "options", "error", "message"),
    [
        (Module, 2, {}, ConfigurationError, "reads 2 train loaders"),
        (Module, 1, {"reload_dataloaders_every_n_epochs": 1}, ConfigurationError, "reload_dataloaders"),
        (ReadsItself, 1, {}, ConfigurationError, "dataloader_iter"),
    ],
    ids=["several loaders", "loaders made anew", "a step that reads"],
)
def test_ways_of_reading_that_cannot_be_continued_are_refused(
    module: type[Module], loaders: int, options: dict[str, Any], error: type[Exception], message: str
) -> None:
    trainer = pl.Trainer(
        callbacks=[hf.lightning.Guard(MemoryStore())],
        accelerator="cpu",
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        **options,
    )
    found = [DataLoader(TensorDataset(*samples()), batch_size=BATCH) for _ in range(loaders)]
    with pytest.raises(error, match=message):
        trainer.fit(module(), found if loaders > 1 else found[0])


def test_a_loader_without_a_state_is_refused_as_everywhere() -> None:
    trainer = pl.Trainer(callbacks=[hf.lightning.Guard(MemoryStore())], accelerator="cpu", logger=False)
    with pytest.raises(ReaderError, match="has no state"):
        trainer.fit(Module(), iter([samples()]))


def test_a_trial_run_saves_nothing() -> None:
    store = MemoryStore()
    Setup(trainer={"fast_dev_run": True}).fit(store)
    assert list(store.list("")) == []


def test_bad_arguments_are_refused_when_the_guard_is_made() -> None:
    with pytest.raises(ConfigurationError, match="save="):
        hf.lightning.Guard(MemoryStore(), save=1000)  # type: ignore[arg-type]


def test_torch_is_not_imported_with_the_package_nor_lightning() -> None:
    import subprocess
    import sys

    code = "import sys, holdfast; assert 'lightning' not in sys.modules and 'torch' not in sys.modules; dir(holdfast)"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_tables_of_its_own_are_named_by_their_parameters() -> None:
    class Own(Module):
        def __init__(self) -> None:
            super().__init__()
            self.own = torch.nn.Parameter(torch.zeros(30, 4))

    store = MemoryStore()
    trainer = pl.Trainer(
        callbacks=[hf.lightning.Guard(store, tables=["own"])],
        max_epochs=1,
        accelerator="cpu",
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    loader = DataLoader(TensorDataset(*samples()), batch_size=BATCH)
    trainer.fit(Own(), loader, loader)
    assert {table.name for table in hf.open_run(store).tables()} == {"users", "items", "own"}


@pytest.mark.parametrize("kind", [hf.lightning.Guard, hf.lightning.CheckpointIO])
def test_every_argument_is_explained(kind: type) -> None:
    assert explained(kind) == arguments(kind)
    for name, value in members(kind):
        if name in vars(kind) and not isinstance(value, property) and not name.startswith(("on_", "teardown")):
            assert explained(value) == arguments(value), name
