"""How the ranks of a job agree."""
