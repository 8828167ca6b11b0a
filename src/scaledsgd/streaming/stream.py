"""Learning from a stream that may break off at any moment.

Events are learned in batches of a fixed number of lines, and a checkpoint is a model file that also
says how far its source has been read. Whoever goes on from one therefore counts every event once,
and arrives, with one thread, at the very bits of a run that nobody interrupted.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from os import PathLike

import numpy as np
from threadpoolctl import threadpool_limits

from ..estimators.base import Learner, NothingToLearn
from ..io.atomic import alone
from ..io.tables import InputError, refuse_others
from .sources import Batch, Feed
from .validate import validate

BATCH = 32_768  # lines: what a batch costs besides its events is then a few percent
EVERY = 1_000_000  # lines between checkpoints, and
_PATIENCE = 1_000_000  # events, until something is to be learned from the first of them
SECONDS = 60.0  # seconds, whichever comes first: what a crash may cost in time


def learn_many(model: Learner, batches: Iterable, **columns: str) -> Learner:
    """One pass over tables that need not exist at the same time: `partial_fit` on each, without a
    record of each in the history.

    >>> from scaledsgd import MatrixCompleter
    >>> days = ({"u": [0, 1, 2], "v": [day, 1, 2], "y": [1.0, 2.0, 4.0]} for day in range(9))
    >>> model = learn_many(MatrixCompleter(rank=1), days, row="u", column="v", value="y")
    >>> model.factors.shape, len(model.history_)
    ((3, 9), 0)
    """
    for batch in batches:
        with _quiet(model):
            model.partial_fit(batch, **columns)  # type: ignore[attr-defined]
    return model


@contextmanager
def _quiet(model: Learner) -> Iterator[None]:
    """A history that grows with every batch would not end."""
    told = model.evaluations, model.verbose
    model.evaluations, model.verbose = 0, False
    try:
        yield
    finally:
        model.evaluations, model.verbose = told


@dataclass
class Stream:
    """A model that learns from a source and keeps its file up to date.

    `columns` are the names of the source's columns by what `partial_fit` calls them. Iterating
    over `checkpoints` runs the stream.
    """

    model: Learner
    feed: Feed
    out: str | PathLike
    columns: Mapping[str, str | None] = field(default_factory=dict)
    batch: int | None = None
    every: int = EVERY
    seconds: float = SECONDS
    locked: bool = False  # whether `alone(out)` is held already: by whoever loads the model from it
    stopped: Callable[[], bool] = lambda: False
    refuse: Callable[[str, str], object] = lambda place, why: None  # told of refused lines
    learned: Callable[[Stream], object] = lambda stream: None  # told after every batch

    lines: int = 0  # of this source, all runs together
    events: int = 0
    refused: int = 0
    written: float = field(default_factory=time.monotonic)  # when the last checkpoint was

    def __post_init__(self):
        model, feed = self.model, self.feed
        model.name_rows()
        self._roles, least = model.roles(self.columns)
        keys = [role.key for role in self._roles]
        refuse_others(self.columns, keys, "model")
        found = feed.choose({key: self.columns.get(key) for key in keys}, least)
        self._roles = [role for role in self._roles if role.key in found]
        self._named = {role.key: found[role.key] for role in self._roles}
        self._first: list[np.ndarray] = []  # columns that wait for more,
        self._kinds: dict[int, type] = {}  # and whether ids in them are numbers or words

    def resume(self) -> None:
        """Go on where the model's file says that this source was left."""
        told = self.model.position_in(self.feed.key)
        if told is not None:
            self.lines, self.events, self.refused = (
                told[name] for name in ("lines", "events", "refused")
            )
            self.batch = self.batch or told["batch"]
            try:
                self.feed.go_to(told["position"])
            except (LookupError, TypeError, ValueError, OverflowError) as why:
                if isinstance(why, InputError):
                    raise
                told = f"the model's position in it is none ({why!r}): --restart begins anew"
                raise InputError(f"{self.feed.key}: {told}") from None

    @property
    def residual(self) -> float:
        """Root mean square of what predictions were off by lately, before they were corrected."""
        return self.model.residual

    def checkpoints(self) -> Iterator[Stream]:
        """Learn to the end of the source. Yields after each checkpoint."""
        self.batch = self.batch or BATCH
        # Gram products this small only wait for each other on several threads.
        lock = nullcontext() if self.locked else alone(self.out)
        with lock, threadpool_limits(1, "blas"):
            behind = 0
            for batch in self._batches():
                with self.model.locked():  # whoever saves the model in between saves both
                    self._learn(batch)
                    self._remember(batch.after)
                behind += batch.count
                self.learned(self)
                late = time.monotonic() - self.written >= self.seconds
                if (behind >= self.every or late) and self._write():
                    behind = 0
                    yield self
            if behind and self._write():
                yield self
            elif behind:
                raise InputError(f"{self.feed.key}: {self.lines} lines, and nothing to learn yet")

    def _batches(self) -> Iterator[Batch]:
        assert self.batch is not None
        if self.feed.live:
            while True:
                batch = self.feed.read(self.batch, self.stopped)
                broken_off = self.stopped() and batch.count < self.batch
                if not batch.count or (broken_off and self.feed.again):
                    return
                yield batch
                if batch.count < self.batch and not self.feed.follows:
                    return
        with ThreadPoolExecutor(1) as reader:  # the next batch is read while this one is learned
            coming = reader.submit(self.feed.read, self.batch)
            while not self.stopped():
                batch = coming.result()
                if not batch.count:
                    return
                coming = reader.submit(self.feed.read, self.batch)
                yield batch

    def _learn(self, batch: Batch) -> None:
        model, known = self.model, hasattr(self.model, "history_")
        found = validate(self._roles, batch.columns, model.id_kinds() if known else self._kinds)
        refused = [(batch.at[row], why) for row, why in found.refused]
        columns, events = found.columns, len(found.at)
        if events:
            if model.is_symmetric and "column" in self._named:
                # (i, j) and (j, i) are one entry. Under one name it may change as others do.
                i, j, y = columns
                turned = np.asarray(i > j, bool)
                columns = [np.where(turned, j, i), np.where(turned, i, j), y]
            if self._first:  # what came before, and told nothing by itself
                columns = [np.concatenate(both) for both in zip(self._first, columns, strict=True)]
            try:
                table = dict(zip(self._named.values(), columns, strict=True))
                learn_many(model, [table], **self._named)
                self._first = []
            except NothingToLearn as why:
                if len(columns[0]) > _PATIENCE:
                    raise InputError(f"the first {len(columns[0])} events: {why}") from None
                self._first = columns
            except ValueError as why:
                if not known:
                    raise InputError(f"the first batch, of {events} events: {why}") from None
                refused += [(batch.at[row], str(why)) for row in found.at]
                events = 0
        self.lines += batch.count
        self.events += events
        for row, why in sorted([*batch.refused, *refused]):
            self.refused += 1
            self.refuse(batch.place(row), why)

    def _remember(self, position: dict) -> None:
        told = {
            "position": position, "lines": self.lines, "events": self.events,
            "refused": self.refused, "batch": self.batch,
        }  # fmt: skip
        self.model.remember_position(self.feed.key, told)

    def _write(self) -> bool:
        """A checkpoint, if there is a model yet."""
        if not hasattr(self.model, "history_"):
            return False
        self.model.save(self.out)
        self.written = time.monotonic()
        return True
