"""Power cuts."""

from __future__ import annotations


class PowerCut(BaseException):
    """The machine lost its power here. Not an Exception: no handler runs on a machine without power."""
