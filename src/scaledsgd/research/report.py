"""Pages of text, tables and pictures in one HTML file that needs nothing else, and one look for all
of the pictures.

>>> html = page("A report", section("Results", text("All < 1."), table(["a", "b"], [[1, 2.5]])))
>>> "All &lt; 1." in html, "<td>2.5</td>" in html
(True, True)
"""

from __future__ import annotations

import io
from base64 import b64encode
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from jinja2 import Environment, PackageLoader
from matplotlib import rc_context
from matplotlib.figure import Figure

# A dark blue and a light orange: the colour-blind tell them apart, and so does a grey print. Lines
# also differ in style, which is what a photocopy leaves.
BLUE, ORANGE, GREY = "#0b4f8a", "#e68a00", "#666666"
LINES: tuple[dict[str, Any], ...] = (
    {"color": BLUE, "linestyle": "-", "linewidth": 2.2},
    {"color": ORANGE, "linestyle": "--", "linewidth": 2.2},
    {"color": GREY, "linestyle": ":", "linewidth": 2.2},
)

_LOOK: Any = {
    "font.size": 12,
    "axes.titlesize": 13,
    "axes.titleweight": "bold",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": "#dddddd",
    "legend.frameon": False,
    "svg.hashsalt": "scaledsgd",  # the same picture is the same file
}

# Pages are put together from the macros of a template, which escape whatever they are given.
_TEMPLATES = Environment(
    loader=PackageLoader("scaledsgd.research"),
    autoescape=True,
    trim_blocks=True,
    lstrip_blocks=True,
)
_MACROS: Any = _TEMPLATES.get_template("report.html").module

text = _MACROS.text  # (words): a paragraph
note = _MACROS.note  # (words): a paragraph in small print
table = _MACROS.table  # (header, rows, words=False): rows of numbers, or of words
folded = _MACROS.folded  # (title, content): what opens at a click
section = _MACROS.section  # (title, *parts): a heading and what is below it
page = _MACROS.page  # (title, *parts): the whole file


def look():
    """The style of the pictures, as a context: text and lines take it when they are drawn.

    >>> with look():
    ...     axes = Figure().subplots()
    >>> axes.spines["top"].get_visible()
    False
    """
    return rc_context(_LOOK)


@contextmanager
def sheet(width: float, height: float) -> Iterator[Figure]:
    """A picture of so many inches, to be drawn on as long as the context lasts.

    >>> with sheet(10, 4) as picture:
    ...     _ = picture.subplots()
    """
    with look():
        yield Figure(figsize=(width, height), layout="constrained")


def figure(picture: Figure, caption: str) -> str:
    """A picture, drawn into the page itself."""
    return image(drawn(picture, "svg"), caption)


def image(svg: bytes, caption: str) -> str:
    """A picture that was drawn before."""
    return _MACROS.image(b64encode(svg).decode(), caption)


def drawn(picture: Figure, kind: str) -> bytes:
    """The bytes of a picture file of that kind.

    >>> drawn(Figure(), "png")[1:4]
    b'PNG'
    """
    file = io.BytesIO()
    with look():
        # Without the date, so that the same run makes the same file.
        when = {"svg": {"Date": None}, "png": None}[kind]
        picture.savefig(file, format=kind, dpi=150, metadata=when)
    return file.getvalue()
