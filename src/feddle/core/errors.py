"""The errors that a user can mend."""


class FeddleError(ValueError):
    """A mistake in what the user gave: its text says what was expected, what came, and what to do.

    The command line prints the text as one line and exits with code 2.
    """


class StoppedError(FeddleError):
    """What ended the run lies outside of it, such as a full disk: once that is mended, the run can go on."""


def one_line(text: str, longest: int = 500) -> str:
    """The text on one line that any terminal can show."""
    shown = "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)
    return shown if len(shown) <= longest else shown[: longest - 1] + "…"
