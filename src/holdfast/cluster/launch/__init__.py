"""Who starts the processes of a job, and tells of their death: local processes, or Ray. No torch here."""
