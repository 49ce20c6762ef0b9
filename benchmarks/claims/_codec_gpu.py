"""How fast codecs are on a GPU, and whether their bytes are the CPU's; needs neither Numba nor rich.

``python -m benchmarks.claims._codec_gpu`` prints the figures as JSON.
"""

from __future__ import annotations

import json

import numpy as np
import torch

from benchmarks.claims._codec_rows import drawn_rows
from holdfast.codec import AdaptiveAsymmetric, Asymmetric, Fitted
from holdfast.codec.quantized import Quantized
from holdfast.kernels import quantize

DIMS = (64, 128)
TABLE_BYTES = 10_240_000_000
SHARE = 4  # every fourth row is touched
CHECKED_ROWS = 1_000_000
CODECS: dict[str, Quantized] = {
    "default_2bit": Fitted(bits=2),
    "default_3bit": Fitted(bits=3),
    "default_4bit": Fitted(bits=4),
    "adaptive_2bit": AdaptiveAsymmetric.as_published(2),
    "adaptive_4bit": AdaptiveAsymmetric.as_published(4),
    "asymmetric_2bit": Asymmetric(bits=2),
    "asymmetric_4bit": Asymmetric(bits=4),
    "asymmetric_8bit": Asymmetric(bits=8),
}


def is_there() -> bool:
    """A GPU, and a Triton that compiles for it."""
    if not torch.cuda.is_available():
        return False
    try:
        import triton  # type: ignore[import-not-found, import-untyped, unused-ignore]  # noqa: F401
    except ImportError:
        return False
    return True


def measure() -> dict[str, float]:
    """GB of gathered float32 rows per second; ``gpu_encode_GBps_2bit`` is the default codec at its slower dim."""
    figures = {f"gpu_encode_GBps_{name}_dim{dim}": _rate(codec, dim) for dim in DIMS for name, codec in CODECS.items()}
    figures["gpu_encode_GBps_2bit"] = min(figures[f"gpu_encode_GBps_default_2bit_dim{dim}"] for dim in DIMS)
    figures["gpu_rows_compared"] = CHECKED_ROWS * len(CODECS)
    figures["gpu_rows_unlike_the_cpus"] = sum(_differences(codec) for codec in CODECS.values())
    return figures


def _rate(codec: Quantized, dim: int) -> float:
    from triton.testing import do_bench  # type: ignore[import-not-found, import-untyped, unused-ignore]

    from holdfast.kernels.quantize import gpu

    table = torch.randn(TABLE_BYTES // (4 * dim), dim, device="cuda")
    ids = torch.randperm(len(table), device="cuda")[: len(table) // SHARE].sort().values
    out = gpu.encode(table, codec.scheme, ids)
    milliseconds = do_bench(lambda: gpu.encode(table, codec.scheme, ids, out), return_mode="median")
    return float(len(ids) * dim * 4 / milliseconds / 1e6)


def _differences(codec: Quantized) -> int:
    """Rows of dim 16 whose records differ."""
    from holdfast.kernels.quantize import gpu

    rows = drawn_rows(CHECKED_ROWS, 16)
    wanted = quantize.encode(rows, codec.scheme).records
    found = gpu.encode(torch.from_numpy(rows).cuda(), codec.scheme).cpu().numpy()
    return int(np.count_nonzero((wanted != found).any(axis=1)))


if __name__ == "__main__":
    print(json.dumps(measure(), indent=2))
