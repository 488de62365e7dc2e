"""Numbers and lists as readers see them."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import sqrt
from statistics import NormalDist, fmean, stdev

from feddle.core.metrics import ACCURACY, Metric

NONE = "–"


@dataclass(frozen=True)
class Spread:
    """A number over seeds."""

    mean: float
    std: float | None
    count: int
    metric: Metric = ACCURACY

    @property
    def tenths(self) -> float:
        """The mean as it is shown, in per cent if it is a share, so that values that look equal are equal."""
        return round(100 * self.mean, 1) if self.metric.share else float(f"{self.mean:.3g}")


def spread_of(values: Sequence[float | None], metric: Metric = ACCURACY) -> Spread | None:
    """Mean and standard deviation of the known values."""
    known = [value for value in values if value is not None]
    if not known:
        return None
    return Spread(fmean(known), stdev(known) if len(known) > 1 else None, len(known), metric)


def effective_count(weights: Sequence[float], counts: Sequence[int]) -> float:
    """The number of examples with the same uncertainty as a weighted mean over classes: 1 / Σ w²/n.

    Classes without examples do not count; the weights of the others are made to sum to 1.
    """
    known = [(weight, count) for weight, count in zip(weights, counts, strict=True) if count]
    spread = sum(weight * weight / count for weight, count in known)
    return sum(weight for weight, _ in known) ** 2 / spread if spread else 0.0


def binomial_interval(percentage: float, count: float, comparisons: int = 1) -> tuple[float, float]:
    """Wilson's 95 % interval around a percentage of `count` examples; wider by Bonferroni for more comparisons."""
    z = 1.96 if comparisons == 1 else NormalDist().inv_cdf(1 - 0.025 / comparisons)
    share = min(max(percentage / 100, 0.0), 1.0)
    middle, half = share + z * z / (2 * count), z * sqrt(share * (1 - share) / count + (z / (2 * count)) ** 2)
    return tuple(100 * (middle + side) / (1 + z * z / count) for side in (-half, half))  # type: ignore[return-value]


def mean_of(values: Sequence[float | None]) -> float | None:
    """The mean of the known values."""
    spread = spread_of(values)
    return None if spread is None else spread.mean


def spread_text(spread: Spread | None) -> str:
    """Mean ± standard deviation, of a share in per cent; of one seed, only the value."""
    if spread is None:
        return NONE
    if not spread.metric.share:
        return f"{spread.mean:.3g}" + ("" if spread.std is None else f" ± {spread.std:.2g}")
    return f"{spread.tenths:.1f}" + ("" if spread.std is None else f" ± {100 * spread.std:.1f}")


def percent(value: float | None) -> str:
    """A fraction as a percentage with one decimal."""
    return NONE if value is None else f"{round(100 * value, 1):.1f}%"


def signed(points: float) -> str:
    """A difference in percentage points: −1.2, +0.3."""
    return f"{points:+.1f}".replace("-", "−") if points else "±0.0"


def duration(seconds: float | None) -> str:
    """A time, such as 61.2 s, 12 min 05 s or 3 h 20 min."""
    if seconds is None:
        return NONE
    if seconds < 99.95:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest:02d} s"
    hours, minutes = divmod(round(seconds / 60), 60)
    return f"{hours} h {minutes:02d} min"


def megabytes(count: float | None) -> str:
    """Bytes in MB (10^6), with one decimal below 100."""
    if count is None:
        return NONE
    size = count / 1e6
    return f"{size:,.1f}" if size < 99.95 else f"{size:,.0f}"


def in_sentence(metric: Metric) -> str:
    """The name of a metric inside a sentence; F1 keeps its capital letter."""
    return metric.words if metric.words.isupper() else metric.words.lower()


def counted(number: int, noun: str) -> str:
    """A number of things: 1 cell, 2 cells."""
    return f"{number} {noun}{'' if number == 1 else 's'}"


def ranged(counts: Iterable[int], form: str = ",") -> str:
    """The smallest and the largest count (3–5); one number if they are equal."""
    known = list(counts)
    return "–".join(f"{end:{form}}" for end in dict.fromkeys((min(known), max(known))))


def listed(words: Sequence[str], most: int | None = None) -> str:
    """Words as a list in a sentence (a, b and c), each once, and at most `most` of them."""
    words = list(dict.fromkeys(words))
    if most is not None and len(words) > most:
        words = [*words[:most], f"{len(words) - most} more"]
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"
