"""Build HTML and SVG; all text is escaped."""

import html


class Markup(str):
    """Text that is markup. Every other string is escaped when it is put into an element."""

    __slots__ = ()


def element(name: str, *children: str | None, **attributes: str | float | None) -> Markup:
    """One element. Children and attributes that are None are left out.

    In the name of an attribute, a trailing underscore is removed and others become hyphens.
    """
    inside = join(*children)
    pairs = (
        f' {key.rstrip("_").replace("_", "-")}="{escape(_plain(value))}"'
        for key, value in attributes.items()
        if value is not None
    )
    return Markup(f"<{name}{''.join(pairs)}>{inside}</{name}>")


def join(*children: str | None) -> Markup:
    """The children in order, with plain text escaped."""
    return Markup(
        "".join(child if isinstance(child, Markup) else escape(child) for child in children if child is not None)
    )


def escape(text: str) -> Markup:
    """Plain text as markup. Control characters are shown as �."""
    shown = "".join(char if char.isprintable() or char in "\n\t" else "\N{REPLACEMENT CHARACTER}" for char in text)
    return Markup(html.escape(shown, quote=True))


def _plain(value: str | float) -> str:
    # Tenths of a pixel are finer than any screen, and keep the file small.
    return value if isinstance(value, str) else f"{round(value, 1):g}"
