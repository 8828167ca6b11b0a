"""Who chose what on a cluster, as the driver sees it: epochs as visits of items to users."""

from __future__ import annotations

import tempfile
import weakref
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple
from uuid import uuid4

import numpy as np

from ...core.choices import Choices
from ...core.factors import Factors
from ...io.parquet import ParquetFile, parquet_files
from ...io.tables import InputError
from ..base import Engine, SoftmaxRound, SquaredRound
from .choice_shard import Bpr, ChoiceJob, ChoicePlan, EventGroup, Softmax, Squared
from .distributed_array import Block, DistributedArray
from .splits import Slab
from .worker_pool import WorkerPool

_SLAB = 1 << 20  # choices of a piece
_PAGE = 1 << 20  # choices that come to the driver at a time

# Blocks of items for each worker. A group is as many, drawn anew for each epoch: two items are
# compared in an epoch in W, and those of the same block always, which are one in so many.
_BLOCKS = 8

# Groups that a worker meets in a round, if there are as many, and turns of an epoch: a user's row
# that learned all about one group would forget it for the next.
_MIXED, _TURNS = 8, 16


class Visits(NamedTuple):
    """A part of an epoch: which group each worker holds in turn."""

    key: int
    groups: tuple[tuple[int, ...], ...]
    turns: tuple[tuple[int, tuple[int, int]], ...]  # how far groups have moved on, and the share
    weighted: bool
    size: int  # choices, or about so

    def __len__(self) -> int:
        return self.size


@dataclass
class DistributedChoices:
    """Choices in shards. To a trainer they are as any `Choices`."""

    pool: WorkerPool
    plan: ChoicePlan
    ids: list[np.ndarray] = field(default_factory=list)  # of users and items, where files name them
    heaviest: float = np.inf

    def __post_init__(self):
        if self.workers > self.plan.shape[0]:
            told = f"{self.workers} workers share users, of whom there are {self.plan.shape[0]}"
            raise ValueError(f"{told}: give fewer workers")
        self.box, sizes = self.pool.sort(self.plan)
        counts, weights = zip(*(sizes[worker] for worker in sorted(sizes)), strict=True)
        self.counts = list(counts)
        self.unit = sum(weights) / len(self) if np.isfinite(self.heaviest) else 1.0
        self.shape = self.plan.shape
        weakref.finalize(self, self.pool.forget, self.plan.name)

    @classmethod
    def files(
        cls, pool: WorkerPool, files: Any, names: tuple, half_life: float | None, heaviest: float
    ) -> DistributedChoices:
        """The events of Parquet files."""
        import ray

        splits = _row_groups(files, names)
        ids: list[list] = [[], []]
        latest = -np.inf
        for *both, last in pool.each("events", splits, [()] * len(splits)):
            latest = max(latest, last)
            for known, new in zip(ids, both, strict=True):
                _add(known, new)
        known = [_union(parts) for parts in ids]
        boxes = tuple([ray.put(one)] for one in known)
        shape = len(known[0]), len(known[1])
        plan = ChoicePlan(
            uuid4().hex, [split._replace(known=boxes) for split in splits], shape,
            len(pool.workers), _blocks(shape, pool),
            names[2] is not None or half_life is not None, half_life, latest,
        )  # fmt: skip
        return cls(pool, plan, known, heaviest)

    @classmethod
    def handed_over(cls, choices: Choices, pool: WorkerPool) -> DistributedChoices:
        """Choices given to the object store."""
        import ray

        splits = []
        for start in range(0, len(choices), _SLAB):
            part = choices[start : start + _SLAB]
            held = part.users, part.items, part.weights, None
            splits.append(Slab([ray.put(held)], len(part)))
        blocks = _blocks(choices.shape, pool)
        plan = ChoicePlan(uuid4().hex, splits, choices.shape, len(pool.workers), blocks, True)
        return cls(pool, plan)

    def __len__(self) -> int:
        return sum(self.counts)

    @property
    def workers(self) -> int:
        return self.plan.workers

    @property
    def _unit(self) -> tuple[float, float]:
        return self.unit, self.heaviest

    def row_weights(self) -> list[np.ndarray]:
        return [weights.copy() for weights in self._row_weights]

    @cached_property
    def _row_weights(self) -> tuple[np.ndarray, np.ndarray]:
        users, items = np.zeros(self.shape[0]), np.zeros(self.shape[1])
        for worker, (own, all_items) in enumerate(self._asked("row_weights", self._unit)):
            users[worker :: self.workers] = own
            items += all_items
        return users, items

    @cached_property
    def _user_counts(self) -> np.ndarray:
        counts = np.zeros(self.shape[0], np.int64)
        for worker, own in enumerate(self._asked("counts", self._unit)):
            counts[worker :: self.workers] = own
        return counts

    def gathered(self, most: int, seed: int) -> Choices:
        """Choices of some users, about `most`, or all: users have new numbers, and only those who
        are there have one."""
        counts = self._user_counts
        drawn = np.arange(len(counts))
        if len(self) > most:
            order = np.random.default_rng([seed, 8]).permutation(len(counts))
            drawn = np.sort(order[np.cumsum(counts[order]) <= most])
        owner, parts = drawn % self.workers, []
        for worker in range(self.workers):
            own = drawn[owner == worker] // self.workers
            ref = self.pool[worker].choices.remote(self.box, "of_users", self._unit, own)
            users, items, weights = self.pool.get([ref])[0]
            parts.append((users.astype(np.int64) * self.workers + worker, items, weights))
        users, items, weights = (np.concatenate(column) for column in zip(*parts, strict=True))
        who, users = np.unique(users, return_inverse=True)
        return Choices.of(users, items, weights, shape=(len(who), self.shape[1]))

    def histories(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Where the items of each user begin, and the end; items and weights, in files that are
        mapped into memory: this process does not hold them."""
        counts = self._user_counts
        start = np.concatenate([[0], np.cumsum(counts)])
        items, weights = _mapped(len(self), np.int32), _mapped(len(self), np.float32)
        for worker in range(self.workers):
            own, begins = counts[worker :: self.workers], start[:-1][worker :: self.workers]
            ends = np.cumsum(own)
            pages = np.unique(ends // _PAGE, return_index=True)[1]  # of whole users
            for first, last in pairwise([*pages.tolist(), len(own)]):
                count, before = own[first:last], ends[first] - own[first]
                page = "page", self._unit, int(before), int(ends[last - 1])
                ref = self.pool[worker].choices.remote(self.box, *page)
                shift = begins[first:last] - (ends[first:last] - count - before)
                places = np.arange(count.sum()) + np.repeat(shift, count)
                _, items[places], weights[places] = self.pool.get([ref])[0]
        return start, items, weights

    def portions(
        self, rng: np.random.Generator, parts: int, block: int = 1, weighted: bool = False
    ) -> Iterator[Visits]:
        """All choices, as visits of groups of items to workers."""
        key, W = int(rng.integers(2**63)), self.workers
        drawn = np.array_split(rng.permutation(self.plan.blocks), W)
        groups = tuple(tuple(map(int, group)) for group in drawn)
        shares = -(-max(parts * min(W, _MIXED), _TURNS) // W) if W > 1 else parts
        turns = [(shift, (k, shares)) for k in range(shares) for shift in range(W)]
        for some in np.array_split(np.arange(len(turns)), parts):
            size = len(self) * (some[-1] + 1) // len(turns) - len(self) * some[0] // len(turns)
            yield Visits(key, groups, tuple(turns[k] for k in some), weighted, max(1, int(size)))

    def negatives(self, pool: np.ndarray, blocks: int, count: int, rng) -> int:
        """How many: a worker draws them, from the items that it holds."""
        return count

    def _asked(self, method: str, *arguments) -> list:
        calls = [w.choices.remote(self.box, method, *arguments) for w in self.pool.workers]
        return self.pool.get(calls)


class ChoiceEngine(Engine):
    """What an engine does with choices, by its workers."""

    @property
    def pool(self) -> WorkerPool:
        """The workers."""
        raise NotImplementedError

    def open_events(
        self, files, names: tuple, half_life: float | None, heaviest: float
    ) -> DistributedChoices:
        """Choices that stay in their files, but for a copy by user on the workers' disks."""
        return DistributedChoices.files(self.pool, files, names, half_life, heaviest)

    def held(self, choices: Choices) -> DistributedChoices:
        """The choices on the workers' disks, by user."""
        return DistributedChoices.handed_over(choices, self.pool)

    def start_choices(self, shape: tuple[int, int], rank: int, *, dtype, **how) -> Factors:
        """Drawn where they will lie: a block of users for each worker, then the blocks of items."""
        factors, blocks = Factors.start((0, 0), rank, dtype=dtype, **how), []
        parts = len(self.pool.workers), _blocks(shape, self.pool)
        for side, (rows, count) in enumerate(zip(shape, parts, strict=True)):
            begin, drawn = side * shape[0], 0
            for number in range(count):
                size = len(range(number, rows, count))
                ref = self.pool[number].fresh.remote(factors, side, drawn, drawn + size)
                place = slice(begin + number, begin + rows, count)
                blocks.append(Block(ref, size, place=place))
                drawn += size
        X: Any = DistributedArray(blocks, rank, dtype)
        return replace(factors, X=X, rows=shape[0])

    def run_squared(
        self, factors: Factors, choices: DistributedChoices, order: Visits, round: SquaredRound
    ) -> float:
        import ray

        rows = []
        for side, (seen, ridges) in enumerate(zip(round.seen, round.ridges, strict=True)):
            table = np.stack([seen, ridges]).astype(np.float32)
            count = choices.plan.blocks if side else choices.workers
            rows += [[ray.put(np.ascontiguousarray(table[:, n::count]))] for n in range(count)]

        def what(blocks: list[int], done: float, end: float) -> Squared:
            return Squared(round.theta, round.grams, round.means, [rows[n] for n in blocks])

        return _run(factors, choices, order, what)

    def run_softmax(
        self, factors: Factors, choices: DistributedChoices, order: Visits, negatives: int,
        round: SoftmaxRound,
    ) -> float:  # fmt: skip
        first, last = round.alphas

        def what(blocks: list[int], done: float, end: float) -> Softmax:
            alphas = first + (last - first) * done, first + (last - first) * end
            P = round.P.astype(np.float32)
            return Softmax(round._replace(P=P, alphas=alphas), negatives)

        return _run(factors, choices, order, what)

    def run_bpr(
        self, factors: Factors, choices: DistributedChoices, order: Visits, negatives: int,
        P: np.ndarray, rates: np.ndarray,
    ) -> float:  # fmt: skip
        return _run(factors, choices, order, lambda *_: Bpr(P, rates))

    def squares(self, X: DistributedArray, weights: np.ndarray) -> np.ndarray:
        calls = []
        for number, block in enumerate(X.blocks):
            own = weights[:, number :: len(X.blocks)]
            calls.append(self.pool[number].squares.remote(block.ref, block.rotation, own))
        return np.sum(self.pool.get(calls), axis=0)

    def set_lengths(self, X: DistributedArray, length: float, rng: np.random.Generator) -> None:
        key = int(rng.integers(2**63))
        for number, block in enumerate(X.blocks):
            block.changed(self.pool[number].set_lengths, length, [key, number])

    def clear(self, X: DistributedArray, rows: np.ndarray) -> None:
        for number, block in enumerate(X.blocks):
            own = rows[number :: len(X.blocks)]
            if own.any():
                block.changed(self.pool[number].clear, own)


def _run(factors: Factors, choices: DistributedChoices, visits: Visits, what: Any) -> float:
    """All visits of a part. Workers wait for each other's blocks, and the driver for the last."""
    X: Any = factors.X
    pool, W, told = choices.pool, choices.workers, []
    for turn, (shift, share) in enumerate(visits.turns):
        ends = turn / len(visits.turns), (turn + 1) / len(visits.turns)
        for worker in range(W):
            group = (worker + shift) % W
            numbers = [worker, *(W + block for block in visits.groups[group])]
            blocks = [X.blocks[number] for number in numbers]
            job = ChoiceJob(
                choices.box, choices._unit, visits.key, visits.groups, group, share,
                visits.weighted, what(numbers, *ends), _shared([b.rotation for b in blocks]),
                turn == len(visits.turns) - 1,
            )  # fmt: skip
            call = pool[worker].run_choices.options(num_returns=len(blocks) + 1)
            *refs, answer = call.remote(job, *(block.ref for block in blocks))
            for block, ref in zip(blocks, refs, strict=True):
                block.becomes(Block(ref, block.rows, place=block.place))
            told.append((blocks, answer))
    total, count = 0.0, 0
    answers = pool.get([answer for _, answer in told])
    for (blocks, _), (own, ran, grams) in zip(told, answers, strict=True):
        total, count = total + own, count + ran
        for block, G in zip(blocks, grams, strict=False):
            block.gram = block.sketch = G
    return total * len(visits) / count if count else 0.0


def _shared(rotations: list[np.ndarray | None]) -> list[np.ndarray | None]:
    """The same rotations, equal ones as one array: it is sent once."""
    first: list[np.ndarray] = []
    for one in rotations:
        if one is not None and not any(np.array_equal(one, other) for other in first):
            first.append(one)
    return [
        None if one is None else next(o for o in first if np.array_equal(o, one))
        for one in rotations
    ]


def _blocks(shape: tuple[int, int], pool: WorkerPool) -> int:
    """Of items: enough to be drawn into groups, if there are more groups than one."""
    W = len(pool.workers)
    return 1 if W == 1 else max(1, min(_BLOCKS * W, shape[1]))


def _row_groups(files: Any, names: tuple) -> list[EventGroup]:
    groups, paths = [], parquet_files(files)
    for path in paths:
        if not path.endswith((".parquet", ".parq")):
            raise InputError(f"{path}: a cluster reads Parquet files")
        source = ParquetFile(Path(path))
        for name in names:
            if name is not None:
                source.find(name)
        sizes = enumerate(source.groups())
        groups += [EventGroup(path, group, names) for group, count in sizes if count]
    if not groups:
        raise InputError(f"{paths[0]}: no observations")
    return groups


def _add(known: list[np.ndarray], new: np.ndarray) -> None:
    """Ids, in few arrays of which each is longer than those after it together: that many ids are
    sorted as often as a binary counter carries."""
    if known and known[0].dtype.kind != new.dtype.kind:
        told = f"ids are numbers here ({known[0][0]!r}) and words there ({new[0]!r})"
        raise ValueError(told)
    known.append(new)
    while len(known) > 1 and len(known[-2]) <= len(known[-1]):
        known[-2:] = [np.union1d(known[-2], known[-1])]


def _union(parts: list[np.ndarray]) -> np.ndarray:
    return np.unique(np.concatenate(parts))


def _mapped(count: int, dtype) -> np.ndarray:
    """Room for numbers in a file that nobody else sees, and that ends with this process."""
    with tempfile.TemporaryFile() as file:
        return np.memmap(file, dtype, "w+", shape=(max(1, count),))[:count]
