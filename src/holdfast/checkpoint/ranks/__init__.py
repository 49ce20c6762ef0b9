"""How the ranks of one job agree."""
