"""What is raised for bytes that no member of a job would send."""

from __future__ import annotations


class MalformedFrame(Exception):
    """A frame is not what its grammar says. The receiver drops it, and with it whatever else its sender says."""
