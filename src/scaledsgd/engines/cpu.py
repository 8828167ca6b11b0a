"""CPU threads: lock-free over the rows of X, outside the GIL, each on its part of a chunk."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache, partial
from itertools import pairwise
from typing import Any

import numpy as np

from ..algebra import NumpyAlgebra
from ..factors import LINE, Factors, aligned, floored
from ..losses import Loss
from ..observations import Observations
from . import Chunk, Engine, kernels
from .apart import Apart, Drawn, blocks, meetings
from .shuffle import Samples, Span

# Bytes of X that are fetched in time without being asked for: twice a usual second-level cache.
NEAR = 4 << 20

# A thread gets at least this many samples: fewer run sooner than a thread wakes.
_LEAST = 4096


class CpuEngine(NumpyAlgebra, Engine):
    """Runs rounds on `n_jobs` threads.

    >>> from scaledsgd.losses import LOSSES
    >>> factors = Factors(np.array([[1.0], [2.0]]))
    >>> chunk = Chunk(np.array([[0, 1]]), np.array([1.0]))
    >>> CpuEngine().run(factors, np.full(1, 0.2), np.ones(2), LOSSES["squared"], chunk)
    1.0
    >>> factors.X[:, 0]
    array([0.6, 1.8])
    """

    longest = 32  # longer rounds save less than a percent of refreshing

    def __init__(self, n_jobs: int = 1):
        self.n_jobs = n_jobs
        self.repairs = 0

    def put(self, X: np.ndarray) -> np.ndarray:
        """X at a place where no row takes up more lines of the cache than it must."""
        if X.ndim == 1 or X.ctypes.data % LINE == 0:
            return X
        held = aligned(len(X), X.shape[1], X.dtype)
        held[...] = X
        return held

    def get(self, X: np.ndarray) -> np.ndarray:
        return X

    def finite(self, X: np.ndarray, index: np.ndarray) -> bool:
        return bool(np.isfinite(X[index] if index.size < len(X) else X).all())

    def rows(self, X: np.ndarray, index: np.ndarray) -> np.ndarray:
        """Rows of X as an array here."""
        return X[index]

    def samples(
        self, observations: Observations, shift: list[int], dtype, rng
    ) -> Samples | Apart:  # fmt: skip
        """A shuffled training copy whose indices point into the stacked X."""
        index, targets = observations.take(dtype)
        for column, by in enumerate(shift):
            if by:
                index[:, column] += by
        negatives, jobs, share = observations.negatives, self.n_jobs, (rng, self._threads)
        (left, right), begin = observations.shape, max(shift)
        rows = begin + right if begin else left
        meet = meetings(index.shape[1], jobs, observations.symmetric)
        if jobs == 1 or min(len(targets), self.longest * rows) < _LEAST * meet.groups.size:
            redraw = negatives and partial(negatives.redraw, first=shift[1])
            return Samples(index, targets, *share, jobs, redraw)
        if negatives:
            return Drawn(index, targets, left, shift[1], negatives, *share, jobs)
        # In comparisons every row may meet every other.
        sides = [slice(0, rows)]
        if begin and index.shape[1] == 2:
            sides = [slice(0, left), slice(begin, rows)]
        return Apart(index, targets, blocks(index, rows, sides, meet.blocks), meet, *share, jobs)

    def run(
        self, factors: Factors, P: np.ndarray, rates: np.ndarray, loss: Loss, chunk: Chunk,
        cap: float = np.inf,
    ) -> float:  # fmt: skip
        """One pass with a frozen diagonal P; returns the sum of squared slopes."""
        X, real = factors.X, factors.X.dtype.type
        # Without the gap, which a model from a file does not have: the bits must not depend on it.
        options = {"capped": cap < np.inf, "far": factors.d * X[:1].nbytes > NEAR}
        frozen = P.astype(real), rates.astype(real), real(cap)
        step = kernels.kernel(kernels.rounds, loss, factors.rank, **options)

        def work(part) -> tuple[float, int]:
            squares, count = 0.0, 0
            for some in part:
                squares += step(X, *frozen, *some)
                count += len(some.targets)
            return squares, count

        # Threads that write to the same small table pass its lines back and forth, and two of them
        # are slower than one.
        apart = isinstance(chunk.targets, Span)
        told = []
        for parts in self._turns(chunk) if apart or options["far"] else [[[chunk]]]:
            told += self._threads(work, parts)
        squares, count = np.sum(told, axis=0) if told else (0.0, 0)
        # Threads are dealt whole blocks: now a few samples more than asked for, now fewer.
        return float(squares / count * len(chunk.targets)) if count else 0.0

    def run_sampled(
        self, factors: Factors, P: np.ndarray, eta: float, rates: np.ndarray, loss: Loss,
        chunk: Chunk,
    ) -> float:  # fmt: skip
        """One pass with the paper's per-sample P, which is brought up to date in place."""
        step = kernels.kernel(kernels.sampled, loss)
        total = 0.0
        for turn in self._turns(chunk):
            parts = [_together(part) for part in turn]
            total += self._sampled(step, factors, P, eta, rates, parts)
        return total

    def _sampled(self, step, factors, P, eta: float, rates, parts: list[Chunk]) -> float:
        """Every thread works on a copy of P; at the end the changes of the Gram that each has seen
        are added up. A thread whose P breaks down stops, and all go on from an inverse of X."""
        X, total = factors.X, 0.0
        while parts:
            jobs = [(part, P.copy(), np.zeros_like(P)) for part in parts]
            results = self._threads(lambda job: step(X, *job[1:], rates, *job[0]), jobs)
            total += sum(slopes for _, slopes, _ in results)
            broken = sum(not sound for *_, sound in results)
            if broken:
                self.repairs += broken
                P[...] = self.inverse(factors, eta)
            elif len(jobs) == 1:
                P[...] = jobs[0][1]
            else:
                P[...] = np.linalg.inv(np.linalg.inv(P) + sum(change for *_, change in jobs))
            parts = [
                Chunk(part.index[done:], part.targets[done:])
                for part, (done, *_) in zip(parts, results, strict=True)
                if done < len(part.targets)
            ]
        return total

    def inverse(self, factors: Factors, eta: float) -> np.ndarray:
        """(X^T X + eta I)^-1 of every side, a singular Gram held at its floor."""
        inverses = []
        for side in factors.sides:
            values, Q = np.linalg.eigh(self.gram(side))
            inverses.append((Q / floored(values + eta)) @ Q.T)
        return np.stack(inverses)

    def scores(self, factors: Factors, index: np.ndarray, loss: Loss) -> np.ndarray:
        """z of every sample."""
        X = factors.X
        out = np.empty(len(index), X.dtype)
        score = kernels.kernel(kernels.scoring, loss, factors.rank, far=X.nbytes > NEAR)
        self._threads(lambda part: score(X, *part), self._split(Chunk(index, out)))
        return out

    def _turns(self, chunk: Chunk) -> Iterable[list]:
        """Lists of what threads may run at the same time; each is something that gives chunks."""
        if isinstance(chunk.targets, Span):
            span: Any = chunk.targets
            return span.data.turns(len(span))
        return [[[part] for part in self._split(chunk)]]

    def _split(self, chunk: Chunk) -> list[Chunk]:
        m = len(chunk.targets)
        threads = max(1, min(self.n_jobs, m // _LEAST))
        cuts = [m * k // threads for k in range(threads + 1)]
        return [Chunk(chunk.index[a:b], chunk.targets[a:b]) for a, b in pairwise(cuts)]

    def _threads(self, work: Callable, parts: list) -> list:
        if len(parts) <= 1:
            return [work(part) for part in parts]
        return list(_pool(self.n_jobs, os.getpid()).map(work, parts))


def _together(part: Iterable[Chunk]) -> Chunk:
    """All chunks of a part as one. (Each is valid only until the next.)"""
    copies = [(some.index.copy(), some.targets.copy()) for some in part]
    return Chunk(*(np.concatenate(column) for column in zip(*copies, strict=True)))


@lru_cache(maxsize=8)
def _pool(threads: int, process: int) -> ThreadPoolExecutor:
    """Threads are started once a process: a forked child has none of its parent's."""
    return ThreadPoolExecutor(threads)
