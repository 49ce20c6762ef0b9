from __future__ import annotations

import torch

from holdfast.checkpoint.training.forms import form_of, has_form


def test_a_form_is_the_stored_type_and_the_shape() -> None:
    assert form_of(torch.zeros(2, 3, dtype=torch.bfloat16)) == ("BF16", (2, 3))


def test_only_plain_tensors_of_that_shape_and_type_have_a_form() -> None:
    assert has_form(torch.zeros(2, 3), [2, 3], torch.float32)
    for other in (torch.zeros(3, 2), torch.zeros(2, 3).double(), torch.zeros(2, 3).to_sparse(), [0.0], None):
        assert not has_form(other, (2, 3), torch.float32)
