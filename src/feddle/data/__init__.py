"""Data sets: images, labels and clients, from any source."""
