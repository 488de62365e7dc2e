"""Errors that a user can correct, and suggestions for misspelt names."""

import difflib
from collections.abc import Iterable


class FeddleError(ValueError):
    """A mistake in the user's input: the message says what was expected, what was given, and what to do.

    The command line prints the message as one line and exits with code 2.
    """


class StoppedError(FeddleError):
    """The run was stopped by something outside of it, such as a full disk; once that is fixed, it can be resumed."""


class DivergedError(FeddleError):
    """A computation on the server's data gave numbers that are not finite."""


def nearest(name: str, known: Iterable[str], cutoff: float = 0.65) -> str | None:
    """The known name that is most similar to `name`; None if none of them is similar."""
    return next(iter(difflib.get_close_matches(name, list(known), n=1, cutoff=cutoff)), None)


def did_you_mean(name: str, known: Iterable[str], otherwise: str = "") -> str:
    """A question that suggests the nearest known name, or `otherwise` if none is similar."""
    near = nearest(name, known)
    return otherwise if near is None else f"did you mean {near!r}?"


def one_line(text: str, longest: int = 500) -> str:
    """The text on one line that any terminal can show."""
    shown = "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)
    return shown if len(shown) <= longest else shown[: longest - 1] + "…"
