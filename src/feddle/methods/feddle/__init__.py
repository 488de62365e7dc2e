"""Feddle: anchors, fallback, search."""
