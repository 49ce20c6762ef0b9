"""How members of a job talk: messages as frames, sockets that number them, heartbeats, keys. No torch here."""
