"""Reads and verifies what is stored, and plans what to read. No torch here."""
