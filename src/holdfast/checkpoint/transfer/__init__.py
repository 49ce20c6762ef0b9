"""Exports to, and imports from, other formats."""
