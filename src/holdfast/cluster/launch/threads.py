"""How many threads a process computes with, and where they take memory: what libraries read when they are loaded."""

from __future__ import annotations

from holdfast.policy.arguments import require_count

# Of glibc: all threads of a server take memory from one heap (see ``cluster.heap``). Once a thread has begun with
# another, which those of a library may do before a line of ours runs, only this keeps further ones from it.
ONE_HEAP = {"MALLOC_ARENA_MAX": "1"}

# Of glibc: memory that is taken with malloc, messages above all, is in huge pages where the system has them on request.
HUGE_PAGES = {"GLIBC_TUNABLES": "glibc.malloc.hugetlb=1"}

_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMBA_NUM_THREADS")


def thread_settings(threads: int | None) -> dict[str, str]:
    """Variables of a process's environment; None leaves it as it is."""
    return {} if threads is None else dict.fromkeys(_VARIABLES, str(threads))


def require_threads(owner: object, server_threads: int | None, worker_threads: int | None) -> None:
    """Refuse a number of threads that is none."""
    for name, value in (("server_threads", server_threads), ("worker_threads", worker_threads)):
        if value is not None:
            require_count(owner, name, value)
