"""The agent: writes, commits and cleans up in its own process. No torch here."""
