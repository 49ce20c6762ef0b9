"""Arrays in, arrays out: the loops that run over rows. Importing one of these modules imports no other."""
