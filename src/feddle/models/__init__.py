"""The models that a config can name."""
