"""One module per measured claim: a docstring whose first line says it, and ``run(scale) -> Report``."""
