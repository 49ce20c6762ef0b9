"""The rooms of a checkpoint: those that an agent runs know nothing of torch, and names in users' files stay."""

from __future__ import annotations

import pickle
import subprocess
import sys

import torch
from torch import nn

import holdfast as hf
from holdfast.checkpoint.track.max_norm import _Hook
from holdfast.storage import MemoryStore

AGENT_ROOMS = ("agent", "grid", "write", "read", "wire", "commit")
IMPORT_ALL = """
import importlib, pkgutil, sys
for room in sys.argv[1:]:
    package = importlib.import_module(f"holdfast.checkpoint.{room}")
    for module in pkgutil.walk_packages(package.__path__, package.__name__ + "."):
        importlib.import_module(module.name)
sys.exit("torch" in sys.modules)
"""


def test_no_room_that_an_agent_runs_imports_torch() -> None:
    assert subprocess.run([sys.executable, "-c", IMPORT_ALL, *AGENT_ROOMS]).returncode == 0


def test_a_model_that_was_pickled_whole_by_an_earlier_release_can_be_loaded() -> None:
    assert type(pickle.loads(b"choldfast.checkpoint.lookups\n_Hook\n(tR.")) is _Hook


def test_a_model_with_max_norm_can_be_pickled_whole_while_it_is_protected() -> None:
    model = nn.Embedding(10, 4, max_norm=1.0, sparse=True)
    with hf.Checkpointer(MemoryStore(), model=model, optimizer=torch.optim.SGD(model.parameters(), lr=0.1)):
        copy = pickle.loads(pickle.dumps(model))
    assert torch.equal(copy(torch.tensor([1, 2])), model(torch.tensor([1, 2])))
