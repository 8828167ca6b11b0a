"""Pages of text, tables and pictures in one HTML file that needs nothing else, and one look for all
of the pictures.

>>> html = page("A report", section("Results", text("All < 1."), table(["a", "b"], [[1, 2.5]])))
>>> "All &lt; 1." in html, "<td>2.5</td>" in html
(True, True)
"""

from __future__ import annotations

import io
from base64 import b64encode
from collections.abc import Iterable, Sequence
from html import escape
from typing import Any

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

_STYLE = """
:root { color-scheme: light dark;
  --ink: #1c1e21; --paper: #ffffff; --faint: #5c6370; --rule: #d8dce2; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e4e6ea; --paper: #17191d; --faint: #a0a7b4; --rule: #3a3f47; }
}
body { font: 17px/1.6 system-ui, "Segoe UI", Roboto, "Helvetica Neue", sans-serif;
  color: var(--ink); background: var(--paper);
  max-width: 52rem; margin: 0 auto; padding: 2.5rem 1.25rem 4rem; }
h1 { font-size: 1.9rem; line-height: 1.25; margin: 0 0 1rem; }
h2 { font-size: 1.3rem; margin: 3rem 0 .6rem; }
p { margin: .6rem 0; }
table { border-collapse: collapse; margin: 1.2rem 0; font-variant-numeric: tabular-nums; }
th, td { padding: .35rem .9rem .35rem 0; text-align: right; border-bottom: 1px solid var(--rule); }
th:first-child, td:first-child { text-align: left; }
.words th, .words td { text-align: left; }
th { font-weight: 600; color: var(--faint); }
figure { margin: 1.4rem 0; }
figure img { width: 100%; background: #ffffff; border-radius: 8px; padding: .6rem;
  box-sizing: border-box; }
summary { color: var(--faint); cursor: pointer; }
figcaption, .note { color: var(--faint); font-size: .92rem; }
pre { overflow-x: auto; padding: .8rem 1rem; border: 1px solid var(--rule); border-radius: 8px;
  font-size: .88rem; line-height: 1.45; }
"""


def look():
    """The style of the pictures, as a context: text and lines take it when they are drawn.

    >>> with look():
    ...     axes = Figure().subplots()
    >>> axes.spines["top"].get_visible()
    False
    """
    return rc_context(_LOOK)


def text(words: str) -> str:
    """A paragraph."""
    return f"<p>{escape(words)}</p>"


def note(words: str) -> str:
    """A paragraph in small print."""
    return f"<p class=note>{escape(words)}</p>"


def code(words: str) -> str:
    """Lines as they are typed."""
    return f"<pre>{escape(words)}</pre>"


def table(header: Sequence[str], rows: Iterable[Sequence], words: bool = False) -> str:
    """A table; the first column names the rows, the others hold numbers, or words."""
    lines = [_row("th", header), *(_row("td", row) for row in rows)]
    return f"<table{' class=words' if words else ''}>{''.join(lines)}</table>"


def _row(kind: str, cells: Sequence) -> str:
    return f"<tr>{''.join(f'<{kind}>{escape(str(cell))}</{kind}>' for cell in cells)}</tr>"


def figure(picture: Figure, caption: str) -> str:
    """A picture, drawn into the page itself."""
    return image(drawn(picture, "svg"), caption)


def image(svg: bytes, caption: str) -> str:
    """A picture that was drawn before."""
    data, words = b64encode(svg).decode(), escape(caption)
    image = f'<img alt="{words}" src="data:image/svg+xml;base64,{data}">'
    return f"<figure>{image}<figcaption>{words}</figcaption></figure>"


def folded(title: str, content: str) -> str:
    """What opens at a click."""
    return f"<details><summary>{escape(title)}</summary>{content}</details>"


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


def section(title: str, *parts: str) -> str:
    """A heading and what is below it."""
    return f"<section><h2>{escape(title)}</h2>{''.join(parts)}</section>"


def page(title: str, *parts: str) -> str:
    """The whole file."""
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(title)}</title><style>{_STYLE}</style></head>"
        f"<body><h1>{escape(title)}</h1>{''.join(parts)}</body></html>\n"
    )
