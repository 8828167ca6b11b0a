"""CPU threads, outside the GIL: on rows of their own or, of few samples, lock-free on all of X."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache

import numpy as np

from ...core.choices import Choices
from ...core.factors import Factors
from ...core.linalg import LINE, NumpyAlgebra, aligned, floored, pitch
from ...core.losses import Loss
from ...core.observations import Observations
from ..base import Chunk, Engine, SoftmaxRound, SquaredRound
from . import choice_kernels, step_kernels
from .choices import run_softmax, run_squared
from .sample_order import MiniBatch, Next
from .thread_blocks import TOGETHER, ThreadBlocks, blocks, in_turn, meetings

# Bytes of X that are fetched in time without being asked for: they are in the second-level cache.
NEAR = 1 << 20

# A thread gets at least this many samples: fewer run sooner than a thread wakes.
_LEAST = 4096


class CpuEngine(NumpyAlgebra, Engine):
    """Runs rounds on `n_jobs` threads.

    >>> from scaledsgd.core.losses import LOSSES
    >>> factors = Factors(np.array([[1.0], [2.0]]))
    >>> chunk = Chunk(np.array([[0, 1]]), np.array([1.0]))
    >>> CpuEngine().run(factors, np.full(1, 0.2), np.ones(2), LOSSES["squared"], chunk)
    1.0
    >>> factors.X[:, 0]
    array([0.6, 1.8])
    """

    solves_rows = True
    longest = 32  # longer rounds save less than a percent of refreshing

    def __init__(self, n_jobs: int = 1):
        self.n_jobs = n_jobs
        self.repairs = 0
        self._mean = 0.0  # square of a slope

    def put(self, X: np.ndarray) -> np.ndarray:
        """X at a place where no row takes up more lines of the cache than it must."""
        if X.ndim == 1:
            return X
        if X.ctypes.data % LINE == 0 and X.strides[0] == pitch(X.shape[1], X.dtype):
            return X
        held = aligned(len(X), X.shape[1], X.dtype)
        held[...] = X
        return held

    def get(self, X: np.ndarray) -> np.ndarray:
        return X

    def finite(self, X: np.ndarray, index: np.ndarray) -> bool:
        return bool(np.isfinite(X[index] if index.size < len(X) else X).all())

    def scale(self, X: np.ndarray, columns: np.ndarray) -> None:
        step_kernels.scale(X, columns.astype(X.dtype))

    def shrink(self, X: np.ndarray, rows: np.ndarray, columns: np.ndarray) -> None:
        step_kernels.shrink(X, rows.astype(X.dtype), columns.astype(X.dtype))

    def squares(self, X: np.ndarray, weights: np.ndarray) -> np.ndarray:
        return choice_kernels.squares(choice_kernels.padded(X), X.shape[1], weights)

    def set_lengths(self, X: np.ndarray, length: float, rng: np.random.Generator) -> None:
        lengths = np.linalg.norm(X, axis=1)
        empty = lengths < 1e-6
        X[empty] = rng.standard_normal((int(empty.sum()), X.shape[1]))
        lengths[empty] = np.linalg.norm(X[empty], axis=1)
        X *= (length / lengths)[:, None].astype(X.dtype)

    def rows(self, X: np.ndarray, index: np.ndarray) -> np.ndarray:
        """Rows of X as an array here."""
        return X[index]

    def samples(self, observations: Observations, shift: list[int], dtype, rng) -> ThreadBlocks:
        """A shuffled training copy whose indices point into the stacked X."""
        index, targets = observations.take(dtype)
        for column, by in enumerate(shift):
            if by:
                index[:, column] += by
        jobs, share = self.n_jobs, (rng, self._threads)
        (left, right), begin = observations.shape, max(shift)
        rows = begin + right if begin else left
        meet = meetings(index.shape[1], jobs, observations.symmetric)
        # The more threads, the more turns: of too few samples each would be over at once.
        while jobs > 1 and min(len(targets), self.longest * rows) < _LEAST * meet.groups.size:
            jobs //= 2
            meet = meetings(index.shape[1], jobs, observations.symmetric)
        if jobs == 1:
            block = np.zeros(rows, np.uint8)
            return ThreadBlocks(index, targets, block, TOGETHER, *share, self.n_jobs)
        # In comparisons every row may meet every other.
        sides = [slice(0, rows)]
        if begin and index.shape[1] == 2:
            sides = [slice(0, left), slice(begin, rows)]
        block = blocks(index, rows, sides, meet.blocks)
        return ThreadBlocks(index, targets, block, meet, *share, jobs)

    def run(
        self, factors: Factors, P: np.ndarray, rates: np.ndarray, loss: Loss,
        samples: Next | Chunk | MiniBatch, cap: float = np.inf,
    ) -> float:  # fmt: skip
        """One pass with a frozen diagonal P; returns the sum of squared slopes."""
        X, real = factors.X, factors.X.dtype.type
        # Without the gap, which a model from a file does not have: the bits must not depend on it.
        options = {"capped": cap < np.inf, "far": factors.d * X[:1].nbytes > NEAR}
        frozen = np.outer(rates, P).astype(real), real(cap)
        step = step_kernels.kernel(step_kernels.rounds, loss, factors.rank, **options)

        def work(part: Iterable[MiniBatch]) -> tuple[float, int]:
            squares, count = 0.0, 0
            for batch in part:
                squares += step(X, *frozen, *batch)
                count += len(batch)
            return squares, count

        # Threads that write to the same small table pass its lines back and forth, and two of them
        # are slower than one.
        ordered = isinstance(samples, Next)
        together = not (ordered and samples.data.groups > 1)
        threads = in_turn if together and not options["far"] else self._threads
        told = []
        for parts in self._sub_rounds(samples):
            told += threads(work, parts)
        squares, count = np.sum(told, axis=0) if told else (0.0, 0)
        if not ordered:
            return float(squares)
        # Samples are dealt in whole blocks: now a few more than asked for, now fewer.
        self._mean = float(squares / count) if count else self._mean
        return self._mean * len(samples)

    def run_sampled(
        self, factors: Factors, P: np.ndarray, eta: float, rates: np.ndarray, loss: Loss,
        samples: Next | Chunk,
    ) -> float:  # fmt: skip
        """One pass with the paper's per-sample P, which is brought up to date in place."""
        step = step_kernels.kernel(step_kernels.sampled, loss)
        total = 0.0
        for tasks in self._sub_rounds(samples):
            parts = [_together(part) for part in tasks]
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

    def run_squared(
        self, factors: Factors, choices: Choices, order: np.ndarray, round: SquaredRound
    ) -> float:
        return run_squared(factors, choices, order, round, self._threads, self.n_jobs)

    def run_softmax(
        self, factors: Factors, choices: Choices, order: np.ndarray, negatives: np.ndarray,
        round: SoftmaxRound,
    ) -> float:  # fmt: skip
        threads, jobs = self._threads, self.n_jobs
        return run_softmax(factors, choices, order, negatives, round, threads, jobs)

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
        score = step_kernels.kernel(step_kernels.scoring, loss, factors.rank, far=X.nbytes > NEAR)
        parts = MiniBatch(index, out).split(self._few(len(index)))
        self._threads(lambda part: score(X, part.index, part.targets), parts)
        return out

    def _sub_rounds(self, samples: Next | Chunk | MiniBatch) -> Iterable[list[Iterable[MiniBatch]]]:
        """Lists of what threads may run at the same time."""
        if isinstance(samples, Next):
            return samples.data.sub_rounds(len(samples))
        batch = (
            samples if isinstance(samples, MiniBatch) else MiniBatch(samples.index, samples.targets)
        )
        return [[[part] for part in batch.split(self._few(len(batch)))]]

    def _few(self, samples: int) -> int:
        """Threads for so many samples."""
        return max(1, min(self.n_jobs, samples // _LEAST))

    def _threads(self, work: Callable, parts: list) -> list:
        if len(parts) <= 1:
            return [work(part) for part in parts]
        return list(_pool(self.n_jobs, os.getpid()).map(work, parts))


def _together(part: Iterable[MiniBatch]) -> Chunk:
    """All hands of a part as one chunk."""
    chunks = [batch.chunk() for batch in part]
    return Chunk(*(np.concatenate(column) for column in zip(*chunks, strict=True)))


@lru_cache(maxsize=8)
def _pool(threads: int, process: int) -> ThreadPoolExecutor:
    """Threads are started once a process: a forked child has none of its parent's."""
    return ThreadPoolExecutor(threads)
