"""A Ray cluster: the same rounds, by workers of which no two ever hold the same rows."""

from __future__ import annotations

import weakref
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any
from uuid import uuid4

import numpy as np
from threadpoolctl import ThreadpoolController

from ...core.factors import Factors
from ...core.losses import Loss
from ...core.observations import Chunk, Observations
from ..base import Engine, open_engine
from ..cpu.sample_order import Next, share
from ..schedule import Schedule, schedule
from .choices import ChoiceEngine
from .dataset import ClusterSamples, DistributedObservations
from .distributed_array import Block, DistributedArray
from .splits import Plan
from .worker import Job
from .worker_pool import WorkerPool

# Samples whose rows come to the driver for an evaluation: their mean loss is good to a percent of
# the loss's spread.
_EVALUATED = 1 << 14

# Entries of files that come to the driver, so that more than steps can be tried: some 400 MB.
_FETCHED = 1 << 24


class RayEngine(ChoiceEngine):
    """Runs rounds on `workers` workers of a Ray cluster.

    address : of a cluster, as Ray spells it; "local" starts one on this machine, for this process
        and for nobody else; "auto" finds the one that this machine belongs to, or starts one.
    threads, gpus : of each worker.
    checkpoint : a folder that all machines share. After every epoch the state of the run goes
        there, and the same call begun anew takes up from it.
    verbose : tell on stderr how far files are read, and samples sorted.

    >>> engine = RayEngine("local", workers=2)  # which starts when it is first needed
    >>> model = MatrixCompleter(rank=2, engine=engine)  # doctest: +SKIP
    >>> model.fit("ratings/*.parquet", row="user", column="film", value="stars")  # doctest: +SKIP
    >>> engine.close()
    """

    longest = 64  # blocks change hands after every round: in longer ones that is a few percent
    repairs = 0

    def __init__(
        self, address: str = "auto", workers: int = 2, *, threads: int = 1, gpus: float = 0,
        checkpoint: str | None = None, verbose: bool = False,
    ):  # fmt: skip
        if workers < 1 or threads < 1:
            raise ValueError(f"workers={workers}, threads={threads}: at least one of each")
        self.address, self.workers = address, workers
        self.groups_of_items = workers
        self.threads, self.gpus, self.checkpoint = threads, gpus, checkpoint
        self.verbose = verbose
        self._pool: WorkerPool | None = None
        self._starts = np.zeros(1, np.int64)  # of the blocks of X
        self._mean = 0.0  # of the squared slopes of the last samples
        self._libraries = ThreadpoolController()
        self._host: Engine | None = None

    def __repr__(self) -> str:
        return f"RayEngine({self.address!r}, workers={self.workers})"

    def __deepcopy__(self, memo) -> RayEngine:  # for sklearn.clone: settings, no connection
        return RayEngine(
            self.address, self.workers, threads=self.threads, gpus=self.gpus,
            checkpoint=self.checkpoint, verbose=self.verbose,
        )  # fmt: skip

    @property
    def pool(self) -> WorkerPool:
        """The workers, who start when they are first needed."""
        if self._pool is None:
            how = self.address, self.workers, self.threads, self.gpus, self.verbose
            self._pool = WorkerPool(*how)
        return self._pool

    @property
    def host(self) -> Engine:
        if self._host is None:
            self._host = open_engine("cpu", self.threads)
        return self._host

    def fetched(self, observations: Any) -> Observations | None:
        if not isinstance(observations, DistributedObservations):
            return observations
        return observations.fetched() if len(observations) <= _FETCHED else None

    def close(self) -> None:
        """Let the workers go. What they hold has to be fetched before, as `model.factors` does."""
        if self._pool is not None:
            self._pool.close()
            self._pool = None

    def open_files(
        self, files, columns: tuple, target: str | None, loss: Loss, symmetric: bool
    ) -> DistributedObservations:
        """Observations that stay in their files."""
        return DistributedObservations.files(self.pool, files, columns, target, loss, symmetric)

    def start(self, shape, rank: int, loss: Loss, *, symmetric: bool, dtype, **how) -> Factors:
        """Gaussian factors, drawn where they will lie."""
        factors = Factors.start((0, 0), rank, symmetric=symmetric, dtype=dtype, **how)
        each = self._lay_out(shape, symmetric, loss).blocks // len(factors.sides)
        blocks = []
        for side in range(len(factors.sides)):
            for first, last in pairwise(_even(shape[side], each)):
                ref = self.pool[len(blocks)].fresh.remote(factors, side, first, last)
                blocks.append(Block(ref, last - first))
        return replace(
            factors, X=DistributedArray(blocks, rank, dtype), rows=None if symmetric else shape[0]
        )

    def packed(self, factors: Factors) -> Factors:
        if not factors.gap:
            return factors
        return replace(factors, X=factors.compact(), gap=0, room=None)

    def put(self, X: Any) -> Any:
        """X in blocks; the driver keeps no copy."""
        if isinstance(X, DistributedArray) or X.ndim == 1:
            return X
        import ray

        parts = pairwise(self._starts.tolist())
        blocks = [Block(ray.put(np.ascontiguousarray(X[a:b])), b - a) for a, b in parts]
        return DistributedArray(blocks, X.shape[1], X.dtype)

    def get(self, X: DistributedArray) -> Any:
        """X stays where it is until somebody asks for it as an array."""
        return X

    def samples(self, observations: Observations, shift: list[int], dtype, rng) -> ClusterSamples:
        """The samples on the workers' disks, by the blocks that they touch."""
        given = DistributedObservations.handed_over(observations, self.pool)
        meetings = self._lay_out(given.shape, given.symmetric, given.loss)
        dtype = np.result_type(dtype, np.complex64) if given.weighted else np.dtype(dtype)
        plan = Plan(
            uuid4().hex, given.splits, given.held_out, meetings, self._starts, shift,
            str(dtype), int(rng.integers(2**31)), self.workers,
        )  # fmt: skip
        seen = given.sampled(min(_EVALUATED, len(given)), rng)
        box, sizes = self.pool.sort(plan)
        if given.copies is not None:
            self.pool.forget(given.copies.name)
        seen = Chunk(seen.index + np.array(shift), seen.targets.astype(dtype))
        data = ClusterSamples(plan, box, sizes, seen)
        weakref.finalize(data, self.pool.forget, plan.name)
        return data

    def run(
        self, factors: Factors, P: np.ndarray, rates: np.ndarray, loss: Loss, samples: Next,
        cap: float = np.inf,
    ) -> float:  # fmt: skip
        """The next samples of the epoch, with a frozen diagonal P; returns the sum of squared
        slopes."""
        X: Any = factors.X
        data, told, ran = samples.data, [], 0
        for s, part in data.visits(len(samples)):
            for g, group in enumerate(data.plan.schedule.groups[s]):
                bucket = s * len(data.plan.schedule.groups[s]) + g
                first, last = share(part, data.sizes.get(bucket, 0))
                if first == last:
                    continue
                ran += last - first
                blocks = [X.blocks[number] for number in group]
                rotations = [block.rotation for block in blocks]
                step = loss.name, P, rates, cap, rotations, data.unit
                job = Job(data.box, bucket, data.key, part, *step)
                call = self.pool[g].run.options(num_returns=len(blocks) + 1)
                *refs, answer = call.remote(job, *(block.ref for block in blocks))
                for block, ref in zip(blocks, refs, strict=True):
                    block.becomes(Block(ref, block.rows))
                told.append((blocks, answer))
        squares = 0.0
        answers = self.pool.get([answer for _, answer in told])
        for (blocks, _), answer in zip(told, answers, strict=True):
            squares += answer.squares
            for block, G in zip(blocks, answer.grams, strict=True):
                block.sketch = G
        # Buckets are dealt in whole blocks: now a few samples more than asked for, now fewer.
        self._mean = squares / ran if ran else self._mean
        return self._mean * len(samples)

    def scores(self, factors: Factors, index: np.ndarray, loss: Loss) -> np.ndarray:
        """z of every sample, computed here."""
        X = factors.X
        if isinstance(X, DistributedArray):
            rows, index = np.unique(index, return_inverse=True)
            X = self.rows(X, rows)
        return self.host.scores(Factors(X), index.astype(np.int64), loss)

    def tally(
        self, factors: Factors, loss: Loss, data: ClusterSamples, without: np.ndarray | None = None
    ) -> tuple[np.ndarray, np.ndarray]:
        """By the workers, each of whom looks at its own samples."""
        X: Any = factors.X
        total, count = np.zeros(len(X)), np.zeros(len(X))
        calls, told = [], []
        for bucket, rows in data.buckets():
            blocks = [X.blocks[number] for number in data.plan.groups[bucket]]
            whole = 0, (0, 1, 1), loss.name, np.ones(X.rank), np.zeros(0), np.inf
            job = Job(data.box, bucket, *whole, [b.rotation for b in blocks], data.unit)
            skipped = None if without is None else without[rows]
            call = self.pool[data.plan.owner(bucket)].tally
            calls.append(call.remote(job, skipped, *(block.ref for block in blocks)))
            told.append(rows)
        for rows, (squares, named) in zip(told, self.pool.get(calls), strict=True):
            total[rows] += squares
            count[rows] += named
        return total, count

    def naming(self, data: ClusterSamples, rows: np.ndarray) -> Chunk:
        asked = [(bucket, own) for bucket, own in data.buckets() if rows[own].any()]
        calls = [
            self.pool[data.plan.owner(bucket)].naming.remote(data.box, bucket, data.unit, rows[own])
            for bucket, own in asked
        ]
        found = self.pool.get(calls)
        index = [own[part.index] for (_, own), part in zip(asked, found, strict=True)]
        if not index:
            return Chunk(data.index[:0], data.targets[:0])
        return Chunk(np.concatenate(index), np.concatenate([part.targets for part in found]))

    def set_rows(self, X: DistributedArray, index: np.ndarray, rows: np.ndarray) -> None:
        for number, (block, at, own) in enumerate(list(X.named(index))):
            block.changed(self.pool[number].place, own, rows[at])

    def rows(self, X: DistributedArray, index: np.ndarray) -> np.ndarray:
        """The rows that an index names."""
        out, named = np.empty((index.size, X.rank), X.dtype), list(X.named(index.ravel()))
        calls = [
            self.pool[number].take.remote(block.ref, rows)
            for number, (block, _, rows) in enumerate(named)
        ]
        answers = self.pool.get(calls)
        # A thread of BLAS then waits for more, spinning for 30 ms on a core that a worker may need.
        with self._libraries.limit(limits=1, user_api="blas"):
            for (block, at, _), rows in zip(named, answers, strict=True):
                out[at] = block.present(rows)
        return out.reshape(*index.shape, X.rank)

    def finite(self, X: DistributedArray, index: np.ndarray) -> bool:
        return all(np.isfinite(G).all() for b in X.blocks if (G := b.sketch) is not None)

    def gram(self, X: DistributedArray, exact: bool = True) -> np.ndarray:
        """X^T X from the Grams of its blocks."""
        unknown = [block for block in X.blocks if block.gram is None]
        calls = [self.pool[n].gram.remote(block.ref) for n, block in enumerate(unknown)]
        for block, G in zip(unknown, self.pool.get(calls), strict=True):
            block.gram = G if block.rotation is None else block.rotation.T @ G @ block.rotation
        return np.sum([block.gram for block in X.blocks], axis=0)

    def sketch(self, X: DistributedArray) -> np.ndarray:
        if any(block.sketch is None for block in X.blocks):
            return self.gram(X)
        return np.sum([block.sketch for block in X.blocks], axis=0)

    def transform(self, X: DistributedArray, T: np.ndarray) -> None:
        """X <- X T, when it is next touched."""
        for block in X.blocks:
            block.turned(T)

    def sow(self, factors: Factors, start: int, stop: int, scale: float, key: list[int]) -> None:
        geo, number = np.sqrt(np.prod(np.sqrt(factors.shape))), 0
        sides: Any = factors.sides
        for side in sides:
            for block in side.blocks:
                small = scale * geo / np.sqrt(len(side))
                block.changed(self.pool[number].sow, start, stop, small, [*key, number])
                number += 1

    def write(self, folder: Path, arrays: list[DistributedArray], stem: str) -> list[list[str]]:
        """Every block to a file, from which it comes from now on: should it be lost with its
        machine, Ray reads that instead of going back to the beginning."""
        known: dict[tuple, Block] = {}
        calls = []
        for block in (block for X in arrays for block in X.blocks):
            same = block.ref, id(block.rotation)
            if same in known:
                block.becomes(replace(known[same]))
            elif block.file is None:
                block.file = f"{stem}-{len(calls)}.npy"
                worker, path = self.pool[len(calls)], str(folder / block.file)
                calls.append(worker.write.remote(block.ref, block.rotation, path))
                block.ref, block.rotation = worker.read.remote(path), None
                known[same] = block
        self.pool.get(calls)
        return [[str(block.file) for block in X.blocks] for X in arrays]

    def read(self, folder: Path, names: list[str], like: DistributedArray) -> DistributedArray:
        """Blocks from their files."""
        blocks = [
            Block(
                self.pool[number].read.remote(str(folder / name)),
                block.rows,
                file=name,
                place=block.place,
            )
            for number, (name, block) in enumerate(zip(names, like.blocks, strict=True))
        ]
        return DistributedArray(blocks, like.rank, like.dtype)

    def _lay_out(self, shape, symmetric: bool, loss: Loss) -> Schedule:
        """Cut the rows into blocks, of which none has rows of both sides."""
        meetings = schedule(loss.arity, self.workers, symmetric)
        sides, starts = [shape[0]] if symmetric else list(shape), [0]
        for rows in sides:
            starts += [starts[-1] + end for end in _even(rows, meetings.blocks // len(sides))[1:]]
        self._starts = np.array(starts)
        return meetings


def _even(rows: int, parts: int) -> list[int]:
    """Where the parts begin, and the end."""
    return [rows * k // parts for k in range(parts + 1)]
