"""Where the events of a stream come from, a batch of lines at a time: text, Parquet, Redis.

A source hands out cells as it finds them; `validate` tells which of them are events. Where a batch
begins and ends depends on nothing but how many lines were asked for, and every batch knows the
position after it, from which a new source of the same name goes on.
"""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ...io.tables import choose_columns
from ...io.text_format import USUAL, TextFormat

PATIENCE = 0.2  # seconds until a source that waits looks whether it should stop

Stopped = Callable[[], bool]


def never() -> bool:
    return False


class Batch(NamedTuple):
    """Some lines of a source."""

    count: int  # pyright: ignore[reportIncompatibleMethodOverride]  # lines, those that hold nothing included
    columns: list[Any]  # cells of the lines that could be taken apart
    at: Sequence[int] | np.ndarray  # which lines of the batch those are
    refused: list[tuple[int, str]]  # the others, with the reason
    after: dict  # the position behind the batch
    place: Callable[[int], str]  # where a line of the batch is to be found


class Feed:
    """A source of lines with cells under the names that were asked for."""

    again = True  # whether what was read but not learned can be read again
    live = False  # whether reading may have to wait
    unfinished = ""  # what is to be said of an event that is not all there yet
    follows = False  # whether more may come after fewer lines than were asked for

    def __init__(self, key: str):
        self.key = key  # under which a model remembers how far it has read
        self.names: list[str] | None = None  # all columns, where a header tells
        self.wanted: list[str] = []

    def choose(self, given: Mapping[str, str | None], least: int) -> dict[str, str]:
        """The names of the columns to read, at least so many, by what a model calls them: see
        `choose_columns`. More than the least go by their order only where nobody named any.

        >>> feed = Feed("ratings.csv")
        >>> feed.names = ["who", "when", "what"]
        >>> feed.choose({"user": None, "item": "what", "value": None}, least=2)
        {'user': 'who', 'item': 'what'}
        """
        unnamed = len(self.names or ()) if not any(given.values()) else 0
        count = max(least, min(len(given), unnamed))
        found = choose_columns(given, count, self.names, self.key)
        self.wanted = list(found.values())
        return found

    def go_to(self, position: dict) -> None:
        """Go on where a batch ended."""

    def read(self, count: int, stopped: Stopped = never) -> Batch:
        """The next lines. Fewer than `count` at the end, or when it was stopped."""
        raise NotImplementedError

    def _split(self, lines: Iterable[tuple[int, Any]], cells: Callable) -> tuple[list, list, list]:
        """Lines, each with its place, by a function that finds the wanted cells of one: columns of
        cells, the places of those that have them, and of the others, with the reasons."""
        rows, at, refused = [], [], []
        for n, line in lines:
            try:
                rows.append(cells(line))
                at.append(n)
            except (ValueError, csv.Error) as why:
                refused.append((n, str(why)))
        return [list(c) for c in zip(*rows, strict=True)] or [[] for _ in self.wanted], at, refused


def open_feed(
    source: str, idle: float = np.inf, text: TextFormat = USUAL, *, final: bool = False,
    skip_lost: bool = False,
) -> Feed:  # fmt: skip
    """A source by what it is called on the command line, and how it is written if it is a text."""
    if source.startswith(("redis://", "rediss://", "unix://")):
        from .redis import RedisFeed

        return RedisFeed(source, idle, skip_lost)
    if source != "-" and (Path(source).is_dir() or source.lower().endswith(".parquet")):
        from .parquet import ParquetFeed

        return ParquetFeed(source)
    from .lines import LineFeed

    return LineFeed(source, idle, text, final)
