"""A federation on a real network: its messages, its nodes and its rounds."""
