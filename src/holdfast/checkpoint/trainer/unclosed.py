"""Warns when a trainer exits, or drops its Checkpointer, without closing it: its last steps are not saved."""

from __future__ import annotations

import logging
import os
import weakref
from collections.abc import Callable

from holdfast.checkpoint.trainer.routine import Routine

logger = logging.getLogger("holdfast")


def warn_unless_closed(owner: object, routine: Routine, url: str) -> Callable[[], object]:
    """Warn when ``owner`` is collected, or at the interpreter's exit, unless what is returned is called before."""
    return weakref.finalize(owner, _warn, weakref.ref(routine), url, os.getpid()).detach


def _warn(routine: weakref.ref[Routine], url: str, pid: int) -> None:
    if os.getpid() != pid:  # a forked process has no part in it
        return
    found = routine()
    at = f" It was at step {found.steps}." if found is not None else ""
    logger.warning(
        "the Checkpointer of %s was never closed: steps since its last save are not saved.%s Use it in a with block, "
        "or call close() when training ends",
        url,
        at,
    )
