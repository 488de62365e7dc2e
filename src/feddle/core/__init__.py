"""Maths on flat tensors, and the types that every other package uses."""
