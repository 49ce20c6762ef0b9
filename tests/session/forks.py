"""Processes with torch that start at once: forked from one that has imported it, which takes seconds of CPU time."""

from __future__ import annotations

import multiprocessing

FORKS = multiprocessing.get_context("forkserver")
FORKS.set_forkserver_preload(["tests.session.warm"])
