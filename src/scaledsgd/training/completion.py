"""A fit of entries or distances from beginning to end: a run of steps, and what is tried where that
is not enough.

- Targets are brought to a size of about one, and rows and columns to one size where theirs differ
  by orders of magnitude; the factors are brought back in the end.
- Where there are hardly more samples than numbers to be learned, Gauss-Newton finishes, from where
  the steps are or from fresh starts (`gauss_newton`).
- Where the steps end in noise that biases and a ridge explain better, those are taken (`ridge`).
- What was not determined is said in a warning.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Any

import numpy as np
from scipy.sparse import csr_array
from scipy.sparse.csgraph import shortest_path

from ..core.factors import Factors
from ..core.observations import Chunk, Observations
from . import gauss_newton
from .auto_policy import SMALL
from .history import History
from .ridge import Biases, RidgeTrainer, starting_scale
from .trainer import Trainer

_ORDINARY = 2.0**32  # targets larger than that, or smaller than its inverse, are scaled
_UNEQUAL = 20.0  # mean square of the rows' sizes over their median: 2 where one direction rules
_LOOK = 200_000  # samples that show it
_SWEEPS = 3  # that bring rows and columns to one size

_RATED = 3  # epochs after which a run is compared with biases alone
_BIASED, _HARDLY, _NOISY = 0.95, 0.9, 0.5  # shares of errors: see `_hardly`, `_is_noisy`
_WIDE = 48  # directions beside a ridge, where the rank is not given

_SLOW = 40  # epochs after which a run with few samples is taken over by Gauss-Newton
# Samples for each number: up to which that is tried, and an exact fit is looked at again.
_FEW, _SPARSE = 4.0, 2.6
_CLEAN = 1e-3  # of the targets: a held-out error below which there is hardly noise
_STRAY = 1.5  # times the training error: a held-out error that is not that of noise
_EXACT, _NEARLY = 1e-9, 1e-2  # of the targets: an exact fit, and one that may become it
_TRUE = 1e-4  # of the targets: held-out error of one that is no accident
_CLEAR = 3.0  # from one direction to the next: a gap in the spectrum
_LONG = 200  # epochs of a fresh start by steps
_STARTS = 6  # fresh ones by Gauss-Newton
_RIDGE = 2.0  # times the largest direction of noise of the targets' size: where a ridge falls from
_HOPELESS = 0.3  # of the targets that are left: there is no exact fit
_WORK = 1e7  # samples times directions, squared, that those may cost: some 20 s

_DENSE = 4000  # points, whose distances are a matrix that fits
_APART = 1.5  # times the longest path: where there is none
_BETTER = 0.9  # of the held-out error: what a start from paths must reach

# Over the number of held-out entries: a share of their squares that says nothing.
_CHANCE = 20.0
_UNKNOWN = 1e6  # times the noise's variance: that of an entry of which nothing is known
_GAP = 2.0  # times the training error: a held-out error that says that nothing was found


@dataclass
class Completion(Trainer):
    """A trainer that knows more than one way."""

    policy: Any  # an `AutoPolicy`, unless somebody says how to step
    center: bool | str = "auto"
    regularization: float | str = "auto"
    wide: bool = False  # whether the rank is to be found
    biases: Biases | None = None  # what is added to the product of the factors
    ridge: float = 0.0  # lambda beside those, in units of the targets
    held_error: float | None = None  # on held-out entries, in units of the targets
    undetermined: dict[int, list[int]] = field(default_factory=dict)  # rows, by side
    lost: bool = False  # whether what was found does not hold for what was held out
    counts: list[np.ndarray] = field(default_factory=list)  # entries of every row, and column
    noise: float | None = None  # standard deviation of an entry around what it would be expected
    _asks: tuple[str, ...] = ()  # for what a run may be interrupted: "noise", "slow"

    def run(
        self, observations: Observations, *, epochs: int, streaming: bool = False, **how
    ) -> History:
        """As a trainer does, and then what is left to be tried."""
        policy, loss = self.policy, self.loss.name
        able = policy.automatic and policy.scaled and not self.per_sample
        able = able and self.engine.solves_rows and loss in ("squared", "distance")
        if streaming and self.biases is not None:
            y = observations.targets - self._biases_of(observations)
            observations = observations.of(Chunk(observations.index.copy(), y))
        if streaming or not able:
            asked = self.center is True or self.regularization not in ("auto", 0)
            if asked and not able:
                raise ValueError(
                    "center and regularization go with loss='squared', learning_rate='auto', "
                    "refresh='round' and device='cpu'"
                )
            return super().run(observations, epochs=epochs, streaming=streaming, **how)
        if not observations.disposable:
            own = Chunk(observations.index.copy(), observations.targets.astype(np.float64))
            observations = observations.of(own)
        rest, held = policy.hold_out(observations, self.rng)
        sides = self._units(rest)
        if sides is None:
            self._attempts(rest, held, epochs, how)
        else:
            self._in_units(sides, rest, held, epochs, how)
        return self.history

    # --- Units ----------------------------------------------------------------------------------

    def _in_units(self, sides, rest: Observations, held: Chunk | None, epochs, how) -> None:
        """Attempts in units in which rows and columns are of size one. Where that does not solve
        it, rows are also tried with sizes of their own, and the better of both is kept."""
        some = Chunk(rest.index.copy(), self._divided(rest, sides))
        scaled = held and Chunk(held.index, self._divided(held, sides))
        self._restart(rest.of(some), self.factors.seed)
        self._attempts(rest.of(some), scaled, epochs, how)
        self._unscale(sides)
        solved = self.history.stopped in ("solved", "tol", "callback")
        if solved or held is None or not any(np.ptp(scale) for scale in sides):
            return
        first, kept = self._error(held), (self.factors, self.policy, self.biases, self.history)
        self.history, self.biases = replace(self.history, records=[], stopped=""), None
        self._restart(rest, self.factors.seed)
        self._attempts(rest, held, epochs, how)
        if not self._error(held) < first:
            self.factors, self.policy, self.biases, self.history = kept
            self.left, self.P = 0, None

    def _units(self, seen: Observations) -> list[np.ndarray] | None:
        """By what rows and columns are to be divided, if by anything."""
        size = seen.size
        if not size:
            return None
        unit = 1.0
        if not 1 / _ORDINARY < size < _ORDINARY:
            unit = 2.0 ** round(np.log2(size) / 2)  # of one side
        sides = [np.full(rows, unit) for rows in seen.shape]
        if self.loss.name == "squared" and self._are_unequal(seen, size):
            scales = _equal(seen, size)
            sides = [own * scale for own, scale in zip(sides, scales, strict=True)]
        elif unit == 1.0:
            return None
        return sides

    def _are_unequal(self, seen: Observations, size: float) -> bool:
        """Whether a few rows or columns are larger than the others by an order of magnitude."""
        look = slice(None)
        if len(seen) > _LOOK:
            look = np.random.default_rng(self.factors.seed).integers(0, len(seen), _LOOK)
        index, squares = seen.index[look], (seen.targets[look] / size) ** 2
        for column in index.T:
            total, count = np.bincount(column, squares), np.bincount(column)
            mean = total[count > 0] / count[count > 0]
            if mean.mean() > _UNEQUAL * max(float(np.median(mean)), np.finfo(float).tiny):
                return True
        return False

    def _divided(self, seen: Observations | Chunk, sides: list[np.ndarray]) -> np.ndarray:
        if self.loss.name == "distance":
            return seen.targets / sides[0][0] / sides[0][0]
        i, j = seen.index.T
        return seen.targets / sides[0][i] / sides[1][j]

    def _unscale(self, sides: list[np.ndarray]) -> None:
        """Back to the units of the targets."""
        factors, policy = self.factors, self.policy
        unit = 1.0
        for side, scale in zip(factors.sides, sides, strict=False):
            side *= scale[:, None].astype(side.dtype)
            unit *= float(np.exp(np.mean(np.log(scale))))
        unit = unit**2 if factors.rows is None else unit
        factors.refresh(self.engine)
        factors.scale = tuple(scale * np.sqrt(unit) for scale in factors.scale)
        for name in ("rms", "size", "first", "train", "held", "last"):
            setattr(policy, name, getattr(policy, name) * unit)
        for record in self.history.records:
            record["loss"] *= unit**2
        self.left, self.P = 0, None

    def _restart(self, seen: Observations, seed: int) -> None:
        """From the beginning, with another seed or in other units."""
        old, shape = self.policy, seen.shape
        self.policy = type(old)(damping=old.damping, scaled=old.scaled)
        self.policy.whole = old.whole
        scale = self.policy.starting_scale(seen.size, shape, self.factors.rank, seen.loss.name)
        self.factors = self.engine.start(
            shape, self.factors.rank, self.loss, seed=seed, scale=scale,
            dtype=self.factors.X.dtype, symmetric=self.factors.rows is None,
        )  # fmt: skip
        self.left, self.P, self.snapshot = 0, None, None

    # --- Attempts -------------------------------------------------------------------------------

    def _attempts(self, rest: Observations, held: Chunk | None, epochs: int, how: dict) -> None:
        """Steps, and what else is worth a try."""
        known, begin = held is not None and not self.policy.whole, 0
        self._count(rest, held)
        if known and self.regularization not in ("auto", 0):
            self._ridged(rest, held, force=True)
            return
        rated = self.loss.name == "squared" and self.factors.rows is not None
        rated = rated and self.regularization == "auto" and self.center in ("auto", True)
        self._asks = ("noise",) * rated + ("slow",) if known and epochs >= _SLOW else ()
        more = bool(self._asks)
        while True:
            Trainer.run(self, rest, epochs=epochs, begin=begin, split=(rest, held), **how)
            if more:
                rest = self._returned(rest)
            why, begin = self.history.stopped, round(self.history.records[-1]["epoch"])
            sparse = len(rest) < _SPARSE * self._numbers(max(self.policy.useful, 1))
            if why in ("solved", "tol") and "slow" in self._asks and sparse:
                self._finished(rest, held)  # with the fewest directions
            if why in ("solved", "tol", "callback"):
                break
            if "slow" in self._asks and why != "noise" and self._few(rest):
                self._asks = tuple(ask for ask in self._asks if ask != "slow")
                if self._finished(rest, held):
                    break
            paths = more and self.loss.name == "distance"
            if paths and held and self._from_paths(rest, held):
                break
            if held and "noise" in self._asks and why != "slow" and self._is_noisy(held):
                self._asks = tuple(ask for ask in self._asks if ask != "noise")
                if self._ridged(rest, held):
                    return
            if why not in ("noise", "slow"):
                break
        self._conclude(rest, held)

    def _review(self, epoch: int, data, held: Chunk | None, streaming: bool) -> str:
        verdict = super()._review(epoch, data, held, streaming)
        if verdict or held is None or self.policy.polishing:
            return verdict
        if "noise" in self._asks and self._hardly(epoch, data, held):
            return "noise"
        if "slow" in self._asks and epoch >= _SLOW and self._few(data):
            return "slow"
        return ""

    def _hardly(self, epoch: int, data, held: Chunk) -> bool:
        """Whether biases help, and the steps so far hardly do better than those alone."""
        if epoch != _RATED:
            return False
        at = np.array([0, self.factors.begin])
        look = data.fair(_LOOK)
        biases = Biases.fit(Chunk(look.index - at, look.targets), self.factors.shape)
        y = held.targets
        error = _rms(y - biases.of(held.index - at))
        return error < _BIASED * _rms(y) and self.policy.last > _HARDLY * error

    def _is_noisy(self, held: Chunk) -> bool:
        return self.policy.held > _NOISY * float(np.std(held.targets))

    def _few(self, data) -> bool:
        """Whether there are few samples for each number that may be learned, and nothing much was
        learned, or not what was held out, or all but the last digits."""
        policy = self.policy
        if self.loss.name == "distance":
            return policy.held > _TRUE * policy.size
        astray = policy.held > _NOISY * policy.size or policy.held > _STRAY * policy.train
        astray = astray or policy.held < _CLEAN * policy.size
        return astray and len(data) < _FEW * self._numbers(self.factors.rank)

    def _numbers(self, r: int) -> float:
        """That r directions have to be told by."""
        m, n = self.factors.shape
        return r * (m + n - r) if self.factors.rows is not None else r * (m - (r - 1) / 2)

    def _returned(self, rest: Observations) -> Observations:
        """The samples of a run, as they were before an engine took them."""
        index = self.data.index
        for column, side in enumerate(self.loss.sides):
            index[:, column] -= side * self.factors.begin
        return rest.of(Chunk(index, self.data.targets))

    # --- A ridge --------------------------------------------------------------------------------

    def _ridged(self, rest: Observations, held: Chunk | None, force: bool = False) -> bool:
        """Whether biases and a ridge are better on held-out entries, and then they are taken."""
        shape, old = rest.shape, self.factors
        assert held is not None
        some = Chunk(rest.index, rest.targets)
        zero = Biases(0.0, np.zeros(shape[0]), np.zeros(shape[1]))
        biases = zero if self.center is False else Biases.fit(some, shape)
        size = _rms(rest.targets[:_LOOK] - biases.of(rest.index[:_LOOK]))
        rank = min(_WIDE, *shape) if self.wide else old.rank
        factors = self.engine.start(
            shape, rank, self.loss, seed=old.seed, scale=starting_scale(size, shape),
            dtype=old.X.dtype,
        )  # fmt: skip
        factors.X = self.engine.put(factors.X)
        given = None if self.regularization == "auto" else float(self.regularization)
        run = RidgeTrainer(
            factors, self.loss, self.engine, self.rng, biases, self.center is not False
        )
        error = run.tune(rest, held, given)
        if not (force or error < self.policy.held):
            return False
        run.finish(rest, held)
        self.factors, self.biases, self.ridge = factors, biases, run.ridge
        policy = self.policy
        policy.useful = policy.columns = factors.rank
        policy.rms = policy.train = run.rms
        policy.held = policy.last = self.held_error = error
        factors.refresh(self.engine)
        self._calibrate(held)
        self.samples += run.samples
        self.history.stopped = "ridge"
        self.left, self.P = 0, None
        return True

    # --- Few samples ----------------------------------------------------------------------------

    def _finished(self, rest: Observations, held: Chunk | None) -> bool:
        """Whether Gauss-Newton has found an exact fit that holds for what was held out."""
        assert held is not None
        factors, policy = self.factors, self.policy
        at = np.array([side * factors.begin for side in self.loss.sides])
        seen = Chunk(rest.index + at, rest.targets.astype(np.float64))
        factors.refresh(self.engine)
        X = factors.X[:, : max(policy.useful, 1)].astype(np.float64)
        X = self._exact(X, seen, held) if policy.held < _NOISY * _rms(held.targets) else None
        work = _WORK / len(seen)
        edge = _rms(seen.targets) * sum(np.sqrt(len(seen) / np.array(factors.shape)))
        for start in range(_STARTS if self.loss.name == "squared" else 0):
            # Two more directions than asked for are a way around hills.
            rank = min(factors.rank + 2 * (start % 2 == 0 and not self.wide), *factors.shape)
            work -= rank**2
            if X is not None or work < 0:
                break
            rng = np.random.default_rng([factors.seed, 5, start])
            fresh = rng.standard_normal((len(factors.X), rank))
            X, fit = self._descend(SMALL * np.sqrt(policy.size) * fresh, seen, _RIDGE * edge)
            if fit > _NEARLY:
                X = None
                if fit > _HOPELESS:
                    break
                continue
            # Of more directions than there are the last are small, and are cut off at the gap.
            whole = replace(factors, X=X, spectrum=np.zeros(X.shape[1]))
            whole.refresh(self.engine)
            gaps = whole.spectrum[:-1] / np.maximum(whole.spectrum[1:], 1e-300)
            clear = int(np.argmax(gaps)) + 1 if len(gaps) and gaps.max() > _CLEAR else rank
            for keep in dict.fromkeys((min(clear, factors.rank), factors.rank)):
                X = self._exact(whole.X[:, :keep].copy(), seen, held)
                if X is not None:
                    break
        if X is None and self.loss.name == "squared" and not self.wide:
            X = self._with_more_directions(rest, held, seen)
        if X is None:
            return False
        X = self._fewest(X, seen, held)
        self.held_error = self._error(held, replace(factors, X=X))
        index = np.concatenate([seen.index, held.index + at])
        X, _ = self._descend(X, Chunk(index, np.append(seen.targets, held.targets)))
        factors.X[...] = 0.0
        factors.X[:, : X.shape[1]] = X
        factors.refresh(self.engine)
        policy.useful = policy.columns = X.shape[1]
        policy.last = policy.held = self.held_error
        self.history.stopped = "solved"
        self.left, self.P = 0, None
        return True

    def _from_paths(self, rest: Observations, held: Chunk) -> bool:
        """Whether distances of neighbours are explained better from a start of shortest paths: by
        classical scaling of those, as a map that is bent but not folded."""
        factors, policy = self.factors, self.policy
        if factors.d > _DENSE:
            return False
        once, first = np.unique(rest.index.astype(np.int64) @ [factors.d, 1], return_index=True)
        ways = csr_array((np.sqrt(rest.targets[first]), divmod(once, factors.d)), shape=rest.shape)
        D = shortest_path(ways, directed=False)
        far = np.isinf(D)
        D[far] = _APART * D[~far].max()
        D **= 2
        B = D.mean(axis=0) + D.mean(axis=1)[:, None] - D.mean() - D
        values, Q = np.linalg.eigh(B / 2)
        start = Q[:, -factors.rank :] * np.sqrt(np.maximum(values[-factors.rank :], 0))
        seen = Chunk(rest.index, rest.targets.astype(np.float64))
        X, fit = self._descend(np.ascontiguousarray(start), seen)
        error = self._error(held, replace(factors, X=X))
        if not error < _BETTER * policy.held:
            return False
        everything = np.concatenate([rest.index, held.index])
        X, fit = self._descend(X, Chunk(everything, np.append(seen.targets, held.targets)))
        factors.X[...] = X
        factors.refresh(self.engine)
        policy.useful = policy.columns = factors.rank
        policy.last = policy.held = self.held_error = error
        policy.train = fit * _rms(rest.targets)
        self.history.stopped = "solved" if fit <= _EXACT else "settled"
        self.left, self.P = 0, None
        return True

    def _with_more_directions(self, rest: Observations, held: Chunk, seen: Chunk):
        """An exact fit from steps with twice as many directions, which find more of small ones."""
        factors, old = self.factors, self.policy
        policy, rank = type(old)(damping=old.damping), min(2 * factors.rank, *factors.shape)
        scale = policy.starting_scale(rest.size, rest.shape, rank, rest.loss.name)
        symmetric = factors.rows is None
        start = self.engine.start(
            rest.shape, rank, self.loss, seed=factors.seed, scale=scale, symmetric=symmetric
        )
        more = Trainer(start, self.loss, policy, self.engine, self.rng)
        some = rest.of(Chunk(rest.index.copy(), rest.targets.copy()))
        more.run(some, epochs=_LONG, split=(some, held), evaluations=0)
        start.refresh(self.engine)
        useful = min(max(policy.useful, 1), factors.rank)
        return self._exact(start.compact()[:, :useful].astype(np.float64), seen, held)

    def _fewest(self, X: np.ndarray, seen: Chunk, held: Chunk) -> np.ndarray:
        """The exact fit with the fewest directions: one that is not needed may live on rows that
        nothing was held out of."""
        while X.shape[1] > 1:
            whole = replace(self.factors, X=X, spectrum=np.zeros(X.shape[1]))
            whole.refresh(self.engine)
            fewer = self._exact(whole.X[:, :-1].copy(), seen, held)
            if fewer is None:
                break
            X = fewer
        return X

    def _exact(self, X: np.ndarray, seen: Chunk, held: Chunk) -> np.ndarray | None:
        """X of an exact fit from there, if there is one that holds for what was held out."""
        X, fit = self._descend(X, seen)
        true = _TRUE * _rms(held.targets)
        return (
            X if fit <= _EXACT and self._error(held, replace(self.factors, X=X)) <= true else None
        )

    def _descend(self, X: np.ndarray, seen: Chunk, ridge: float = 0.0) -> tuple[np.ndarray, float]:
        def scores(X: np.ndarray) -> np.ndarray:
            return self.engine.scores(replace(self.factors, X=X), seen.index, self.loss)

        minus = self.loss.name == "distance"
        y = seen.targets
        return gauss_newton.descend(X, seen.index, y, scores, minus=minus, ridge=ridge)

    # --- The end --------------------------------------------------------------------------------

    def _conclude(self, rest: Observations, held: Chunk | None) -> None:
        """Nothing, where nothing was found; and what is not determined is said."""
        policy, factors, squared = self.policy, self.factors, self.loss.name == "squared"
        if policy.whole or self.history.stopped == "callback":
            return
        if held is not None and np.isfinite(policy.held):
            self.held_error = policy.held
            # The best of many epochs and ranks is better than nothing by chance alone.
            gain = 1 - (policy.held / max(_rms(held.targets), 1e-300)) ** 2
            if squared and gain < _CHANCE / len(held):
                policy.useful = 0
                small = SMALL * float(np.sqrt(policy.size))
                self.engine.sow(factors, 0, factors.rank, small, [factors.seed, 6])
                self.lost = self._few(rest) and not self.wide
                if self.lost:
                    self.history.stopped = "undetermined"
                return
        for side, seen in enumerate(self.counts[: len(factors.sides)]):
            self.undetermined[side] = np.flatnonzero(seen < policy.useful).tolist()
        self._calibrate(held)
        lost = self.history.stopped not in ("solved", "tol") and held is not None
        nothing = squared and not self.wide and policy.held > _NOISY * policy.size
        astray = policy.held > _GAP * policy.train or nothing
        self.lost = bool(lost and self._few(rest) and astray)
        if self.lost or any(self.undetermined.values()):
            self.history.stopped = "undetermined"

    def _count(self, rest: Observations, held: Chunk | None) -> None:
        """How often every row and column is seen."""
        counts = {side: np.zeros(rest.shape[side], np.int64) for side in rest.sides()}
        parts = (index for _, index, _ in rest.blocks())
        for index in parts if held is None else chain(parts, [held.index]):
            for side, columns in rest.sides().items():
                for column in columns:
                    counts[side] += np.bincount(index[:, column], minlength=len(counts[side]))
        self.counts = [counts[side] for side in sorted(counts)]
        self.counts = (self.counts * 2)[:2]

    def _calibrate(self, held: Chunk | None) -> None:
        """The noise, by what was held out."""
        if held is not None and self.held_error is not None:
            self.noise = self.held_error / float(np.sqrt(np.mean(1 + self.spread(held.index))))

    def spread(self, index: np.ndarray) -> np.ndarray:
        """The variance of predictions, in units of the noise's. Args: index (n, 2), of the matrix.

        A row that was seen n times has learned its numbers with the information n S_q / d of a
        typical row of the other side, and the ridge's."""
        factors, total = self.factors, np.zeros(len(index))
        S = factors.singular_values()
        S = S[1e-12 * S[0] < S] if S[0] > 0 else S[:0]
        r, sides = len(S), [factors.left, factors.right]
        for side, (own, other) in enumerate(((0, 1), (1, 0))):
            n = self.counts[side][index[:, own]].astype(np.float64)
            hold = self.ridge * np.sqrt(n)
            x = sides[1 - side][index[:, other], :r].astype(np.float64)
            known = n[:, None] * S / len(sides[1 - side]) + hold[:, None]
            total += np.einsum("tq,tq->t", x * x, 1 / np.maximum(known, 1e-300))
            if self.biases is not None:
                total += 1 / np.maximum(n + np.sqrt(n), 1)
        return np.minimum(total, _UNKNOWN)

    def _error(self, held: Chunk, factors: Factors | None = None) -> float:
        """On held-out entries."""
        factors = factors or self.factors
        at = np.array([side * factors.begin for side in self.loss.sides])
        z = self.engine.scores(factors, held.index + at, self.loss).astype(np.float64)
        return _rms(z + (self.biases.of(held.index) if self.biases else 0.0) - held.targets)

    def _biases_of(self, seen: Observations) -> np.ndarray:
        biases = self.biases
        assert biases is not None
        biases.grow(seen.shape)
        return biases.of(seen.index)


def _rms(values: np.ndarray) -> float:
    return float(np.sqrt(np.mean(np.square(values, dtype=np.float64))))


def _equal(seen: Observations, size: float) -> list[np.ndarray]:
    """The sizes of rows and columns of a matrix that is scaled to have entries of one size."""
    scales = [np.ones(rows) for rows in seen.shape]
    index, squares = seen.index.T, (seen.targets / size) ** 2
    counts = [
        np.bincount(column, minlength=len(own)) for column, own in zip(index, scales, strict=True)
    ]
    if seen.symmetric:
        counts = [counts[0] + counts[1]] * 2
    for _ in range(_SWEEPS):
        for side in (0, 1):
            left = squares / (scales[0][index[0]] * scales[1][index[1]]) ** 2
            total = np.bincount(index[side], left, minlength=len(scales[side]))
            if seen.symmetric:
                total = total + np.bincount(index[1 - side], left, minlength=len(scales[side]))
            mean = total / np.maximum(counts[side], 1)
            mean[mean <= 0] = 1.0
            scales[side] = scales[side] * mean ** (0.25 if seen.symmetric else 0.5)
            if seen.symmetric:
                scales = [scales[side]] * 2
    return scales
