"""Build HTML and SVG; all text is escaped."""

import html
from collections.abc import Iterable


class Markup(str):
    """Text that is markup. Every other string is escaped when it is put into an element."""

    __slots__ = ()


def element(name: str, *children: str | None, **attributes: str | float | None) -> Markup:
    """One element. Children and attributes that are None are left out.

    In the name of an attribute, a trailing underscore is removed and others become hyphens.
    """
    opening = name
    for key, value in attributes.items():
        if value is not None:
            # Tenths of a pixel are finer than any screen, and keep the file small.
            text = value if isinstance(value, str) else f"{round(value, 1):g}"
            opening += f' {key.rstrip("_").replace("_", "-")}="{escape(text)}"'
    return Markup(f"<{opening}>" if name == "img" else f"<{opening}>{join(*children)}</{name}>")


def join(*children: str | None) -> Markup:
    """The children in order, with plain text escaped."""
    shown = (child for child in children if child is not None)
    return Markup("".join(child if isinstance(child, Markup) else escape(child) for child in shown))


def each(name: str, texts: Iterable[str], **attributes: str) -> Markup:
    """An element for each text."""
    return join(*(element(name, text, **attributes) for text in texts))


def paragraph(text: str, kind: str) -> Markup | None:
    """A paragraph of the class `kind`; None if it would be empty."""
    return element("p", unbroken(text), class_=kind) if text else None


def unbroken(text: str) -> str:
    """A text in which `lr = 0.1` is never split over two lines."""
    return text.replace(" = ", "\N{NO-BREAK SPACE}=\N{NO-BREAK SPACE}")


def folded(summary: str, *children: str | None) -> Markup:
    """A part of the page that can be unfolded."""
    return element("details", element("summary", summary), *children)


def table(kind: str, heads: Iterable[str], rows: Iterable[Markup]) -> Markup:
    """A table of the class `kind`; a row is its cells."""
    head = element("tr", each("th", heads, scope="col"))
    return element("table", element("thead", head), element("tbody", each("tr", rows)), class_=kind)


def escape(text: str) -> Markup:
    """Plain text as markup. Control characters are shown as �."""
    shown = "".join(
        char if char.isprintable() or char in "\n\t\N{NO-BREAK SPACE}" else "\N{REPLACEMENT CHARACTER}" for char in text
    )
    return Markup(html.escape(shown, quote=True))
