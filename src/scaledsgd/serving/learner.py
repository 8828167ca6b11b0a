"""Learning beside answering: a thread that follows the log of events, and the snapshots that
answers come from.

A snapshot is a model that nobody trains. The learner makes a new one after a batch and puts it in
the place of the last: one assignment, so that a reader has the old one or the new one, as a whole,
and never waits.
"""

from __future__ import annotations

import math
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp

from ..core.linalg import unit
from ..estimators.base import Learner, Role
from ..estimators.completers import DistanceCompleter
from ..estimators.ranker import ItemRanker
from ..estimators.recommender import Recommender
from ..io.tables import InputError
from ..streaming.stream import Stream
from .event_log import EventLog, LogFeed

PACE = 0.7  # seconds from batch to batch, each of which has a price whatever is in it
_CHECKPOINT = 30.0  # seconds between checkpoints: what has to be learned again after a kill
_AGAIN = 5.0  # seconds after which a checkpoint that could not be written is tried again
_RECENT = 2.0  # seconds over which events a second are counted


@dataclass(frozen=True)
class Snapshot:
    """A model that stays as it is, and what is known about it."""

    model: Learner
    number: int = 0
    learned: int = 0  # events of the log that are in it
    made: float = field(default_factory=time.time)

    @property
    def items(self) -> bool:
        """Whether it ranks items."""
        return isinstance(self.model, ItemRanker | Recommender)

    @cached_property
    def popularity(self) -> np.ndarray:
        """How many users chose each item."""
        count = self.model.factors.shape[1]
        if not self.items or self.model.ids is None:
            return np.zeros(count, np.int64)
        chosen: sp.csr_array = self.model.histories.table  # type: ignore[attr-defined]
        return np.bincount(chosen.indices, minlength=count)

    @cached_property
    def spectrum(self) -> np.ndarray:
        """Singular values, largest first."""
        return self.model.singular_values_

    @cached_property
    def directions(self) -> np.ndarray:
        """Items along their two principal directions (items, 2), as they lie by angle."""
        X = unit(self.model.factors.right.astype(np.float32))
        X = X - X.mean(axis=0)
        axes = np.linalg.eigh(X.T @ X)[1][:, ::-1][:, :2]
        axes *= np.sign(axes[np.abs(axes).argmax(axis=0), np.arange(axes.shape[1])])
        flat = X @ axes
        return np.pad(flat, ((0, 0), (0, 2 - flat.shape[1])))

    @cached_property
    def points(self) -> np.ndarray:
        assert isinstance(self.model, DistanceCompleter)
        return self.model.points_

    def ready(self) -> Snapshot:
        """With what the first answer would have to make, so that no reader has to."""
        model: Any = self.model
        if self.items:
            whom: dict[str, Any] = {
                "items": model.ids[1].names(slice(1)) if model.ids else np.zeros(1, int)
            }
            if isinstance(model, Recommender):  # a new user costs more than one that is known
                whom = {"user": model.user_ids.names(slice(1))}
            for _ in range(2):  # a search that is asked again sorts its table
                model.recommend(**whom, k=1)
        return self


@dataclass
class Live:
    """What is shared between those who answer and the one who learns."""

    snapshot: Snapshot
    speed: deque = field(default_factory=lambda: deque([(time.monotonic(), 0)], maxlen=64))
    refused: int = 0
    failure: str = ""  # why the learner does not go on, if it does not
    trouble: str = ""  # why the last checkpoint could not be written

    def events_a_second(self) -> float:
        """Learned lately."""
        now = time.monotonic()
        recent = [(at, n) for at, n in self.speed if now - at <= _RECENT]
        return sum(n for _, n in recent) / _RECENT if recent else 0.0


def columns_of(model: Learner) -> dict[str, str]:
    """The members of an event by which a model learns, and what it calls them."""
    given = {}
    if isinstance(model, ItemRanker) and model.user_ids is not None and len(model.user_ids):
        given = {"user": "user", "item": "item"}
    roles, least = model.roles(given)
    return {role.key: role.key for role in roles[:least]}


def roles_of(model: Learner, columns: Mapping[str, str]) -> list[Role]:
    """What these members mean."""
    return [role for role in model.roles(columns)[0] if role.key in columns]


class LearnerThread:
    """Follows a log, learns, and makes snapshots. `out` is where checkpoints go."""

    def __init__(
        self, model: Learner, log: EventLog, out: str | PathLike, columns: dict[str, str],
        checkpoint: float = _CHECKPOINT, pace: float = PACE,
    ):  # fmt: skip
        if getattr(model, "half_life", None) is not None:
            raise InputError(f"{out}: a model with a half-life is trained on files, not on events")
        model.name_rows()
        self.feed = LogFeed(log, pace)
        self.stream = Stream(model, self.feed, out, columns, seconds=checkpoint)
        self.stream.resume()
        self.stream.learned = self._learned
        self.stream.refuse = self._refused
        self.stream.stopped = self._stop_asked
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="learner", daemon=True)
        self._log, self._there = log, self.stream.lines + self.feed.left()
        self.failed: Callable[[], object] = lambda: None  # told when learning cannot go on
        self.live = Live(Snapshot(model.frozen(), 0, self.stream.lines).ready())

    @property
    def behind(self) -> int:
        """Events of the log that are not in the snapshot."""
        return max(0, self._there + self._log.accepted - self.live.snapshot.learned)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Learn what was read, write a checkpoint and end."""
        self._stopping.set()
        self._thread.join()
        self.feed.close()

    def _stop_asked(self) -> bool:
        return self._stopping.is_set()

    def _run(self) -> None:
        try:
            while not self._stopping.is_set():
                try:
                    for _ in self.stream.checkpoints():
                        self.live.trouble = ""
                except OSError as why:  # a disk that is full: what was learned is in the log
                    self.live.trouble = " ".join(str(why).split())
                    self.stream.written = time.monotonic()
                    self._stopping.wait(_AGAIN)
        except Exception as why:
            self.live.failure = " ".join(f"learning has stopped: {why}".split())
            self.failed()

    def _refused(self, place: str, why: str) -> None:
        self.live.refused += 1

    def _learned(self, stream: Stream) -> None:
        live, before = self.live, self.live.snapshot
        live.speed.append((time.monotonic(), stream.lines - before.learned))
        live.snapshot = Snapshot(stream.model.frozen(), before.number + 1, stream.lines).ready()


class WatcherThread:
    """Takes up a model file that was replaced."""

    def __init__(self, path: Path, load: Callable[[Path], Learner], live: Live, every: float = 1.0):
        self._path, self._load, self.live, self._every = path, load, live, every
        self._seen = self._state()
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="watcher", daemon=True)

    def _state(self) -> tuple | None:
        try:
            told = self._path.stat()
            return told.st_mtime_ns, told.st_size, told.st_ino
        except OSError:
            return None

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stopping.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stopping.wait(self._every):
            state = self._state()
            if state is None or state == self._seen:
                continue
            self._seen = state
            try:
                model = self._load(self._path)
                number = self.live.snapshot.number + 1
                self.live.snapshot = Snapshot(model, number, 0).ready()
                self.live.trouble = ""
            except (ValueError, OSError) as why:  # half of a file, or no model: the old one stays
                self.live.trouble = " ".join(str(why).split())


def finite(value: float | None) -> float | None:
    """JSON has no infinity."""
    return value if value is not None and math.isfinite(value) else None
