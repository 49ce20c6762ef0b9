"""Finds out which rows changed, and which of them to save first."""
