"""Touched rows of many tables, listed on their device for a bound: nobody on the host knows how many there are."""
