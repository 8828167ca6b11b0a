"""Choices in parts, one a worker: all those of its users, on its disk, and what it does with them.

User u is number u // W of worker u % W, and item i is number i // B of block i % B: blocks are
alike, however ids are ordered. For an epoch the B blocks of items are drawn into W groups. A visit
brings a group to a worker, who runs the choices that its users made among these items, against
negatives from the same group; after W visits every worker has had every group.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ...core.choices import Choices
from ...core.factors import Factors
from ...core.validation import LARGEST
from ...io.atomic import whole_file
from ...io.parquet import ParquetFile
from ..base import Engine, SoftmaxRound, SquaredRound


class EventGroup(NamedTuple):
    """A row group of events in a Parquet file."""

    path: str
    group: int
    names: tuple[str, str, str | None, str | None]  # of the columns: user, item, weight, time
    known: tuple[list, ...] = ()  # a box for users and one for items, with their ids in order

    def read(self) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray | None]:
        """Users, items, weights and times."""
        import ray

        *ids, weights, times = self.columns()
        known = [ray.get(box[0]) for box in self.known]
        users, items = (np.searchsorted(*both) for both in zip(known, ids, strict=True))
        return users, items, weights, times

    def columns(self) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray | None]:
        """The same with ids as they are in the file."""
        *named, weight, time = self.names
        numbers = [name for name in (weight, time) if name]
        source = ParquetFile(Path(self.path))
        table = source.table(named, numbers, times=(time,), group=self.group)
        # Words as NumPy's own, which are sorted and searched many times faster than objects.
        ids = [table[n] if table[n].dtype.kind == "i" else table[n].astype(str) for n in named]
        times = table[time].astype(np.float64) if time else None
        if not weight:
            return ids[0], ids[1], np.ones(len(ids[0]), np.float32), times
        weights, most = table[weight].astype(np.float64), LARGEST["float32"]
        wrong = ~((weights <= most) & (weights * most >= 1))
        if wrong.any():
            row = int(np.argmax(wrong))
            why = f"weight {weights[row]:g} is not from {1 / most:g} to {most:g}"
            raise table.refused(row, weight, why)
        return ids[0], ids[1], weights.astype(np.float32), times


def found(group: EventGroup) -> tuple[np.ndarray, np.ndarray, float]:
    """The users and items of a row group, and its latest time."""
    users, items, _, times = group.columns()
    return np.unique(users), np.unique(items), -np.inf if times is None else float(times.max())


class EventPiece(NamedTuple):
    """What one split holds for one worker, users by her own numbers."""

    users: np.ndarray
    items: np.ndarray
    weights: np.ndarray


@dataclass(frozen=True)
class ChoicePlan:
    """Which events there are, and who learns from them."""

    name: str
    splits: list[Any]
    shape: tuple[int, int]
    workers: int
    blocks: int  # of items
    weighted: bool  # else who comes back has chosen once
    half_life: float | None = None
    latest: float = 0.0

    def cut(self, number: int) -> list[EventPiece]:
        """A split by the worker who has its users."""
        users, items, weights, times = self.splits[number].read()
        if self.half_life is not None and times is not None:
            ages = (self.latest - times) / self.half_life
            weights = weights * np.exp2(-ages, dtype=np.float32)
        pieces = []
        for worker in range(self.workers):
            own = np.flatnonzero(users % self.workers == worker)
            rows = (users[own] // self.workers).astype(np.int32)
            pieces.append(EventPiece(rows, items[own].astype(np.int32), weights[own]))
        return pieces

    def users_of(self, worker: int) -> int:
        return len(range(worker, self.shape[0], self.workers))


class ChoiceJob(NamedTuple):
    """One worker's part in a visit."""

    plan: list  # a box with the plan
    unit: tuple[float, float]  # the mean weight, and how many of it count at most
    key: int  # of the order of choices in this epoch
    groups: tuple[tuple[int, ...], ...]  # the blocks of each group in this epoch
    group: int  # that the worker holds
    share: tuple[int, int]  # the k-th of so many parts of its choices
    weighted: bool  # whether choices are drawn as often as their weights say
    what: Any  # a Squared, Softmax or Bpr
    rotations: list[np.ndarray | None]  # to the basis of this round, for each block
    grams: bool  # whether those of the blocks are asked for


class Squared(NamedTuple):
    """A SquaredRound, but for what goes by rows: boxes with (seen, ridges) of each block."""

    theta: float
    grams: np.ndarray
    means: np.ndarray
    rows: list[list]

    def run(self, engine: Engine, factors: Factors, choices: Choices, rng) -> float:
        import ray

        users, *items = (ray.get(box[0]) for box in self.rows)
        seen, ridges = zip(users, np.concatenate(items, axis=1), strict=True)
        round = SquaredRound(self.theta, list(seen), list(ridges), self.grams, self.means)
        return engine.run_squared(factors, choices, np.arange(len(choices)), round)


class Softmax(NamedTuple):
    """Blocks of a SoftmaxRound, each with so many negatives."""

    round: SoftmaxRound
    negatives: int

    def run(self, engine: Engine, factors: Factors, choices: Choices, rng) -> float:
        # Blocks of one size, so that none is left with a few choices.
        blocks = -(-len(choices) // self.round.block)
        round = self.round._replace(block=-(-len(choices) // blocks))
        pool = np.arange(choices.shape[1], dtype=np.int32)
        negatives = choices.negatives(pool, blocks, self.negatives, rng)
        return engine.run_softmax(factors, choices, np.arange(len(choices)), negatives, round)


class Bpr(NamedTuple):
    """A comparison of each choice with an item."""

    P: np.ndarray
    rates: np.ndarray

    def run(self, engine: Engine, factors: Factors, choices: Choices, rng) -> float:
        pool = np.arange(choices.shape[1], dtype=np.int32)
        drawn = choices.negatives(pool, len(choices), 1, rng)
        order = np.arange(len(choices))
        return engine.run_bpr(factors, choices, order, drawn, self.P, self.rates)


class ChoiceShard:
    """The choices of one worker's users, each pair once. Everything is written as a whole or not at
    all, and made again from the plan where it is missing."""

    def __init__(self, plan: ChoicePlan, worker: int, folder: Path):
        self.plan, self.worker, self.folder = plan, worker, folder
        self._opened: tuple[Any, Choices] | None = None
        self._epoch: tuple[Any, np.ndarray, np.ndarray] | None = None

    def cut(self, number: int) -> list[EventPiece]:
        """A split as pieces, one for each worker."""
        return self.plan.cut(number)

    def add(self, number: int, piece: EventPiece) -> None:
        """Keep what a split holds for this worker."""
        _write(self._piece(number), *piece)

    def sizes(self) -> dict[int, tuple[int, float]]:
        """How many choices this worker has, and the sum of their weights."""
        done = self.folder / "choices.npz"
        if not done.exists():
            pieces = []
            for number in range(len(self.plan.splits)):
                if not self._piece(number).exists():
                    self.add(number, self.cut(number)[self.worker])
                pieces.append(_read(self._piece(number)))
            columns = [np.concatenate(column) for column in zip(*pieces, strict=True)]
            shape = self.plan.users_of(self.worker), self.plan.shape[1]
            choices = Choices(columns[0], columns[1], columns[2], shape)
            choices = choices.merged() if len(choices) else choices
            weights = choices.weights
            if not self.plan.weighted:
                weights = np.ones(len(choices), np.float32)
            _write(done, choices.users, choices.items, weights)
            for number in range(len(self.plan.splits)):
                self._piece(number).unlink(missing_ok=True)
        weights = _read(done)[2]
        return {self.worker: (len(weights), float(weights.sum(dtype=np.float64)))}

    def row_weights(self, unit: tuple[float, float]) -> tuple[np.ndarray, np.ndarray]:
        """The sum of the weights of each of its users, and of all items."""
        users, items = self.choices(unit).row_weights()
        return users, items

    def of_users(self, unit: tuple[float, float], users: np.ndarray) -> EventPiece:
        """All choices of some of its users."""
        choices = self.choices(unit)
        wanted = np.zeros(choices.shape[0], bool)
        wanted[users] = True
        chosen = choices[np.flatnonzero(wanted[choices.users])]
        return EventPiece(chosen.users, chosen.items, chosen.weights)

    def counts(self, unit: tuple[float, float]) -> np.ndarray:
        """How many choices each of its users has."""
        choices = self.choices(unit)
        return np.bincount(choices.users, minlength=choices.shape[0])

    def page(self, unit: tuple[float, float], first: int, last: int) -> EventPiece:
        """Choices first to last, which are sorted by user and item."""
        choices = self.choices(unit)[first:last]
        return EventPiece(choices.users, choices.items, choices.weights)

    def run(self, job: ChoiceJob, engine: Engine, factors: Factors) -> tuple[float, int]:
        """Step on the choices of a visit. Returns what they sum to, and how many they are."""
        choices, own = self.choices(job.unit), self._in_group(job)
        if not len(own):
            return 0.0, 0
        sizes = [len(range(b, self.plan.shape[1], self.plan.blocks)) for b in job.groups[job.group]]
        begins = np.zeros(self.plan.blocks, np.int32)
        begins[list(job.groups[job.group])] = np.cumsum(sizes) - sizes
        items = choices.items[own]
        places = begins[items % self.plan.blocks] + items // self.plan.blocks
        shape = factors.shape
        seen = Choices(choices.users[own], places, choices.weights[own], shape)
        rng = np.random.default_rng([job.key, self.worker, job.group, job.share[0]])
        return job.what.run(engine, factors, seen, rng), len(own)

    def _in_group(self, job: ChoiceJob) -> np.ndarray:
        """Positions of the choices of this visit."""
        key = job.key, job.groups
        if self._epoch is None or self._epoch[0] != key:
            self._epoch = None
            choices, group_of = self.choices(job.unit), np.zeros(self.plan.blocks, np.uint16)
            for number, blocks in enumerate(job.groups):
                group_of[list(blocks)] = number
            rng = np.random.default_rng([job.key, self.worker])
            order = next(choices.portions(rng, 1, weighted=job.weighted), np.zeros(0, int))
            groups = group_of[choices.items[order] % self.plan.blocks]
            order = order[np.argsort(groups, kind="stable")]
            ends = np.cumsum(np.bincount(groups, minlength=len(job.groups)))
            self._epoch = key, order, np.concatenate([[0], ends])
        _, order, ends = self._epoch
        first, last = ends[job.group], ends[job.group + 1]
        (k, parts), count = job.share, last - first
        return order[first + count * k // parts : first + count * (k + 1) // parts]

    def choices(self, unit: tuple[float, float]) -> Choices:
        """What this worker's users chose; weights in units of the mean, none of them far off."""
        if self._opened is None or self._opened[0] != unit:
            self.sizes()
            users, items, weights = _read(self.folder / "choices.npz")
            mean, heaviest = unit
            weights = np.clip(weights / np.float32(mean), 1 / heaviest**2, heaviest)
            shape = self.plan.users_of(self.worker), self.plan.shape[1]
            self._opened = unit, Choices(users, items, weights.astype(np.float32), shape)
        return self._opened[1]

    def _piece(self, number: int) -> Path:
        return self.folder / f"piece{number}.npz"


def _write(path: Path, users: np.ndarray, items: np.ndarray, weights: np.ndarray) -> None:
    with whole_file(path, durable=False) as file:
        np.savez(file, users=users, items=items, weights=weights)


def _read(path: Path) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    with np.load(path, allow_pickle=False) as held:
        return held["users"], held["items"], held["weights"]
