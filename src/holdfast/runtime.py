"""Seams to the outside world: time, randomness. Tests replace them; nothing else reads a clock or draws a name."""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Runtime:
    """What a component needs from its surroundings."""

    wall_s: Callable[[], float] = time.time
    monotonic_s: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep
    wait: Callable[[threading.Event, float], bool] = threading.Event.wait  # a background thread's pause; True: stop
    token: Callable[[], str] = lambda: secrets.token_hex(4)  # names that must differ between processes


SYSTEM = Runtime()
