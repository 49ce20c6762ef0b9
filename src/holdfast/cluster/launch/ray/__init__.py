"""Ray starts the processes of a job, on one machine or many. Ray itself is imported where it is used."""
