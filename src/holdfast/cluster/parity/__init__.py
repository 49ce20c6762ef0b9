"""Parity on servers: where it is, what it takes, and the arrays that hold it. What happens when is in ``core``."""
