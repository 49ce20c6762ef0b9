"""Arranges increments by the checkpoint that wrote a row and by the one that replaced it (docs/spec/grid.md)."""
