"""Models, data and one file per measured claim."""
