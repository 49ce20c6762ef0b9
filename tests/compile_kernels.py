"""Compiles every kernel once, before many processes of the tests would each do so at the same time.

``python -m tests.compile_kernels``; what is compiled is kept beside the kernels, and found by whoever comes later.
"""

from __future__ import annotations

import importlib
import pkgutil

import holdfast.kernels
from holdfast.checkpoint.restore import native_rows

_ON_GPUS = ("gpu", "triton")


def main() -> None:
    """Import all of them: a kernel is compiled where it is defined."""
    for module in pkgutil.walk_packages(holdfast.kernels.__path__, "holdfast.kernels."):
        if not module.name.rpartition(".")[2].startswith(_ON_GPUS):
            importlib.import_module(module.name)
    native_rows.warm_up()


if __name__ == "__main__":
    main()
