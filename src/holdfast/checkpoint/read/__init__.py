"""Reads what is stored, verified, and plans what to read. No torch here."""
