"""CPU threads, outside the GIL: on rows of their own or, in a stream, lock-free on all of X."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import pairwise

import numpy as np

from ...core.choices import Choices
from ...core.factors import Factors
from ...core.linalg import LINE, aligned, floored, lengths, pitch
from ...core.losses import Loss
from ...core.memory import cores
from ...core.observations import Observations
from ..base import Chunk, Engine, SoftmaxRound, SquaredRound
from ..schedule import Schedule
from . import basis_kernels, choice_kernels, step_kernels
from .choices import run_softmax, run_squared
from .crew import Crew, one_thread_each
from .sample_order import MiniBatch, Next
from .thread_blocks import TOGETHER, Plan, ThreadBlocks, blocks, meetings
from .turns import counters

# Bytes of X that are fetched in time without being asked for: they are in the second-level cache.
NEAR = 1 << 20

# Threads that share nothing but X get at least so many samples each: fewer run sooner than a thread
# wakes. Those that wait for each other get more, and so many in a turn.
_LEAST = 4096
_WOKEN, _SHORT = 16384, 256
_NUMBERS = 1 << 18  # of X that a thread looks at, or more


class CpuEngine(Engine):
    """Runs rounds on `n_jobs` threads; -1 for all cores that this process may use.

    >>> from scaledsgd.core.losses import LOSSES
    >>> factors = Factors(np.array([[1.0], [2.0]]))
    >>> chunk = Chunk(np.array([[0, 1]]), np.array([1.0]))
    >>> CpuEngine().run(factors, np.full(1, 0.2), np.ones(2), LOSSES["squared"], chunk)
    1.0
    >>> factors.X[:, 0]
    array([0.6, 1.8])
    """

    longest = 32  # longer rounds save less than a percent of refreshing

    def __init__(self, n_jobs: int = 1):
        self.n_jobs = cores() if n_jobs == -1 else n_jobs
        self.crew = Crew(self.n_jobs)
        self.repairs = 0
        self._mean = 0.0  # square of a slope

    @property
    def host(self) -> CpuEngine:
        return self

    def divided(self, count: int) -> list[Engine]:
        many = min(count, self.n_jobs)
        return [CpuEngine(self.n_jobs // many) for _ in range(many)] if many > 1 else [self]

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
        if index.size < len(X):
            return bool(np.isfinite(X[index]).all())
        return all(self._by_rows(lambda part: np.isfinite(part).all(), X))

    def gram(self, X: np.ndarray, exact: bool = True) -> np.ndarray:
        dtype = np.dtype(np.float64) if exact else X.dtype
        return np.sum(self._by_rows(lambda part: basis_kernels.gram(part, dtype), X), axis=0)

    def transform(self, X: np.ndarray, T: np.ndarray) -> None:
        self._by_rows(lambda part: basis_kernels.transform(part, T), X)

    def basis(self, grams: list[np.ndarray]) -> tuple[list[np.ndarray], np.ndarray]:
        with one_thread_each():  # a thread of BLAS that has been woken spins for a while
            return super().basis(grams)

    def _by_rows(self, work: Callable, X: np.ndarray) -> list:
        """What threads make of some rows each."""
        d, parts = len(X), max(1, min(self.n_jobs, X.size // _NUMBERS))
        cuts = [slice(*cut) for cut in pairwise(d * k // parts for k in range(parts + 1))]
        return self.crew.each(lambda cut: work(X[cut]), cuts)

    def scale(self, X: np.ndarray, columns: np.ndarray) -> None:
        columns = columns.astype(X.dtype)
        step_kernels.scale(X, columns)

    def shrink(self, X: np.ndarray, rows: np.ndarray, columns: np.ndarray) -> None:
        padded = choice_kernels.padded(X)  # rows in one piece, of which several numbers at a time
        step_kernels.shrink(padded, rows.astype(X.dtype), columns.astype(X.dtype))

    def squares(self, X: np.ndarray, weights: np.ndarray) -> np.ndarray:
        return choice_kernels.squares(choice_kernels.padded(X), X.shape[1], weights)

    def set_lengths(self, X: np.ndarray, length: float, rng: np.random.Generator) -> None:
        now = lengths(X)
        empty = now < 1e-6
        X[empty] = rng.standard_normal((int(empty.sum()), X.shape[1]))
        now[empty] = lengths(X[empty])
        X *= (length / now)[:, None].astype(X.dtype)

    def rows(self, X: np.ndarray, index: np.ndarray) -> np.ndarray:
        """Rows of X as an array here."""
        return X[index]

    def samples(self, observations: Observations, shift: list[int], dtype, rng) -> ThreadBlocks:
        """A shuffled training copy whose indices point into the stacked X. Without `rng` they are
        shuffled already."""
        index, targets = observations.take(dtype)
        for column, by in enumerate(shift):
            if by:
                index[:, column] += by
        share = rng, self.crew
        (left, right), begin = observations.shape, max(shift)
        rows = begin + right if begin else left
        meet = self._meetings(observations, min(len(targets), self.longest * rows))
        if len(meet.groups[0]) == 1:
            return ThreadBlocks(index, targets, np.zeros(rows, np.uint8), TOGETHER, *share)
        # In comparisons every row may meet every other.
        sides = [slice(0, rows)]
        if begin and index.shape[1] == 2:
            sides = [slice(0, left), slice(begin, rows)]
        block = blocks(index, rows, sides, meet.blocks)
        return ThreadBlocks(index, targets, block, meet, *share)

    def _meetings(self, observations: Observations, samples: int) -> Schedule:
        """For as many threads as it pays to wake for a round of so many samples, in turns that are
        not over at once."""
        jobs = self.n_jobs
        while True:
            meet = meetings(observations.loss.arity, jobs, observations.symmetric)
            visits, groups, _ = meet.groups.shape
            enough = len(observations) >= _SHORT * visits * groups
            if jobs == 1 or (enough and samples >= _WOKEN * groups):
                return meet
            jobs //= 2

    def run(
        self, factors: Factors, P: np.ndarray, rates: np.ndarray, loss: Loss,
        samples: Next | Chunk | MiniBatch, cap: float = np.inf,
    ) -> float:  # fmt: skip
        """One pass with a frozen diagonal P; returns the sum of squared slopes."""
        X, real = factors.X, factors.X.dtype.type
        # Without the gap, which a model from a file does not have: the bits must not depend on it.
        far = factors.d * X[:1].nbytes > NEAR
        options = {"capped": cap < np.inf, "far": far}
        frozen = X, np.outer(rates, P).astype(real), real(cap)
        if isinstance(samples, Next):
            # Rows that another core has had are far, however few they are.
            options["far"] = far or samples.data.groups > 1
            step = step_kernels.kernel(step_kernels.turns, loss, factors.rank, **options)
            squares, count = self._turns(step, frozen, samples.data, len(samples))
            # Samples are run in whole blocks and visits: now more than asked for, now fewer.
            self._mean = squares / count if count else self._mean
            return self._mean * len(samples)
        step = step_kernels.kernel(step_kernels.rounds, loss, factors.rank, **options)
        # Threads that write to the same small table pass its lines back and forth, and two of them
        # are slower than one.
        threads = self.crew.each if far else in_turn
        return float(sum(threads(lambda part: step(*frozen, *part), self._parts(samples))))

    def _turns(self, step, frozen: tuple, data: ThreadBlocks, samples: int) -> tuple[float, int]:
        """The next samples of an epoch. Returns the sum of their squared slopes, and how many."""
        plan, count = data.next(samples)
        sums = np.zeros((len(plan.visits) if data.groups > 1 else 1, data.groups))
        rooms = [data.room(thread) for thread in range(self.crew.count(data.groups))]

        def work(thread, threads, state, plan=plan, sums=sums) -> None:
            samples = (data.index, data.targets), data.starts, tuple(plan), data.key, data.way
            step(thread, threads, state, frozen, *samples, rooms[thread], sums)

        if len(rooms) > 1:
            self.crew.together(work, data.groups)
            return float(sums.sum()), count
        for one in range(len(plan.visits)):  # to be interrupted between one and the next
            part = slice(one, one + 1)
            now = Plan(*plan[:2], plan.visits[part], plan.parts[part])
            work(0, 1, counters(data.groups), now, sums[part] if data.groups > 1 else sums)
        return float(sums.sum()), count

    def run_sampled(
        self, factors: Factors, P: np.ndarray, eta: float, rates: np.ndarray, loss: Loss,
        samples: Next | Chunk,
    ) -> float:  # fmt: skip
        """One pass with the paper's per-sample P, which is brought up to date in place."""
        step = step_kernels.kernel(step_kernels.sampled, loss)
        total = 0.0
        if isinstance(samples, Next):
            visits = samples.data.sub_rounds(len(samples))
        else:
            visits = [[[part] for part in self._parts(samples)]]
        for tasks in visits:
            parts = [chunk for chunk in map(_joined, tasks) if len(chunk.targets)]
            total += self._sampled(step, factors, P, eta, rates, parts)
        return total

    def _sampled(self, step, factors, P, eta: float, rates, parts: list[Chunk]) -> float:
        """Every thread works on a copy of P; at the end the changes of the Gram that each has seen
        are added up. A thread whose P breaks down stops, and all go on from an inverse of X."""
        X, total = factors.X, 0.0
        while parts:
            jobs = [(part, P.copy(), np.zeros_like(P)) for part in parts]
            results = self.crew.each(lambda job: step(X, *job[1:], rates, *job[0]), jobs)
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
        return run_squared(factors, choices, order, round, self.crew)

    def run_softmax(
        self, factors: Factors, choices: Choices, order: np.ndarray, negatives: np.ndarray,
        round: SoftmaxRound,
    ) -> float:  # fmt: skip
        return run_softmax(factors, choices, order, negatives, round, self.crew)

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
        self.crew.each(lambda part: score(X, part.index, part.targets), parts)
        return out

    def _parts(self, samples: Chunk | MiniBatch) -> list[MiniBatch]:
        """What each thread runs."""
        batch = (
            samples if isinstance(samples, MiniBatch) else MiniBatch(samples.index, samples.targets)
        )
        return batch.split(self._few(len(batch)))

    def _few(self, samples: int) -> int:
        """Threads for so many samples."""
        return max(1, min(self.n_jobs, samples // _LEAST))


def in_turn(work: Callable, parts: list) -> list:
    """The threads of a thread."""
    return [work(part) for part in parts]


def _joined(part: Iterable[MiniBatch]) -> Chunk:
    """All hands of a part as one chunk."""
    chunks = [batch.chunk() for batch in part] or [Chunk(np.zeros((0, 2), int), np.zeros(0))]
    return Chunk(*(np.concatenate(column) for column in zip(*chunks, strict=True)))
