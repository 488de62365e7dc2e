"""Randomness derived from what it is for, never from a global generator."""

import hashlib

import numpy as np
import torch


def seed_for(root: int, purpose: str, *ids: int) -> int:
    """A 63-bit seed for one purpose and its ids, the same in every process and on every machine."""
    text = "/".join([str(root), purpose, *(str(int(i)) for i in ids)])
    digest = hashlib.blake2b(text.encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 1


def torch_generator(seed: int) -> torch.Generator:
    """A CPU generator: permutations and initial weights are drawn on the CPU whatever the device."""
    return torch.Generator().manual_seed(seed)


def numpy_generator(seed: int) -> np.random.Generator:
    """NumPy's default generator, seeded."""
    return np.random.default_rng(seed)
