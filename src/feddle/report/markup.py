"""HTML and SVG that is escaped by construction."""

import html


class Markup(str):
    """Text that is markup already; every other string is escaped on its way into an element."""

    __slots__ = ()


def element(name: str, *children: str | None, **attributes: str | float | None) -> Markup:
    """One element; a trailing underscore in an attribute's name falls away, others become hyphens.

    Children and attributes that are None are left out.
    """
    inside = join(*children)
    pairs = (
        f' {key.rstrip("_").replace("_", "-")}="{escape(_plain(value))}"'
        for key, value in attributes.items()
        if value is not None
    )
    return Markup(f"<{name}{''.join(pairs)}>{inside}</{name}>")


def join(*children: str | None) -> Markup:
    """The children one after the other, escaped where they are plain text."""
    return Markup(
        "".join(child if isinstance(child, Markup) else escape(child) for child in children if child is not None)
    )


def escape(text: str) -> Markup:
    """Plain text as markup; characters that no document may hold are shown as �."""
    shown = "".join(char if char.isprintable() or char in "\n\t" else "\N{REPLACEMENT CHARACTER}" for char in text)
    return Markup(html.escape(shown, quote=True))


def _plain(value: str | float) -> str:
    # Tenths of a pixel are finer than any screen, and keep the file small.
    return value if isinstance(value, str) else f"{round(value, 1):g}"
