"""How this process was started: alone, or as one of several ranks by torchrun. Does not import torch."""

import os

_VARIABLES = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")  # set by torchrun


def count_here() -> int:
    """The number of ranks that this process was started with; 1 without torchrun."""
    given = all(os.environ.get(name) for name in _VARIABLES)
    return int(os.environ["WORLD_SIZE"]) if given and os.environ["WORLD_SIZE"].isdecimal() else 1


def has_agent() -> bool:
    """Whether torchrun itself keeps the store through which the ranks connect. That store outlives every rank."""
    return os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"


def is_first_to_follow() -> bool:
    """Whether this process reports errors for the other ranks: it is rank 1, or the first rank of another machine."""
    return rank_here() == 1 or (rank_here() > 1 and os.environ.get("LOCAL_RANK") == "0")


def rank_here() -> int:
    """The rank of this process; 0 if it is the only one."""
    return int(os.environ["RANK"]) if count_here() > 1 and os.environ["RANK"].isdecimal() else 0
