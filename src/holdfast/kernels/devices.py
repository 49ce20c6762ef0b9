"""What can be compiled for a device."""

from __future__ import annotations

import logging
from functools import cache
from importlib import import_module

import torch

logger = logging.getLogger("holdfast")


@cache
def triton_works() -> bool:
    """Whether Triton is here and compiles for CUDA, which takes a C compiler: images made for training may lack one."""
    try:
        from holdfast.kernels.bit_sets import gpu

        gpu.mark(torch.zeros(8, dtype=torch.uint8, device="cuda"), torch.zeros(1, dtype=torch.int64, device="cuda"), 64)
        import_module("holdfast.kernels.quantize.gpu")  # asks its decorator for more than early versions have
    except ImportError:
        return False
    except Exception as error:
        logger.warning(
            "Triton cannot compile kernels here: PyTorch's own are used instead, the agent encodes low-precision "
            "rows, and saves stall training longer. Most often a C compiler is missing: %s",
            error,
        )
        return False
    return True
