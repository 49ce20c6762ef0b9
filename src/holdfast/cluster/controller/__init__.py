"""The controller: starts the other processes, hears of their deaths, leads saves, and ends the job."""
