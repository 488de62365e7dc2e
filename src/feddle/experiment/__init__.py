"""Build from a config, run, and keep what came of it."""
