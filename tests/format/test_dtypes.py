from __future__ import annotations

import subprocess
import sys

import pytest
import torch
from safetensors.torch import _TYPES as SAFETENSORS_TYPES

from holdfast.errors import UnsupportedState
from holdfast.format.dtypes import DTYPE_CODES, TORCH_NAMES, code_of, itemsize, torch_dtype


@pytest.mark.parametrize("code", TORCH_NAMES)
def test_every_code_is_the_one_safetensors_uses(code: str) -> None:
    dtype = torch_dtype(code)
    assert SAFETENSORS_TYPES[code] == dtype
    assert code_of(dtype) == code
    assert itemsize(code) == dtype.itemsize


def test_no_type_that_safetensors_stores_for_torch_is_left_out() -> None:
    assert set(SAFETENSORS_TYPES) == set(TORCH_NAMES) == set(DTYPE_CODES.values())


def test_a_type_without_a_code_is_refused_by_name() -> None:
    with pytest.raises(UnsupportedState, match=r"torch\.complex128.*float32"):
        code_of(torch.complex128)


@pytest.mark.parametrize("lookup", [itemsize, torch_dtype])
def test_an_unknown_code_is_refused(lookup) -> None:
    with pytest.raises(UnsupportedState, match="F7"):
        lookup("F7")


def test_sizes_are_known_without_torch() -> None:
    program = "import sys, holdfast.format.dtypes as d; d.itemsize('F32'); sys.exit('torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", program], check=True)
