"""A federation on a real network: what passes over it, and who takes part."""
