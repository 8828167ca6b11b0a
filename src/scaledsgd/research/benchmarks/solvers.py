"""Completion problems with a known answer, and the methods that compete on them."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse as sp

from ... import DivergenceError, MatrixCompleter
from ...core.linalg import balance
from ...core.observations import Observations
from ...training.history import Progress
from ...training.metrics import recovery_error
from ..synthetic import completion_problem
from . import als

GOAL = 1e-5  # relative error over all entries that counts as solved
EPOCHS = 200
SHAPES = ("symmetric", "square", "6:1")

# In units of d / r, and at natural scale: the largest diverge on most problems, the smallest are
# too slow for most.
SCALED_STEPS = (0.05, 0.1, 0.3)
PLAIN_STEPS = (0.01, 0.03, 0.1)
RIDGES = (0.3, 0.2)  # in units of als.complete: the best pair of eight between 0.02 and 1

# The training error bounds the error from below, but for the luck of the draw: while it is a
# thousandth, whether the other is 1e-5 need not be asked.
_WORTH_ASKING = 1e-3

# GNMR: steps; iterations of the least squares in the first, from one to the next, and at most; and
# after how many steps that leave more than this of the residual it ends.
_OUTER, _INNER, _GROWTH, _MOST = 100, 20, 1.5, 2000
_HARDLY, _STUCK = 0.99, 15

_HUGE = 1e60  # the square of a product of such factors still fits a float64


class Problem(NamedTuple):
    """Entries of left @ right.T, scaled so that the paper's Gaussian start is of their size."""

    index: np.ndarray  # pyright: ignore[reportIncompatibleMethodOverride]
    targets: np.ndarray
    left: np.ndarray
    right: np.ndarray
    symmetric: bool

    @property
    def shape(self) -> tuple[int, int]:
        return len(self.left), len(self.right)

    @property
    def size(self) -> float:
        return float(np.sqrt(np.mean(self.targets**2)))

    def observations(self, loss: str = "squared") -> Observations:
        (i, j), how = self.index.T, {"shape": self.shape, "symmetric": self.symmetric}
        return Observations.pairs(i, j, self.targets, loss=loss, **how)

    def entries(self) -> sp.csr_array:
        """As a sparse matrix, both halves of it if symmetric."""
        i, j = self.index.T
        y = self.targets
        if self.symmetric:
            once = i != j
            i, j = np.concatenate([i, j[once]]), np.concatenate([j, i[once]])
            y = np.concatenate([y, y[once]])
        return sp.csr_array((y, (i, j)), shape=self.shape)

    def error(self, left: np.ndarray, right: np.ndarray) -> float:
        """Over all entries, relative; infinite for factors that have blown up."""
        if not max(float(np.abs(side).max()) for side in (left, right)) < _HUGE:
            return np.inf
        return recovery_error(left, right, self.left, self.right)


def sides(shape: str, d: int) -> tuple[int, int]:
    """Rows and columns of a shape, d of each on average.

    >>> sides("square", 1000), sides("6:1", 1000)
    ((1000, 1000), (1714, 286))
    """
    rows = round(2 * d * 6 / 7) if shape == "6:1" else d
    return rows, 2 * d - rows


def uniform_problem(shape: str, d: int, r: int, kappa: float, c: float, seed: int) -> Problem:
    """c times r entries a row (and column, of a two-sided matrix), uniformly drawn.

    >>> uniform_problem("symmetric", 50, 2, 1.0, 4, seed=0).index.shape
    (400, 2)
    """
    m, n = sides(shape, d)
    symmetric = shape == "symmetric"
    samples = round(c * r * (m if symmetric else m + n))
    drawn = completion_problem((m, n), r, kappa, samples, seed, symmetric)
    return natural(Problem(*drawn, symmetric))


def natural(problem: Problem) -> Problem:
    """The same in units in which the product of two Gaussian rows is as large as the targets."""
    scale = np.sqrt(problem.left.shape[1]) / problem.size
    root = np.sqrt(scale)
    return problem._replace(
        targets=problem.targets * scale, left=problem.left * root, right=problem.right * root
    )


class Watch:
    """Follows the error of a run, without counting as a part of its time.

    As a callback of a trainer, or `done` of ALS, it ends the run at `goal` if asked to.
    """

    def __init__(self, problem: Problem, goal: float = GOAL, *, stop: bool, every: bool = False):
        self.problem, self.goal, self.stop, self.every = problem, goal, stop, every
        self.best = np.inf
        self.passes = 0
        self.reached: int | None = None  # passes until the goal
        self.curve: list[tuple[float, float]] = []  # seconds and errors
        self._spent, self._start = 0.0, time.perf_counter()

    def __call__(self, told: Progress) -> bool:
        if not self.every and told.loss > 0.5 * (_WORTH_ASKING * self.problem.size) ** 2:
            self.passes += 1
            return False
        return self.sees(told.factors.left, told.factors.right)

    def sees(self, left: np.ndarray, right: np.ndarray) -> bool:
        clock = time.perf_counter()
        self.passes += 1
        error = self.problem.error(left, right)
        self.curve.append((clock - self._start - self._spent, error))
        self.best = min(self.best, error)
        if error <= self.goal and self.reached is None:
            self.reached = self.passes
        self._spent += time.perf_counter() - clock
        return self.stop and self.reached is not None


class Outcome(NamedTuple):
    """The error of a method, in how many passes it came below the goal, and with what setting."""

    error: float
    passes: int | None
    setting: str = ""


def auto(problem: Problem, rank: int, seed: int, **settings: Any) -> Outcome:
    """The defaults, with rank="auto" for a rank of 0. What counts is the state that the estimator
    is left in."""
    watch = Watch(problem, stop=False)
    model = fit(problem, rank or "auto", seed, [watch], **settings)
    error = problem.error(model.row_factors_, model.column_factors_)
    if model.intercept_ or model.row_bias_.any():  # a model of another kind
        error = np.inf
    return Outcome(error, watch.reached, model.history_.stopped)


def stepped(scaled: bool, problem: Problem, rank: int, seed: int) -> Outcome:
    """The paper's ScaledSGD, or plain SGD, stopped at its best moment with its best step."""
    m, n = problem.shape
    unit = np.sqrt(m * n) / rank if scaled else 1.0

    def attempt(step: float) -> Outcome:
        watch = Watch(problem, stop=True)
        model = fit(problem, rank, seed, [watch], scaled=scaled, learning_rate=step * unit)
        last = problem.error(model.row_factors_, model.column_factors_)
        return Outcome(min(watch.best, last), watch.reached, f"step {step:g}")

    return best_of(map(attempt, SCALED_STEPS if scaled else PLAIN_STEPS))


def fit(
    problem: Problem, rank: int | str, seed: int, callbacks: list, **settings: Any
) -> MatrixCompleter:
    """A model in the state that its run ended in, be it that before it diverged."""
    model = MatrixCompleter(
        rank, symmetric=problem.symmetric, epochs=EPOCHS, tol=0, random_state=seed,
        callbacks=callbacks, **settings,
    )  # fmt: skip
    with warnings.catch_warnings():
        # How a run ended is a result here, and is reported as such.
        warnings.simplefilter("ignore")
        with suppress(DivergenceError):
            model.fit(problem.observations(model.loss))
    return model


def alternating(problem: Problem, rank: int, seed: int) -> Outcome:
    """Alternating least squares, stopped at its best moment with its best ridge."""
    entries = problem.entries()

    def attempt(ridge: float) -> Outcome:
        watch = Watch(problem, stop=True)
        als.complete(entries, rank, ridge=ridge, seed=seed, sweeps=EPOCHS, done=watch.sees)
        return Outcome(watch.best, watch.reached, f"ridge {ridge:g}")

    return best_of(map(attempt, RIDGES))


def gauss_newton(problem: Problem, rank: int, seed: int) -> Outcome:
    """Gauss-Newton on both factors with the solution of least norm (GNMR, after Zilber and Nadler),
    from the spectral start, at the better of its two variants: the update has the least norm, or
    the factors themselves. It is told the rank: with more directions than there are it is not
    tried."""
    if rank != problem.left.shape[1]:
        return Outcome(np.inf, None, "not tried")
    return best_of(_gauss_newton(problem, rank, whole) for whole in (False, True))


def _gauss_newton(problem: Problem, rank: int, whole: bool) -> Outcome:
    """Args: whole, whether the factors rather than their update have the least norm."""
    entries = problem.entries()
    (i, j), y, (m, n) = entries.tocoo().coords, entries.tocoo().data, problem.shape
    U, S, Vt = sp.linalg.svds(entries, k=rank, rng=np.random.default_rng(0))
    root = np.sqrt(S * (m * n / len(y)))
    left, right = U * root, Vt.T * root
    at = [*(i * rank + q for q in range(rank)), *((m + j) * rank + q for q in range(rank))]
    rows, columns = np.tile(np.arange(len(y)), 2 * rank), np.concatenate(at)
    watch, lowest, stuck, inner = Watch(problem, stop=True), np.inf, 0, _INNER
    for _ in range(_OUTER):
        T, U, _ = balance(left.T @ left, right.T @ right)
        left, right = left @ T, right @ U
        z = np.einsum("tr,tr->t", left[i], right[j])
        rest = float(np.linalg.norm(y - z) / np.linalg.norm(y))
        stuck = 0 if rest < _HARDLY * lowest else stuck + 1
        lowest = min(lowest, rest)
        if watch.sees(left, right) or rest < 1e-14 or stuck > _STUCK:
            break
        # Columns of length one: how large directions are does not matter to the least squares.
        (own, P), (other, Q) = np.linalg.qr(left), np.linalg.qr(right)
        values = np.concatenate([*other[j].T, *own[i].T])
        J = sp.csr_array((values, (rows, columns)), shape=(len(y), (m + n) * rank))
        goal = y + z if whole else y - z
        found = sp.linalg.lsqr(J, goal, atol=1e-15, btol=1e-15, conlim=0, iter_lim=int(inner))[0]
        found = found.reshape(m + n, rank)
        step = np.linalg.solve(Q, found[:m].T).T, np.linalg.solve(P, found[m:].T).T
        left, right = step if whole else (left + step[0], right + step[1])
        if not (np.isfinite(left).all() and np.isfinite(right).all()):
            break
        inner = min(_GROWTH * inner, _MOST)
    return Outcome(watch.best, watch.reached, "factors" if whole else "update")


def best_of(outcomes: Iterable[Outcome]) -> Outcome:
    """The first that solves it, and no more are tried; or else that with the smallest error.

    >>> best_of([Outcome(1e-2, None), Outcome(9e-6, 30), Outcome(8e-6, 40)]).passes
    30
    """
    tried = []
    for outcome in outcomes:
        tried.append(outcome)
        if outcome.passes:
            return outcome
    return min(tried)


METHODS: dict[str, Callable[[Problem, int, int], Outcome]] = {
    "auto": auto,
    "huber": partial(auto, loss="huber"),
    "ALS": alternating,
    "GNMR": gauss_newton,
    "ScaledSGD": partial(stepped, True),
    "SGD": partial(stepped, False),
}
