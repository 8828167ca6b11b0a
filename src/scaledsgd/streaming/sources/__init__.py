"""Where the events of a stream come from, a batch of lines at a time: text, Parquet, Redis.

A source hands out cells as it finds them; `validate` tells which of them are events. Where a batch
begins and ends depends on nothing but how many lines were asked for, and every batch knows the
position after it, from which a new source of the same name goes on.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ...io.tables import InputError

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

    def __init__(self, key: str):
        self.key = key  # under which a model remembers how far it has read
        self.names: list[str] | None = None  # all columns, where a header tells
        self.wanted: list[str] = []

    def go_to(self, position: dict) -> None:
        """Go on where a batch ended."""

    def read(self, count: int, stopped: Stopped = never) -> Batch:
        """The next lines. Fewer than `count` at the end, or when it was stopped."""
        raise NotImplementedError

    def learned(self, position: dict) -> None:
        """All that comes before the position is in a checkpoint."""


def open_feed(source: str, idle: float = np.inf) -> Feed:
    """A source by what it is called on the command line."""
    if source.startswith(("redis://", "rediss://", "unix://")):
        from .redis import RedisFeed

        return RedisFeed(source, idle)
    if source != "-" and (Path(source).is_dir() or source.lower().endswith(".parquet")):
        from .parquet import ParquetFeed

        return ParquetFeed(source)
    from .lines import LineFeed

    return LineFeed(source, idle)


def chosen(
    feed: Feed, keys: Sequence[str], given: Mapping[str, str | None], least: int
) -> dict[str, str]:
    """The names in the source of the columns that a model calls `keys`, at least so many.

    Columns that nobody named go by their order where there is a header, and by what the model calls
    them otherwise.

    >>> feed = Feed("ratings.csv")
    >>> feed.names = ["who", "when", "what"]
    >>> chosen(feed, ["user", "item", "value"], {"item": "what"}, least=2)
    {'user': 'who', 'item': 'what'}
    """
    header, named = feed.names, {key: given[key] for key in keys if given.get(key)}
    others = keys if header is None else header
    count = least if header is None or named else max(least, min(len(keys), len(header)))
    found = {key: named.get(key) or other for key, other in zip(keys, others, strict=False)}
    found = {key: name for n, (key, name) in enumerate(found.items()) if n < count or key in named}
    names = list(found.values())
    if header is not None:
        for name in names:
            if header.count(name) != 1:
                what = f"column {name!r} is there {header.count(name)} times"
                raise InputError(f"{feed.key}: {what}: there are {', '.join(header)}")
    if len(names) < least or len(set(names)) < len(names):
        told = ", ".join(names)
        raise InputError(f"{feed.key}: {least} different columns are needed, these are {told}")
    return found
