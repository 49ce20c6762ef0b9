"""Runs kernels on the threads that torch itself computes with.

Threads of our own would compete for cores with torch's, which keep spinning for some milliseconds after every parallel
region: as long as a whole gather takes. So kernels are handed to the OpenMP runtime that torch has loaded. Its threads
take blocks of work from a shared counter, so one whose core is busy does not hold up the others.
"""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
from numpy.typing import NDArray

_parallel = ctypes.CDLL(None).GOMP_parallel  # AttributeError where torch has another runtime
_parallel.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint, ctypes.c_uint)
_parallel.restype = None


def run(kernel: Any, job: NDArray[np.int64], threads: int) -> None:
    """Call a kernel of Numba's (``void(int64)``) with a job's address on so many threads, until all have returned."""
    _parallel(kernel.address, job.ctypes.data, threads, 0)
