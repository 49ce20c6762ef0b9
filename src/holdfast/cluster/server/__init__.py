"""A server: the rows that it holds, its part of the checkpoints, and its process. No torch here."""
