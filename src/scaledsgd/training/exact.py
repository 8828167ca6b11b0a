"""Factors that fit entries or distances exactly, found by Gauss-Newton: from where they are, by a
ridge that falls, or from shortest paths; and with no more directions than that takes.

What is looked for is sought in X with the index of its rows: `at` is added to the matrix's own."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
from scipy.sparse import csr_array
from scipy.sparse.csgraph import shortest_path

from ..core.factors import Factors
from ..core.losses import Loss, rms
from ..core.observations import Chunk, Observations
from . import gauss_newton
from .auto_policy import SMALL
from .ridge import Biases

EXACT = 1e-9  # of the targets: an exact fit
TRUE = 1e-4  # of the targets: held-out error of one that is no accident
_TRIFLE, _MANY = 0.01, 0.1  # a direction of that share, on that share of the rows, is no accident
_CLOSING = 0.9  # of the squares, that steps leave at most on their way to a fit with fewer
# Starts from which a ridge falls, with so many directions more than asked for; in units of the
# largest direction of noise of the targets' size, from where; and what is left of the targets where
# an exact fit is looked for.
STARTS, _MORE, _RIDGE, _LEVELS = 6, 2, 2.0, (1e-3, 1e-5, 1e-7)
_WORK, _ALONE = 1e8, 6e8  # samples times directions, squared: of all starts, and of the first
_STANDS_OUT = 8.0  # in units of the median residual
_APART = 1.5  # times the longest path: where there is none


@dataclass
class Exact:
    """A search for such factors, of the shape and with at most the directions of these."""

    factors: Factors
    loss: Loss
    host: Any  # the engine of this process
    biases: Biases | None = None

    def at(self) -> np.ndarray:
        """Where in X the rows begin that an index of the matrix names."""
        return np.array([side * self.factors.begin for side in self.loss.sides])

    def seen(self, samples: Observations | Chunk) -> Chunk:
        """Samples with the index of X, and with targets in float64."""
        return Chunk(samples.index + self.at(), double(samples.targets))

    def error(self, held: Chunk, X: np.ndarray | None = None) -> float:
        """Of these factors, or of X, on held-out entries of the matrix."""
        factors = self.factors if X is None else replace(self.factors, X=X)
        z = self.host.scores(factors, held.index + self.at(), self.loss).astype(np.float64)
        return rms(held.targets - z - (self.biases.of(held.index) if self.biases else 0.0))

    def scores(self, X: np.ndarray, seen: Chunk) -> np.ndarray:
        return self.host.scores(replace(self.factors, X=X), seen.index, self.loss)

    def descend(
        self, X: np.ndarray, seen: Chunk, gain: float = gauss_newton.GAIN
    ) -> tuple[np.ndarray, float]:
        """X from where Gauss-Newton gets no further, and what is left of the targets there."""
        minus, y = self.loss.name == "distance", seen.targets
        scores = partial(self.scores, seen=seen)
        return gauss_newton.descend(
            X, seen.index, y, scores, begin=self.factors.begin, minus=minus, gain=gain,
            crew=self.host.crew,
        )  # fmt: skip

    def ordered(self, X: np.ndarray) -> Factors:
        """The same product in the basis in which directions are ordered by what they explain."""
        whole = replace(self.factors, X=X, spectrum=np.zeros(X.shape[1]))
        whole.refresh(self.host)
        return whole

    def near(
        self, X: np.ndarray, seen: Chunk, held: Chunk, gain: float = gauss_newton.GAIN
    ) -> np.ndarray | None:
        """X of an exact fit from there, if there is one that holds for what was held out. Args: X,
        which is where the descent ended afterwards."""
        X[...], fit = self.descend(X, seen, gain=gain)
        return X if fit <= EXACT and self.error(held, X) <= TRUE * rms(held.targets) else None

    def anywhere(self, seen: Chunk, held: Chunk, starts: int) -> np.ndarray | None:
        """X of an exact fit by ridges that fall from where nothing grows, from one start after the
        other."""
        factors, size = self.factors, rms(seen.targets)
        edge = sum(np.sqrt(len(seen) / np.array(factors.shape)))
        rank = min(factors.rank + _MORE, *factors.shape)
        for start in range(starts):
            if (start + 1) * len(seen) * rank**2 > (_WORK if start else _ALONE):
                break
            rng = np.random.default_rng([factors.seed, 5, start])
            X = SMALL * np.sqrt(size) * rng.standard_normal((len(factors.X), rank))
            ridge = _RIDGE * edge * size
            for near in _LEVELS:
                X, fit, ridge = gauss_newton.follow(
                    X, seen.index, seen.targets, partial(self.scores, seen=seen), ridge=ridge,
                    near=near, begin=factors.begin, crew=self.host.crew,
                )  # fmt: skip
                if fit > near:
                    break
                # Of more directions than there are the last vanish, and are cut off at the gap.
                whole = self.ordered(X.copy())
                gaps = whole.spectrum[:-1] / np.maximum(whole.spectrum[1:], 1e-300)
                keep = min(int(np.argmax(gaps)) + 1 if len(gaps) else rank, factors.rank)
                found = self.near(whole.X[:, :keep].copy(), seen, held)
                if found is not None:
                    return found
        return None

    def fewest(self, X: np.ndarray, seen: Chunk, held: Chunk) -> np.ndarray:
        """The exact fit with the fewest directions: one that is not needed may live on rows that
        nothing was held out of."""
        while X.shape[1] > 1:
            whole = self.ordered(X)
            if _is_spread_out(whole):
                break
            fewer = self.near(whole.X[:, :-1].copy(), seen, held, _CLOSING)
            if fewer is None:
                break
            X = fewer
        return X

    def standing_in(self, X: np.ndarray, seen: Chunk, size: float) -> Chunk:
        """All but those that stand out."""
        e = np.abs(seen.targets.real - self.scores(X, seen))
        kept = e <= max(_STANDS_OUT * float(np.median(e)), EXACT * size)
        return Chunk(seen.index[kept], seen.targets[kept])

    def from_paths(self, seen: Chunk) -> np.ndarray:
        """Points by classical scaling of shortest paths: a map that is bent but not folded."""
        d, rank = self.factors.d, self.factors.rank
        once, first = np.unique(seen.index.astype(np.int64) @ [d, 1], return_index=True)
        ways = csr_array((np.sqrt(seen.targets.real[first]), divmod(once, d)), shape=(d, d))
        D = shortest_path(ways, directed=False)
        far = np.isinf(D)
        D[far] = _APART * D[~far].max()
        D **= 2
        B = D.mean(axis=0) + D.mean(axis=1)[:, None] - D.mean() - D
        values, Q = np.linalg.eigh(B / 2)
        return np.ascontiguousarray(Q[:, -rank:] * np.sqrt(np.maximum(values[-rank:], 0)))


def double(y: Any) -> Any:
    return y.astype(np.result_type(y, np.float64))


def _is_spread_out(factors: Factors) -> bool:
    """Whether the last direction lives on many rows and columns, and is no trifle: then what was
    held out has judged it."""
    share = factors.spectrum[-1] / np.linalg.norm(factors.spectrum)
    squares = [side[:, -1] ** 2 for side in factors.sides]
    spread = min(float(x.mean() ** 2 / np.mean(x**2)) for x in squares)
    return bool(share > _TRIFLE and spread > _MANY)
