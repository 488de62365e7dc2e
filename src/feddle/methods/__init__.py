"""One file per method: its options and its merge."""
