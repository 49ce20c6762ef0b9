"""The chain of catalogs, and everything that decides what a run holds. No torch here."""
