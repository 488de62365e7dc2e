"""The errors that a user can mend."""


class FeddleError(ValueError):
    """A mistake in what the user gave: its text says what was expected, what came, and what to do.

    The command line prints the text as one line and exits with code 2.
    """


class StoppedError(FeddleError):
    """What ended the run lies outside of it, such as a full disk: once that is mended, the run can go on."""
