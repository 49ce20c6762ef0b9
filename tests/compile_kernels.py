"""Compiles every kernel once, before many processes of the tests would each do so at the same time.

``python -m tests.compile_kernels``; what is compiled is kept beside the kernels, and found by whoever comes later.
"""

from __future__ import annotations

import importlib
import pkgutil

import holdfast.kernels
from holdfast.checkpoint.restore import native_rows
from holdfast.kernels.digests import fast_copies

_ON_GPUS = ("gpu", "triton")
_OF_LARGE_VECTORS = "holdfast.kernels.digests.sixteen"  # LLVM aborts where a processor has none


def main() -> None:
    """Import all of them: a kernel is compiled where it is defined."""
    for module in pkgutil.walk_packages(holdfast.kernels.__path__, "holdfast.kernels."):
        is_elsewhere = module.name.rpartition(".")[2].startswith(_ON_GPUS)
        if not (is_elsewhere or module.name.startswith(_OF_LARGE_VECTORS)):
            importlib.import_module(module.name)
    fast_copies()  # what this processor can do
    native_rows.warm_up()


if __name__ == "__main__":
    main()
