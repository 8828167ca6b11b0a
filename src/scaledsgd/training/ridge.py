"""Noisy entries: a mean, a bias for every row and column, and many directions held back by a ridge.

Where noise is most of what is seen, as in ratings, no direction is sure and many help a little. The
loss is then that of a weighted trace norm::

    1/2 sum (mu + b_i + c_j + <l_i, r_j> - y_ij)^2
        + lambda / 2 (sum_i w_i |l_i|^2 + sum_j w_j |r_j|^2)

with w the square root of a row's number of entries; or that of bits, without biases. Steps are
those of every round, with P = 1 / (S + eta), where eta is what the ridge adds to a typical row;
between rounds rows shrink by the ridge's own closed form. In a matrix of noise alone the largest
direction is as long as
`_edge`: lambda is a share of that, found on held-out entries.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ..core.compiled import njit
from ..core.factors import Factors
from ..core.losses import Loss, weighed, weight
from ..core.observations import Chunk, Observations
from ..engines.base import Engine, Samples

_SHARE, _APART = 0.65, 1.3  # of the edge, to begin with, and from one share to the next
_LEAST = 0.1  # the share by which P is damped at least, and below which none is tried
_STRONG = 0.35  # a share below which there is more of a signal than of noise
_ALIKE = 1.005  # of errors before the end, at which a larger ridge gains more
_WORTH = 0.998  # of the error after bold steps: what a smaller ridge must leave to go on
# In an epoch a typical row goes this share of the way to its best place, to first order: to begin
# with, and to judge by.
_THETA, _CALM = 1.0, 0.1
# Entries of zero that a bias begins with: the variance of noise over that of biases. Estimated from
# the data it was 2.4 to 7.6 on five sets of ratings, and predicted no better.
_PRIOR = 3.0
_SHOWS = 0.01  # of the residuals: the entries of a direction that has grown
_CAP = 1.7  # of a residual that a step may undo
_CALM_CAP = 0.5  # of that, which no row reaches before an epoch that goes without it
_GROWTH, _TRIAL, _FINISH = 6, 2, 5  # epochs until directions have grown, of a trial, and at the end
_START = 0.01  # entries of X_0 on the geometric mean of both sides, in units of the targets' root
_HELD, _MOST = 0.03, 20_000  # of the samples judge the shares, and no more than so many
_TENTH, _LEAST_HELD = 0.1, 1000  # or a tenth, where that is no more than so many
# Of bits, which say little each, a larger part; shares are then tried from one at which nothing
# grows downwards, with so many epochs for each, until so many in a row are no better.
_HELD_BITS, _FALLING, _STAY, _WORSE = 0.2, tuple(0.9**k for k in range(40)), 12, 4
_AS_LIKELY = 1.0003
_BOLD, _PASSED = 0.3, 2e6  # theta on that path, and samples for each share at most
_REFRESHED = 4  # epochs from one refresh to the next: the spectrum moves slowly, P hardly with it
_SEEN = 100_000  # samples that show what a residual is


@dataclass
class Biases:
    """What is subtracted from the targets: mu + b_i + c_j.

    >>> some = Chunk(np.array([[0, 0], [0, 1], [1, 0], [1, 1]]), np.array([1.0, 2.0, 3.0, 4.0]))
    >>> Biases.fit(some, (2, 2)).of(some.index).round(1)  # of two entries each, held back
    array([1.9, 2.3, 2.7, 3.1])
    """

    mean: float
    rows: np.ndarray
    columns: np.ndarray

    @classmethod
    def fit(cls, seen: Chunk | Observations, shape: tuple[int, int]) -> Biases:
        w = weight(seen.targets)
        mean = float(np.mean(w * seen.targets.real, dtype=np.float64) / np.mean(w))
        biases = cls(mean, np.zeros(shape[0]), np.zeros(shape[1]))
        biases.improve(seen.index, 0, seen.targets - mean, sweeps=5)
        return biases

    def of(self, index: np.ndarray) -> np.ndarray:
        """Args: index (n, 2). Returns: what is subtracted from each target (n,)."""
        i, j = index.T
        return self.mean + self.rows[i] + self.columns[j]

    def improve(self, index: np.ndarray, begin: int, residuals: Any, sweeps: int) -> tuple:
        """Fit columns and rows by turns, those of few entries held back.
        Args: index (n, 2); begin, what is added to its columns; residuals (n,), of all there is.
        Returns how rows and columns have changed."""
        w = np.broadcast_to(weight(residuals), len(residuals))
        old = self.rows, self.columns
        change, counts = ([np.zeros(len(side)) for side in old] for _ in range(2))
        _weigh_both(index, begin, w, *counts)
        sides = [
            (more, count + _PRIOR, _PRIOR * own)
            for more, count, own in zip(change, counts, old, strict=True)
        ]
        _by_turns(index, begin, residuals.real, w, *sides, sweeps)
        self.rows, self.columns = (own + more for own, more in zip(old, change, strict=True))
        return tuple(change)

    def grow(self, shape: tuple[int, int]) -> None:
        """Rows and columns that are new have no bias."""
        self.rows, self.columns = (
            np.append(own, np.zeros(max(0, rows - len(own))))
            for own, rows in zip((self.rows, self.columns), shape, strict=True)
        )


@njit(nogil=True, cache=True)
def _weigh_both(index, begin, w, m, n):
    """Adds the weights of every row's entries to m, and those of every column's to n."""
    for t in range(len(index)):
        m[index[t, 0]] += w[t]
        n[index[t, 1] - begin] += w[t]


@njit(nogil=True, cache=True, error_model="numpy")
def _by_turns(index, begin, e, w, left, right, sweeps):
    """Columns, and then rows, that fit residuals e best beside the others, so often. Each side is
    what is added to its biases, what sums are divided by, and what is taken from them."""
    (rows, m, left_back), (columns, n, right_back) = left, right
    for _ in range(sweeps):
        columns[:] = -right_back
        for t in range(len(e)):
            columns[index[t, 1] - begin] += w[t] * (e[t] - rows[index[t, 0]])
        columns /= n
        rows[:] = -left_back
        for t in range(len(e)):
            rows[index[t, 0]] += w[t] * (e[t] - columns[index[t, 1] - begin])
        rows /= m


@njit(nogil=True, cache=True)
def _add_biases(index, begin, sign, rows, columns, out):
    """Adds a row's and a column's, or takes them away."""
    for t in range(len(out)):
        out[t] += sign * (rows[index[t, 0]] + columns[index[t, 1] - begin])


@njit(nogil=True, cache=True)
def _longest(X, steps):
    """The largest sum of a row's squares, each times its column's step."""
    most = 0.0
    for row in range(X.shape[0]):
        total = 0.0
        for q in range(X.shape[1]):
            total += steps[q] * X[row, q] * X[row, q]
        most = max(most, total)
    return most


def starting_scale(size: float, shape: tuple[int, int]) -> tuple[float, float]:
    """Of the entries of X_0 on either side, for residuals of that size."""
    ratio = (shape[1] / shape[0]) ** 0.25
    return _START * np.sqrt(size) * ratio, _START * np.sqrt(size) / ratio


@dataclass
class RidgeTrainer:
    """Learns factors of a two-sided matrix, and what is to be added to their product."""

    factors: Factors
    loss: Loss
    engine: Engine
    rng: np.random.Generator
    biases: Biases
    biased: bool = True  # whether biases are learned
    share: float = _SHARE  # lambda, as a share of the edge of noise
    rms: float = 0.0  # of the residuals that biases leave
    samples: int = 0
    useful: int = -1  # directions of bits that help
    error: float = np.inf  # on what was held out
    weights: Any = field(default=None, repr=False)  # of the rows of X
    own: Any = field(default=None, repr=False)  # the samples that were learned from, and who judged
    judges: Any = field(default=None, repr=False)
    _epoch: int = 0

    @property
    def ridge(self) -> float:
        """lambda: in a matrix of noise of this size, with rows of these weights, the largest
        direction is as long as `share` = 1 says."""
        return self.share * self.rms * self._edge

    @property
    def _edge(self) -> float:
        m, n = self.factors.shape
        return (m / n) ** 0.25 + (n / m) ** 0.25

    def tune(self, data: Observations, held: Chunk, share: float | None = None) -> None:
        """Learn from the data with the share that is best for entries drawn from them, or with the
        one that is given."""
        rest, self.judges = self.parted(data, _HELD)
        self.share = share or _SHARE
        own = self.own = self._samples(rest)
        seen = own.fair(_SEEN).targets
        slope = self.loss.slope(0.0, seen.real.astype(np.float64))
        self.rms = float(np.sqrt(np.mean(weight(seen) * slope**2)))
        self._weigh(own)
        start = self._state()
        self._epochs(own, _THETA, _CALM, _GROWTH)
        self._grow(own)
        self._improve(own)
        self._epochs(own, _CALM, _CALM, _TRIAL)
        if share is None:
            y = self.judges.targets - self.biases.of(self.judges.index)
            self._tune(own, self.judges, y, start)
        self.error = self._held_out(held, held.targets - self.biases.of(held.index))

    def descend(self, data: Observations, judges: Chunk | None = None) -> float:
        """Learn bits with a share that falls until the judges are likeliest, or else as far as it
        fell with them. Returns their misfit."""
        own, errors = self._samples(data), [np.inf]
        slope = self.loss.slope(0.0, own.fair(_SEEN).targets.real.astype(np.float64))
        self.rms = float(np.sqrt(np.mean(slope**2)))
        self._weigh(own)
        epochs = max(2, min(_STAY, int(_PASSED / len(data))))
        last, best = self.share, 0
        for share in _FALLING:
            self.share = share
            self._epochs(own, _BOLD, _CALM, epochs)
            if judges is None and share <= last:
                break
            if judges is not None:
                errors.append(self._held_out(judges, judges.targets))
                best = int(np.argmin(errors))
                if best == len(errors) - 1:
                    self.useful = self._useful(judges)
                if len(errors) - 1 - best >= _WORSE:
                    break
        if judges is not None:
            self.share = _FALLING[best - 1]
        return float(errors[best])

    def _useful(self, judges: Chunk) -> int:
        """The fewest directions with which the judges are about as likely."""
        self.factors.refresh(self.engine)
        x, v = (self.factors.sides[k][judges.index[:, k]].astype(np.float64) for k in (0, 1))
        values = weighed(self.loss.value, np.cumsum(x * v, axis=1), judges.targets[:, None])
        mean = np.append(weighed(self.loss.value, 0.0, judges.targets).mean(), values.mean(axis=0))
        return int(np.argmax(mean <= mean.min() * _AS_LIKELY))

    def parted(self, data: Observations, part: float = _HELD_BITS) -> tuple[Observations, Chunk]:
        """All but a part of the data, and that."""
        few = min(_TENTH * len(data), _LEAST_HELD)
        count = int(np.clip(max(part * len(data), few), 1, _MOST))
        chosen = np.zeros(len(data), bool)
        chosen[self.rng.choice(len(data), count, replace=False)] = True
        judges, rest = (
            Chunk(data.index.take(some, axis=0), data.targets[some])
            for some in (np.flatnonzero(chosen), np.flatnonzero(~chosen))
        )
        return data.of(rest), judges

    def finish(self, data: Observations, held: Chunk) -> None:
        """Let the step go down to nothing, on all there is: what was learned from is shuffled, and
        less the biases, already."""
        own = self.own.returned(data, self._shift)
        parts = [Chunk(own.index, own.targets), *map(self._less_biases, (self.judges, held))]
        index, y = (
            np.concatenate(part, dtype=part[0].dtype, casting="same_kind")
            for part in zip(*parts, strict=True)
        )
        everything = data.of(Chunk(index, y))
        own = self.engine.samples(everything, self._shift, self.factors.X.dtype, None)
        self._weigh(own)
        self._improve(own)
        self._epochs(own, _CALM, 0.0, _FINISH)
        self._improve(own)

    def _grow(self, data: Samples) -> None:
        """Where a ridge of this size lets nothing grow from so small a start: begin without it."""
        self.factors.refresh(self.engine)
        size = self.rms * float(np.sqrt(np.prod(self.factors.shape)))
        share, grown = self.share, 0
        while self.factors.spectrum[0] < _SHOWS * size and grown < _GROWTH:
            self.share, grown = 0.0, grown + 1
            self._epochs(data, _THETA, _THETA, 1)
            self.factors.refresh(self.engine)
        self.share = share
        if grown:
            self._epochs(data, _THETA, _CALM, _GROWTH)

    def _tune(self, data: Samples, held: Chunk, y: np.ndarray, start) -> None:
        """Go to a smaller share, or else to a larger one, as long as that is better. What a smaller
        one has let in a larger one takes long to remove, so that those begin anew."""
        best, bold = self._held_out(held, y), None
        for direction in (-1, 1):
            power = direction
            while self.share > _LEAST:
                before = self._state()
                share = self.share * _APART**power
                if direction > 0:
                    self._relearn(data, start, share)
                self.share = share
                self._epochs(data, _CALM, _CALM, _TRIAL)
                error = self._held_out(held, y)
                if error >= (best if bold is None else _WORTH * best):
                    self._back(before)
                    break
                best, power = error, float(np.clip(1.5 * power, -2.25, 2.25))
                if self.share < _STRONG and bold is None:
                    # Where calm steps ask for less and less of a ridge, what they have to learn is
                    # more than they can: bold ones are tried, with as much of a ridge as so strong
                    # a signal bears.
                    before = self._state()
                    self._relearn(data, start, _STRONG)
                    bold = self._held_out(held, y), self._state()
                    if bold[0] < best:
                        best, power = bold[0], direction
                        continue
                    self._back(before)
            if bold is not None and bold[0] < _ALIKE * best:
                self._back(bold[1])
            if self.share != _SHARE:
                return

    def _relearn(self, data: Samples, start, share: float) -> None:
        """With another share, from the start."""
        self._back(start)
        self.share = share
        self._epochs(data, _THETA, _CALM, _GROWTH)

    def _state(self):
        return self.factors.X.copy(), self.factors.spectrum.copy(), self.share

    def _back(self, state) -> None:
        self.factors.X[...], self.factors.spectrum, self.share = state

    def _samples(self, data: Observations) -> Samples:
        """A training copy, less the biases."""
        centred = data.of(self._less_biases(data))
        return self.engine.samples(centred, self._shift, self.factors.X.dtype, self.rng)

    @property
    def _shift(self) -> list[int]:
        return [side * self.factors.begin for side in self.loss.sides]

    def _less_biases(self, data: Observations | Chunk) -> Chunk:
        """A copy."""
        y = (data.targets - self.biases.mean).astype(np.result_type(data.targets, np.float64))
        _add_biases(data.index, 0, -1, self.biases.rows, self.biases.columns, y.real)
        return Chunk(data.index.copy(), y)

    def _weigh(self, data: Samples) -> None:
        counts, begin = np.zeros(len(self.factors.X)), self.factors.begin
        w = np.broadcast_to(weight(data.targets), len(data))
        _weigh_both(data.index, begin, w, counts, counts[begin:])
        self.weights = self.engine.put(np.sqrt(counts))

    def _epochs(self, data: Samples, first: float, last: float, epochs: int) -> None:
        """Pass over the data; in the end the step goes down to nothing."""
        factors, (m, n) = self.factors, self.factors.shape
        geo, total = np.sqrt(m * n), len(data)
        for epoch in range(epochs):
            if self._epoch % _REFRESHED == 0:
                factors.refresh(self.engine)
            self._epoch += 1
            ridge = self.ridge
            damped = max(self.share, _LEAST) * self.rms * self._edge
            bend = self.loss.curvature
            P = 1.0 / (bend * factors.spectrum + damped * geo**1.5 / np.sqrt(total))
            theta = first + (last - first) * epoch / epochs
            rate = theta * m * n / total
            self.engine.shrink(factors.X, self.weights, rate * ridge * P)
            calm = theta <= _CALM and self._is_calm(rate * P, data)
            cap = np.inf if calm else _CAP / bend
            for portion in data.epoch(self.rng):
                self.engine.run(factors, P, np.full(2, rate), self.loss, portion, cap)
            self.samples += total

    def _is_calm(self, steps: np.ndarray, data: Samples) -> bool:
        """Whether no step of an epoch gets near the cap: a quarter of its time goes into that."""
        lever = sum(_longest(side, steps.astype(side.dtype)) for side in self.factors.sides)
        weighed = np.iscomplexobj(data.targets)
        return not weighed and self.loss.curvature * lever < _CALM_CAP * _CAP

    def _improve(self, data: Samples) -> None:
        """Fit the biases again to what the factors leave."""
        if not self.biased:
            return
        z, begin = self.engine.scores(self.factors, data.index, self.loss), self.factors.begin
        change = self.biases.improve(data.index, begin, data.targets - z, sweeps=2)
        _add_biases(data.index, begin, -1, *change, data.targets.real)

    def _held_out(self, held: Chunk, y: Any) -> float:
        z = self.engine.scores(self.factors, held.index + self._shift, self.loss)
        # Of the squared loss, the root mean square error.
        return float(np.sqrt(2 * np.mean(weighed(self.loss.value, z.astype(np.float64), y))))
