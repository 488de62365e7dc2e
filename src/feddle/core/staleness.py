"""Staleness weights s(τ)."""

from typing import Literal

StalenessWeight = Literal["sqrt", "constant"]


def polynomial(staleness: int, exponent: float) -> float:
    """s(τ) = (1 + τ)^(−a)."""
    return float((1 + staleness) ** -exponent)


def staleness_weight(kind: StalenessWeight, staleness: int) -> float:
    """`sqrt` is FedBuff's 1/√(1 + τ), `constant` is 1."""
    return polynomial(staleness, 0.5 if kind == "sqrt" else 0.0)
