"""The agent: writes, commits and cleans up in a process of its own. No torch here."""
