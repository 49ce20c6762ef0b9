"""The guide's recipes for libraries with a loop of their own, run as they are printed, where the library is there."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.utils.data import TensorDataset

import holdfast as hf
from holdfast.storage import MemoryStore
from tests.docs.pages import GUIDE, sections
from tests.tiny import same, snapshot

pytestmark = pytest.mark.filterwarnings("ignore")


class Interrupted(Exception):
    """What happens to a program in the middle of its work."""


def recipe(title: str) -> dict[str, Any]:
    """What the code under a heading of the guide defines."""
    (section,) = [each for each in sections(GUIDE / "frameworks.md") if each.title == title]
    names: dict[str, Any] = {"hf": hf, "torch": torch, "TensorDataset": TensorDataset}
    for block in section.blocks:
        exec(block.compiled(), names)  # type: ignore[arg-type]
    return names


def interrupted(call: Callable[..., Any], batch: int | None) -> Callable[..., Any]:
    """Let this call, counted from now on, be the last thing that happens."""
    left = [batch]

    def counted(*given: Any) -> Any:
        if left[0] is not None:
            left[0] -= 1
            if left[0] == 0:
                raise Interrupted
        return call(*given)

    return counted


def check(train: Callable[[MemoryStore, int | None], dict[str, Tensor]], batches: list[int]) -> None:
    """Interrupted after so many batches of each start, it ends where it ends undisturbed."""
    expected = train(MemoryStore(), None)
    store = MemoryStore()
    for batch in batches:
        with pytest.raises(Interrupted):
            train(store, batch)
    assert same(train(store, None), expected)


def test_deepctr_torch_continues_where_it_was() -> None:
    pytest.importorskip("deepctr_torch", reason="the recipe needs deepctr-torch")
    from deepctr_torch.inputs import SparseFeat
    from deepctr_torch.models import DeepFM

    fit = recipe("deepctr-torch")["fit"]
    generator = np.random.default_rng(1)
    x = {name: generator.integers(0, 50, 400) for name in ("user", "item")}
    y = generator.integers(0, 2, (400, 1)).astype(np.float32)

    def train(store: MemoryStore, batch: int | None) -> dict[str, Tensor]:
        torch.manual_seed(3)
        features = [SparseFeat(name, 50, embedding_dim=4) for name in x]
        model = DeepFM(features, features, dnn_hidden_units=(8,), dnn_dropout=0.2, device="cpu", seed=1)
        model.compile("adagrad", "binary_crossentropy", metrics=["auc"])
        model.get_regularization_loss = interrupted(model.get_regularization_loss, batch)
        fit(model, x, y, store, batch_size=40, epochs=3, save=hf.EverySteps(3), verbose=0, validation_data=(x, y))
        return snapshot(model, [model.optim])

    check(train, [5, 9, 8, 10])


def test_recbole_continues_where_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("recbole", reason="the recipe needs recbole")
    if not hasattr(np, "float_"):
        pytest.skip("RecBole 1.2 does not run with NumPy 2")
    from recbole.config import Config
    from recbole.data import create_dataset, data_preparation
    from recbole.model.general_recommender import BPR
    from recbole.utils import init_seed

    monkeypatch.chdir(tmp_path)
    (tmp_path / "clicks").mkdir()
    generator = np.random.default_rng(1)
    rows = [f"{user}\t{item}\t{at}" for at, (user, item) in enumerate(generator.integers(0, 30, (600, 2)))]
    header = "user_id:token\titem_id:token\ttimestamp:float"
    (tmp_path / "clicks" / "clicks.inter").write_text("\n".join([header, *rows]))
    options = {
        "data_path": str(tmp_path),
        "epochs": 3,
        "train_batch_size": 64,
        "embedding_size": 8,
        "use_gpu": False,
        "show_progress": False,
        "stopping_step": 5,
        "state": "ERROR",
        "load_col": {"inter": ["user_id", "item_id", "timestamp"]},
    }
    trainer_class = recipe("RecBole")["GuardedTrainer"]

    def train(store: MemoryStore, batch: int | None) -> dict[str, Tensor]:
        config = Config(model="BPR", dataset="clicks", config_dict=options, config_file_list=[])
        init_seed(7, True)
        dataset = create_dataset(config)
        train_data, valid_data, _ = data_preparation(config, dataset)
        init_seed(8, True)
        model = BPR(config, train_data.dataset)
        trainer = trainer_class(config, model)
        trainer.url, trainer.policies = store, {"save": hf.EverySteps(3), "overlap": hf.Overlap.WAIT}
        model.calculate_loss = interrupted(model.calculate_loss, batch)
        trainer.fit(train_data, valid_data, saved=False, verbose=False)
        return snapshot(model, [trainer.optimizer]) | {"best": torch.tensor(trainer.best_valid_score)}

    check(train, [4, 7, 9])
