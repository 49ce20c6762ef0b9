"""Writes parts of checkpoints and commits them. No torch here."""
