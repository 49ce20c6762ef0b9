from __future__ import annotations

import random

import numpy as np
import pytest
import torch

from holdfast.checkpoint.training.rng import capture_rng, restore_rng
from holdfast.errors import HoldfastWarning
from holdfast.format.tree import decode_tree, encode_tree


def draw() -> list[object]:
    return [random.random(), random.gauss(0, 1), np.random.rand(), np.random.randn(), torch.rand(2).tolist()]


def test_every_generator_draws_again_what_it_drew_after_the_capture() -> None:
    random.gauss(0, 1), np.random.randn()  # both keep a second normal number back
    tree = encode_tree(capture_rng())
    expected = draw()
    random.seed(1), np.random.seed(1), torch.manual_seed(1)
    restore_rng(decode_tree(tree.skeleton, tree.tensors))
    assert draw() == expected


def test_states_of_devices_that_are_not_here_are_reported_and_passed_over() -> None:
    state = capture_rng()
    missing = torch.cuda.device_count()
    state["cuda"] = {missing: torch.get_rng_state()}
    expected = draw()
    with pytest.warns(HoldfastWarning, match=rf"CUDA devices \[{missing}\]"):
        restore_rng(state)
    assert draw() == expected
