"""Seeds derived from their purpose; no global generator is used."""

import hashlib
import random
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch


def seed_for(root: int, purpose: str, *ids: int) -> int:
    """A 63-bit seed for one purpose and its ids, the same in every process and on every machine."""
    text = "/".join([str(root), purpose, *(str(int(i)) for i in ids)])
    digest = hashlib.blake2b(text.encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 1


def torch_generator(seed: int) -> torch.Generator:
    """A seeded CPU generator. Permutations and initial weights are drawn on the CPU on every device."""
    return torch.Generator().manual_seed(seed)


def numpy_generator(seed: int) -> np.random.Generator:
    """NumPy's default generator, seeded."""
    return np.random.default_rng(seed)


@contextmanager
def global_seed(seed: int) -> Iterator[None]:
    """Seed the global generators temporarily, because dropout and users' augmentation use them."""
    python_state, numpy_state = random.getstate(), np.random.get_state()  # noqa: NPY002
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        random.seed(seed)
        np.random.seed(seed % 2**32)  # noqa: NPY002
        try:
            yield
        finally:
            random.setstate(python_state)
            np.random.set_state(numpy_state)  # noqa: NPY002
