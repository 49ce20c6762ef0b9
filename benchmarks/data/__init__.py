"""Where samples come from: the real Criteo files, or a synthetic click stream like them."""
