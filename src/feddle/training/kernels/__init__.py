"""Faster pooling and optimisers than torch's own, with the same results."""
