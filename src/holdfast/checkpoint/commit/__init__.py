"""The chain of catalogs, and all that decides what a run holds. No torch here."""
