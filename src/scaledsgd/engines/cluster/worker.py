"""What a worker of a cluster does: pure functions of the blocks it is given, and of files it can
make again. So it may die at any moment, and whoever takes its place gives the same answers."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ...core.factors import Factors
from ...core.linalg import NumpyAlgebra, aligned
from ...core.losses import LOSSES
from ...core.validation import bad_target
from ...io.atomic import clear_parts, whole_file
from ..base import Engine, open_engine
from ..cpu.sample_order import share
from . import disk as buckets
from .splits import Piece

_FEW = 1 << 14  # rows of which the whole Gram is told unasked: it takes a millisecond or two

_DRAWN = 1 << 16  # rows drawn at a time: in float64, and twice


class Job(NamedTuple):
    """One worker's part in a sub-round."""

    plan: list  # a box with the plan
    bucket: int
    key: int  # of the order of samples in this epoch
    part: tuple[int, int, int]  # from, to and of how many: which share of the bucket it is
    loss: str
    P: np.ndarray
    rates: np.ndarray
    cap: float
    rotations: list[np.ndarray | None]  # to the basis of this round, for each block


class Told(NamedTuple):
    """What comes back beside the blocks: numbers for the driver."""

    squares: float
    grams: list[np.ndarray]  # of each block, or about so


class Worker:
    """A Ray actor. `number` is its place among the workers."""

    def __init__(self, number: int, threads: int, gpu: bool):
        self.number, self.gpu = number, gpu
        self.engine: Engine = open_engine("cuda" if gpu else "cpu", threads)
        self.algebra = NumpyAlgebra()
        self._buckets: dict[str, buckets.Buckets] = {}
        self._held = aligned(0, 1, np.float64)

    def ready(self) -> None:
        """Answers once the worker is there."""

    def where(self) -> tuple[str, int]:
        """The node and the process."""
        import ray

        return ray.get_runtime_context().get_node_id(), os.getpid()

    def call(self, split, method: str, *arguments) -> Any:
        """One of the functions below, of the samples of a split."""
        return _OF_SAMPLES[method](split, *arguments)

    def cut(self, box: list, number: int) -> Any:
        """A split as pieces, one for each worker."""
        pieces = self._plan(box).plan.cut(number)
        return tuple(pieces) if len(pieces) > 1 else pieces[0]

    def add(self, box: list, number: int, piece: Piece) -> None:
        self._plan(box).add(number, piece)

    def sizes(self, box: list) -> dict[int, int]:
        return self._plan(box).sizes()

    def forget(self, name: str) -> None:
        self._buckets.pop(name, None)
        buckets.forget(name)

    def run(self, job: Job, *blocks: np.ndarray) -> tuple:
        """The blocks after a part of a bucket was run on them, and what the driver is told."""
        loss, rank = LOSSES[job.loss], blocks[0].shape[1]
        ends = np.cumsum([len(block) for block in blocks])
        X = self._room(int(ends[-1]), rank, blocks[0].dtype)
        places = np.split(X, ends[:-1])
        for place, block, rotation in zip(places, blocks, job.rotations, strict=True):
            self._into(place, block, rotation)
        engine = self.engine
        samples = self._plan(job.plan).open(job.bucket)
        seed = np.random.SeedSequence([job.key, job.bucket]).generate_state(1, np.uint64)[0]
        factors, squares = Factors(engine.put(X)), 0.0
        dealt: Any = samples.dealt if self.gpu else samples.mini_batches
        for chunk in dealt(seed >> np.uint64(1), *share(job.part, len(samples))):
            squares += engine.run(factors, job.P, job.rates, loss, chunk, job.cap)
        X = engine.get(factors.X)
        # Rows without the room between them, should there be any.
        places = [np.ascontiguousarray(place) for place in np.split(X, ends[:-1])]
        return (*places, Told(squares, [self._about(place) for place in places]))

    def gram(self, block: np.ndarray) -> np.ndarray:
        return self.algebra.gram(block)

    def take(self, block: np.ndarray, rows: np.ndarray) -> np.ndarray:
        return block[rows]

    def fresh(self, empty: Factors, side: int, start: int, stop: int) -> np.ndarray:
        """Rows of a side before anything is learned."""
        rows = np.empty((stop - start, empty.rank), empty.X.dtype)
        for first in range(start, stop, _DRAWN):
            last = min(first + _DRAWN, stop)
            rows[first - start : last - start] = empty.fresh(side, first, last)
        return rows

    def sow(
        self, block: np.ndarray, rotation, start: int, stop: int, scale: float, key
    ) -> np.ndarray:
        """The block with fresh columns."""
        block = self.turned(block, rotation)
        block[:, start:] = 0
        rng = np.random.default_rng(key)
        block[:, start:stop] = scale * rng.standard_normal((len(block), stop - start))
        return block

    def turned(self, block: np.ndarray, rotation: np.ndarray | None) -> np.ndarray:
        """A copy, in another basis."""
        out = np.empty_like(block)
        self._into(out, block, rotation)
        return out

    def write(self, block: np.ndarray, rotation: np.ndarray | None, path: str) -> None:
        """To a file, which is there as a whole or not at all."""
        block = self.turned(block, rotation)
        clear_parts(Path(path))
        with whole_file(path) as file:
            np.save(file, block)

    def read(self, path: str) -> np.ndarray:
        return np.load(path, allow_pickle=False)

    def _room(self, rows: int, rank: int, dtype) -> np.ndarray:
        """A place for blocks, the same again and again: memory that is new has to be cleared."""
        if self._held.shape[1] != rank or self._held.dtype != dtype or len(self._held) < rows:
            self._held = aligned(rows, rank, dtype)
        return self._held[:rows]

    def _into(self, place: np.ndarray, block: np.ndarray, rotation: np.ndarray | None) -> None:
        if rotation is None:
            place[...] = block
        else:
            self.algebra.transform(block, rotation, place)

    def _about(self, block: np.ndarray) -> np.ndarray:
        few = len(block) <= _FEW
        return self.algebra.gram(block) if few else self.algebra.sketch(block)

    def _plan(self, box: list) -> buckets.Buckets:
        import ray

        plan: Any = ray.get(box[0])
        if plan.name not in self._buckets:
            place = ray.get_runtime_context().get_node_id()
            self._buckets[plan.name] = buckets.Buckets(plan, self.number, place)
        return self._buckets[plan.name]


def _found(split, loss: str, named: bool) -> tuple[list[np.ndarray], float, float]:
    """The ids of every column (the largest, of row numbers), the sum of the squared targets, and
    the largest of them."""
    columns, y = split.ids()
    for name, ids in zip(split.columns, columns, strict=True):
        if not named and not (ids.dtype.kind == "i" and ids.min() >= 0):
            raise split.refused(name, "row numbers are whole and not negative")
    if bad := bad_target(y, LOSSES[loss]):
        raise split.refused(split.target, bad[1])
    if len(columns) == 3 and (columns[0] == columns[1]).any():
        twice = columns[0][columns[0] == columns[1]][0]
        raise split.refused(split.columns[0], f"a triplet compares item {twice} with itself")
    held = [np.unique(ids) if named else ids.max(keepdims=True) for ids in columns]
    return held, float(y @ y), float(np.abs(y).max())


def _picked(split, positions: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    index, targets = split.read()
    return index[positions], targets[positions]


def _counted(split, rows: np.ndarray, columns: list[int], without: np.ndarray) -> np.ndarray:
    """How often each of the rows, which are sorted, is named in these columns."""
    index = np.delete(split.read()[0][:, columns], without, axis=0).ravel()
    at = np.searchsorted(rows, index)
    at[at == len(rows)] = 0
    return np.bincount(at[rows[at] == index], minlength=len(rows)).astype(np.int32)


_OF_SAMPLES = {"found": _found, "picked": _picked, "counted": _counted}
