"""A fit of entries or distances from beginning to end: a run of steps, and what is tried where that
is not enough.

- Targets are brought to a size of about one, and rows and columns to one size where theirs differ
  by orders of magnitude; the factors are brought back in the end.
- Where there are hardly more samples than numbers to be learned, Gauss-Newton finishes, from where
  the steps are or from fresh starts (`gauss_newton`).
- Huber's loss has its threshold follow the median of the residuals, and where there is an exact fit
  to all entries but those that stand out, it is found.
- Where the steps end in noise that biases and a ridge explain better, those are taken (`ridge`).
- A table whose columns are of different kinds is learned with a mean, a size and a noise for each
  (`columns`), if that is asked for; and tried where their sizes differ, or nothing else holds.
- What was not determined is said in a warning.

Steps run wherever the engine is; all else is computed here, by `engine.host`, with X and the
entries here as well, and so is the same whoever runs the steps.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from time import perf_counter
from typing import Any

import numpy as np

from ..core.factors import Factors
from ..core.linalg import aligned
from ..core.losses import rms, weighed, weight
from ..core.memory import allow
from ..core.observations import Chunk, Observations
from ..engines.base import Engine, Samples
from .auto_policy import SMALL
from .columns import WIDEST, Columns
from .determined import PLENTY, SPARSE, loose, tied
from .exact import EXACT, STARTS, TRUE, Exact, double
from .history import History, Progress
from .ridge import Biases, RidgeTrainer, starting_scale
from .sizes import LOOK, divided, sizes
from .trainer import Trainer

_NOTCH, _HALF = 1.1, 0.5  # of held-out errors that are alike, and of fits that are not

_RATED = (2, 3)  # epochs after which a run is compared with biases alone
_BIASED, _HARDLY, _NOISY = 0.95, 0.9, 0.5  # shares of errors: see `_hardly`, `_is_noisy`
_STRONG = 0.7  # of the error of biases: what a ridge leaves where more than noise is left
_MOVES = 0.9  # of the targets: an error at which steps have found something
# Directions beside a ridge, where the rank is not given: so many, and one more for each entry that
# a row has on average, but no more than that.
_WIDE, _WIDEST = 16, 48
_TABLE, _FULL = 500, 0.2  # columns that a table has at most, and the share of it that is known

_SLOW = 40  # epochs after which a run with few samples is taken over by Gauss-Newton
_FEW = 4.0  # samples for each number, up to which that is tried
_CLEAN = 1e-3  # of the targets: a held-out error below which there is hardly noise
_STRAY = 1.5  # times the training error: a held-out error that is not that of noise

# The threshold of Huber's loss in units of the median residual: 1.345 deviations, with which a
# twentieth of what Gaussian noise tells is lost. How it may change from one epoch to the next.
_TUNED, _SLOWEST, _FASTEST = 1.345 * 1.4826, 0.5, 30.0
_SHOWN = 65_536  # residuals that show their median
_MEMORY = 1000  # of those in a stream
_WRONG = 0.25  # entries that may be
_REFITS = 4

_CHANCE_OF_BITS = 0.1  # held-out error of probabilities from which on they may be overfitted

_DENSE = 4000  # points, whose distances are a matrix that fits
_BETTER = 0.9  # of the held-out error: what a start from paths must reach
_SHAKES = 12  # other starts, where nothing was held out

# Over the number of held-out entries: a share of their squares that says nothing.
_CHANCE = 20.0
_ROUNDING = 1e-13  # of the targets: the least threshold
_ROBUST = (
    "loss='huber' goes with learning_rate='auto' and refresh='round', entries that fit this "
    "process, and no checkpoint"
)
_UNKNOWN = 1e6  # times the noise's variance: that of an entry of which nothing is known
# Times what the training error lets expect: a held-out error that says that nothing was found.
_GAP, _APART_AT_MOST = 1.5, 2.0


@dataclass
class Completion(Trainer):
    """A trainer that knows more than one way."""

    policy: Any  # an `AutoPolicy`, unless somebody says how to step
    center: bool | str = "auto"
    regularization: float | str = "auto"
    wide: bool = False  # whether the rank is to be found
    biases: Biases | None = None  # what is added to the product of the factors
    ridge: float = 0.0  # lambda beside those, in units of the targets
    columns: Columns | None = None  # of a table, until something else is learned
    held_error: float | None = None  # on held-out entries, in units of the targets
    undetermined: dict[int, list[int]] = field(default_factory=dict)  # rows, by side
    lost: bool = False  # whether what was found does not hold for what was held out
    counts: list[np.ndarray] = field(default_factory=list)  # entries of every row, and column
    entries: int = 0  # all of them: mentions of the same one, and mirror images, are one
    noise: float | None = None  # standard deviation of an entry around what it would be expected
    _units: tuple[float, float] = (1.0, 1.0)  # of the targets now, and when the run began
    _asks: tuple[str, ...] = ()  # for what a run may be interrupted: "noise", "slow"

    def complete(self, observations: Observations, *, epochs: int, **how) -> History:
        """As a trainer runs, and then what is left to be tried."""
        kept = self.checkpoint
        try:
            return self._complete(observations, epochs=epochs, **how)
        finally:
            self.checkpoint = kept

    def _complete(self, observations: Observations, *, epochs: int, **how) -> History:
        policy, loss = self.policy, self.loss.name
        able = policy.automatic and policy.scaled and not self.per_sample
        here = self.engine.fetched(observations) if able else None
        if loss == "huber" and (here is None or self.checkpoint):
            raise ValueError(_ROBUST)
        if here is None:
            asked = self.center not in ("auto", False) or self.regularization not in ("auto", 0)
            if asked:
                raise ValueError(
                    "center and regularization go with loss='squared', learning_rate='auto' and "
                    "refresh='round', and with entries that fit this process"
                )
            return self.run(observations, epochs=epochs, **how)
        observations = here
        if not observations.disposable:
            own = Chunk(observations.index.copy(), double(observations.targets))
            observations = observations.of(own)
        if self.center == "columns":
            self._count(observations, None)
            self._take_columns(observations)
            return self.history
        rest, held = policy.hold_out(observations, self.rng)
        sides = sizes(rest, self.factors.seed) if loss in ("squared", "distance") else None
        if loss == "huber":
            self._robust(rest, held, epochs, how)
        elif loss == "logistic":
            self._likely(rest, held, epochs, how)
        else:
            rest = self._in_units(sides, rest, held, epochs, how)
            if self.history.stopped == "ridge":
                # Of few entries of a matrix of that rank, a ridge is what is left, and not it.
                nothing = self.policy.held > _NOISY * self.policy.size
                few = self.entries < _FEW * self.factors.numbers(self.factors.rank)
                self.lost = bool(
                    self.regularization == "auto" and not self.wide and nothing and few
                )
                self.history.stopped = "undetermined" if self.lost else "ridge"
            elif self.history.stopped != "callback" and self.columns is None:
                self._conclude(rest, held)
                if self.lost and held is not None and self._is_table(rest):
                    self.lost = not self._by_columns(rest, held)
        return self.history

    @contextmanager
    def following(self, seen: Observations) -> Iterator[Observations]:
        """What the factors have to explain of observations that come by once."""
        self.columns = None
        if self.biases is not None:
            self.biases.grow(seen.shape)
            y = seen.targets - self.biases.of(seen.index)
            seen = seen.of(Chunk(seen.index.copy(), y))
        if self.loss.name != "huber":
            yield seen
            return
        if not (self.policy.automatic and not self.per_sample):
            raise ValueError(_ROBUST)
        self._bring()
        at = np.array([side * self.factors.begin for side in self.loss.sides])
        z = self.engine.host.scores(self.factors, seen.index + at, self.loss)
        new, old = self._threshold(seen.targets.real - z), self.policy.threshold
        share = len(seen) / (len(seen) + _MEMORY) if old else 1.0
        unit = self.policy.threshold = float((old or 1.0) ** (1 - share) * new**share)
        some = Chunk(seen.index.copy(), double(seen.targets))
        some.targets.real /= unit
        self._rescale(1 / unit, self.engine.host)
        try:
            yield seen.of(some)
        finally:
            self._bring()
            self._rescale(unit, self.engine.host)

    def _bring(self) -> None:
        """X to this process; a snapshot that is elsewhere is let go."""
        self.factors.X = self.engine.local(self.factors.X)
        if self.engine.host is not self.engine:
            self.snapshot = None

    # --- Units ----------------------------------------------------------------------------------

    def _in_units(self, sides, rest: Observations, held: Chunk | None, epochs, how) -> Observations:
        """Attempts in units in which rows and columns are of size one. Where that does not solve
        it, rows are also tried with sizes of their own, and the better of both is kept. Returns
        what was trained on."""
        if sides is None:
            return self._attempts(rest, held, epochs, how)
        some = Chunk(rest.index.copy(), divided(rest, sides))
        scaled = held and Chunk(held.index, divided(held, sides))
        self._restart(rest.of(some), self.factors.seed)
        self._attempts(rest.of(some), scaled, epochs, how)
        self._unscale(sides)
        solved = self.history.stopped in ("solved", "tol", "callback")
        if solved or held is None or not any(np.ptp(scale) for scale in sides):
            return rest
        if self._is_table(rest) and self._by_columns(rest, held, sides):
            return rest
        first, fit = self._fits.error(held), self._fits.error(Chunk(rest.index, rest.targets))
        kept = self.factors, self.policy, self.biases, self.history, self.held_error
        self.history, self.biases = replace(self.history, records=[], stopped=""), None
        self._restart(rest, self.factors.seed)
        rest = self._attempts(rest, held, epochs, how)
        # Where what is large was not held out, the fit tells.
        now = self._fits.error(Chunk(rest.index, rest.targets))
        closer = self._fits.error(held) < _NOTCH * first and now < _HALF * fit
        if not (self._fits.error(held) < first or closer):
            self.factors, self.policy, self.biases, self.history, self.held_error = kept
            self.left, self.P = 0, None
        return rest

    def _unscale(self, sides: list[np.ndarray]) -> None:
        """Back to the units of the targets."""
        factors, policy = self.factors, self.policy
        unit = 1.0
        for side, scale in zip(factors.sides, sides, strict=False):
            side *= scale[:, None].astype(side.dtype)
            unit *= float(np.exp(np.mean(np.log(scale))))
        unit = unit**2 if factors.rows is None else unit
        factors.refresh(self.engine.host)
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

    def _attempts(self, rest: Observations, held: Chunk | None, epochs: int, how) -> Observations:
        """Steps, and what else is worth a try. Returns what was trained on."""
        known, begin = held is not None and not self.policy.whole, 0
        self._count(rest, held)
        if known and self.regularization not in ("auto", 0):
            self._is_better(self._ridged(rest, held), rest, held, force=True)
            return rest
        rated = self.loss.name == "squared" and self.factors.rows is not None
        rated = rated and self.regularization == "auto" and self.center in ("auto", True)
        self._asks = ("noise",) * rated + ("slow",) if known and epochs >= _SLOW else ()
        more, ridged = bool(self._asks), None
        while True:
            rest = self._steps(rest, held, epochs=epochs, begin=begin, **how)
            why, records = self.history.stopped, self.history.records
            begin = round(records[-1]["epoch"]) if records else epochs  # evaluations=0 leaves none
            sparse = self.entries < SPARSE * self.factors.numbers(max(self.policy.useful, 1))
            if why in ("solved", "tol") and "slow" in self._asks and sparse:
                self._finished(rest, held)  # with the fewest directions
            if why in ("solved", "tol", "callback"):
                break
            if "slow" in self._asks and why != "noise" and self._few():
                self._asks = tuple(ask for ask in self._asks if ask != "slow")
                # Where a ridge was tried, noise is likelier than a bad start.
                if self._finished(rest, held, 1 if ridged else STARTS):
                    break
            paths = more or (held is None and self.policy.automatic)
            if paths and self.loss.name == "distance" and self._from_paths(rest, held):
                break
            if held and "noise" in self._asks and why != "slow" and self._is_noisy(held):
                self._asks = tuple(ask for ask in self._asks if ask != "noise")
                ridged = self._ridged(rest, held)
                # What explains much more than biases do may be no noise at all: steps go on.
                strong = why == "noise" and ridged.error < _STRONG * self.policy.biased
                if not strong and self._is_better(ridged, rest, held):
                    break
            if why not in ("noise", "slow"):
                if held and ridged:
                    self._is_better(ridged, rest, held)
                break
        return rest

    def _review(self, epoch: int, data, held: Chunk | None, streaming: bool) -> str:
        verdict = super()._review(epoch, data, held, streaming)
        if self.loss.name == "huber" and not (streaming or verdict or self.policy.polishing):
            self._follow_median(data, held)
        if verdict or held is None or self.policy.polishing:
            return verdict
        if "noise" in self._asks and self._hardly(epoch, data, held):
            return "noise"
        if "slow" in self._asks and epoch >= _SLOW and self._few():
            return "slow"
        return ""

    def _hardly(self, epoch: int, data, held: Chunk) -> bool:
        """Whether biases help, and the steps so far hardly do better than those alone."""
        if epoch not in _RATED:
            return False
        policy, size = self.policy, rms(held.targets)
        if not policy.biased:
            at, look = np.array([0, self.factors.begin]), self._look(data, LOOK)
            biases = Biases.fit(Chunk(look.index - at, look.targets), self.factors.shape)
            policy.biased = rms(held.targets - biases.of(held.index - at))  # weights stay
        moves = policy.last < _MOVES * size  # before, nothing is known about steps
        return policy.biased < _BIASED * size and moves and policy.last > _HARDLY * policy.biased

    def _is_noisy(self, held: Chunk) -> bool:
        return self.policy.held > _NOISY * rms(held.targets - np.mean(held.targets.real))

    def _few(self) -> bool:
        """Whether there are few entries for each number that may be learned, and nothing much was
        learned, or not what was held out, or all but the last digits."""
        policy = self.policy
        if self.loss.name == "distance":
            return policy.held > TRUE * policy.size
        astray = policy.held > _NOISY * policy.size or policy.held > _STRAY * policy.train
        astray = astray or policy.held < _CLEAN * policy.size
        return astray and self.entries < _FEW * self.factors.numbers(self.factors.rank)

    def _steps(self, rest: Observations, held: Chunk | None, **how) -> Observations:
        """A run, after which X is here. Returns what was trained on, as it was before."""
        self.run(rest, split=(rest, held), **how)
        self.factors.X = self.engine.local(self.factors.X)
        self.checkpoint = None  # who goes on from it finds this run over, and the next to do
        data, self.data = self.data, None  # a cluster's are on disks, until nobody has them
        return data.returned(rest, [side * self.factors.begin for side in self.loss.sides])

    def _look(self, data: Samples, count: int) -> Chunk:
        """Some of the samples, here."""
        return Chunk(*(self.engine.local(part) for part in data.fair(count)))

    # --- Outliers -------------------------------------------------------------------------------

    def _robust(self, rest: Observations, held: Chunk | None, epochs: int, how: dict) -> None:
        """Steps in units of the threshold, which follows the median residual."""
        self._count(rest, held)
        unit = self._threshold(rest.targets.real)
        for some in (rest, held):
            if some is not None:
                some.targets.real /= unit
        self._units = unit, unit
        self._restart(rest, self.factors.seed)
        rest = self._steps(rest, held, epochs=epochs, **how)
        exact = False
        if held is not None and self.history.stopped != "callback":
            exact = self._without_outliers(rest, held)
        unit, began = self._units
        for record in self.history.records:
            record["loss"] *= began**2
        self._rescale(unit, self.engine.host)
        self.policy.threshold = unit
        if exact:
            self.held_error, self.left, self.P = self.policy.held, 0, None
        for some in (rest, held):
            if some is not None:
                some.targets.real *= unit
        if not exact:
            self._conclude(rest, held)
        self._units = 1.0, 1.0

    def _threshold(self, residuals: np.ndarray) -> float:
        """Where more than half are 0, the next larger one tells how large they are."""
        e = np.abs(residuals[:_SHOWN])
        return _TUNED * (float(np.median(e)) or float(e[e > 0].min() if e.any() else 1.0))

    def _rescale(self, by: float, engine: Engine) -> None:
        """Everything that is learned, to units in which targets are `by` times what they were.
        Args: engine, who holds X now."""
        factors, policy, root = self.factors, self.policy, float(np.sqrt(by))
        roots = np.full(factors.rank, root)
        engine.scale(factors.X, roots)
        factors.spectrum = factors.spectrum * by
        left, right = factors.scale
        factors.scale = left * root, right * root
        if self.snapshot is not None:
            for side in self.snapshot.sides:
                engine.scale(side, roots)
            self.snapshot = self.snapshot._replace(spectrum=self.snapshot.spectrum * by)
        for name in ("rms", "size", "first", "train", "held", "last"):
            setattr(policy, name, getattr(policy, name) * by)
        policy.squares *= by**2
        self.P = None if self.P is None else self.P / by

    def _follow_median(self, data, held: Chunk | None) -> None:
        """Bring the threshold to where the residuals are now."""
        look = self._look(data, _SHOWN)
        z = self.engine.scores(self.factors, look.index, self.loss)
        by = 1 / self._threshold(look.targets.real - z)
        now, began = self._units
        by = min(float(np.clip(by, _SLOWEST, _FASTEST)), now / (_ROUNDING * began))
        data.rescale(by)
        if held is not None:
            held.targets.real *= by
        self._rescale(by, self.engine)
        self._units = now / by, began

    def _evaluate(self, epoch: float, seen: Chunk) -> Progress:
        now, began = self._units
        if now == began == 1.0:
            return super()._evaluate(epoch, seen)
        told = super()._evaluate(epoch, self.data.fair(len(seen)))  # in units of now
        loss = self.history.records[-1]["loss"] = told.loss * (now / began) ** 2
        X = told.factors.X.copy()
        self.engine.scale(X, np.full(told.factors.rank, np.sqrt(now)))
        return Progress(epoch, told.samples, loss, replace(told.factors, X=X))

    def _without_outliers(self, rest: Observations, held: Chunk) -> bool:
        """Whether there is an exact fit, by Gauss-Newton, to all entries but those that stand out:
        and to most of what was held out."""
        factors, policy, fits = self.factors, self.policy, self._fits
        at, seen, held = fits.at(), fits.seen(rest), fits.seen(held)
        every = Chunk(*(np.concatenate(both) for both in zip(seen, held, strict=True)))
        factors.refresh(self.engine.host)
        X = factors.X[:, : max(policy.useful, 1)].astype(np.float64)
        size, fit, error = float(np.median(np.abs(seen.targets.real))), np.inf, np.inf
        judges = held
        for _ in range(_REFITS):
            some = fits.standing_in(X, seen, size)
            if len(some) < (1 - _WRONG) * len(seen):
                return False
            X, fit = fits.descend(X, some)
            judges = fits.standing_in(X, held, size)
            error = fits.error(Chunk(judges.index - at, judges.targets), X)
            if fit <= EXACT:
                break
        if fit > EXACT or error > TRUE * size or len(judges) < (1 - _WRONG) * len(held):
            return False
        some = fits.standing_in(X, seen, size)
        while X.shape[1] > 1 and len(some) < _FEW * self.factors.numbers(X.shape[1]):
            fewer, fit = fits.descend(fits.ordered(X).X[:, :-1].copy(), some)
            if fit > EXACT:
                break
            X = fewer
        some = fits.standing_in(X, every, size)
        X, _ = fits.descend(X, some)
        self._hold(X, error)
        self._count(rest.of(Chunk(some.index - at, some.targets)), None)
        # A row that fits no more entries than it has numbers may fit wrong ones.
        self.undetermined = {
            side: np.flatnonzero(seen <= policy.useful).tolist()
            for side, seen in enumerate(self.counts[: len(factors.sides)])
        }
        self.history.stopped = "undetermined" if any(self.undetermined.values()) else "solved"
        return True

    # --- A ridge --------------------------------------------------------------------------------

    def _likely(self, rest: Observations, held: Chunk | None, epochs: int, how: dict) -> None:
        """Steps on bits or probabilities; and, of bits that are mostly chance, a ridge, where bits
        that neither has seen are likelier with it: beside many directions, of which the largest are
        kept. (With as few as are kept, what the ridge takes from those nothing else can give.)"""
        rest = self._steps(rest, held, epochs=epochs, **how)
        unsure = held is not None and self.policy.held > _CHANCE_OF_BITS
        two_sided = self.factors.rows is not None and self.regularization == "auto"
        if not (unsure and two_sided) or self.history.stopped == "callback":
            return
        assert held is not None
        index = np.concatenate([rest.index, held.index])
        every = rest.of(Chunk(index, np.append(rest.targets, held.targets)))
        run = self._held_back(every)
        part, judges = run.parted(every)
        some, policy = part.of(Chunk(part.index.copy(), part.targets.copy())), self.policy
        error = run.descend(part, judges)
        rival = type(policy)(damping=policy.damping)
        scale = rival.starting_scale(some.size, some.shape, self.factors.rank, self.loss.name)
        start = self.engine.host.start(
            some.shape, self.factors.rank, self.loss, seed=self.factors.seed, scale=scale
        )
        Trainer(start, self.loss, rival, self.engine.host, self.rng).run(
            some, epochs=epochs, evaluations=0
        )
        at = np.array([0, start.begin])
        z = self.engine.host.scores(start, judges.index + at, self.loss).astype(np.float64)
        if float(np.sqrt(2 * np.mean(weighed(self.loss.value, z, judges.targets)))) <= error:
            return
        again, rank = self._held_back(every), self.factors.rank
        again.share = run.share
        again.descend(every)
        if not self.wide:
            again.factors.refresh(self.engine.host)
            X, S = again.factors.X[:, :rank].copy(), again.factors.spectrum[:rank]
            again.factors = replace(again.factors, X=X, spectrum=S, room=None)
        self._take(again, min(run.useful, again.factors.rank), policy.held)

    def _ridged(self, rest: Observations, held: Chunk | None) -> RidgeTrainer:
        """Who has learned biases and factors held back by a ridge, of all but what is held out."""
        assert held is not None
        run = self._held_back(rest)
        run.tune(rest, held, None if self.regularization == "auto" else float(self.regularization))
        return run

    def _is_better(self, run: RidgeTrainer, rest, held: Chunk | None, force=False) -> bool:
        """Whether a ridge is better on held-out entries, and then what it has learned is taken."""
        assert held is not None
        if not (force or run.error < self.policy.held):  # before that was trained on as well
            return False
        run.finish(rest, held)
        self.biases = run.biases
        self._take(run, run.factors.rank, run.error)
        self._calibrate(held)
        return True

    def _held_back(self, seen: Observations) -> RidgeTrainer:
        """Who learns with a ridge, from the beginning."""
        shape, old = seen.shape, self.factors
        biased = self.center is not False and self.loss.name == "squared"
        biases = Biases(0.0, np.zeros(shape[0]), np.zeros(shape[1]))
        if biased:
            biases = Biases.fit(Chunk(seen.index, seen.targets), shape)
        size = rms(seen.targets[:LOOK] - biases.of(seen.index[:LOOK]))
        wide = min(_WIDE + len(seen) // sum(shape), _WIDEST, *shape)
        rank = max(old.rank, wide) if self.wide or self.loss.name == "logistic" else old.rank
        X = aligned(sum(shape), rank, np.float32)  # of noise no more digits are known
        X[...] = np.random.default_rng([old.seed, 9]).standard_normal(X.shape, np.float32)
        scale = starting_scale(size, shape)
        factors = Factors(X, shape[0], old.seed, scale, spectrum=np.zeros(rank))
        for side, by in zip(factors.sides, scale, strict=True):
            side *= np.float32(by)
        return RidgeTrainer(factors, self.loss, self.engine.host, self.rng, biases, biased)

    def _take(self, run: RidgeTrainer, useful: int, error: float) -> None:
        """What was learned with a ridge, instead of what the steps found."""
        X = aligned(len(run.factors.X), run.factors.rank, self.factors.X.dtype)
        X[...] = run.factors.X
        self.factors, self.ridge, policy = replace(run.factors, X=X), run.ridge, self.policy
        policy.useful, policy.columns = useful, self.factors.rank
        policy.rms = policy.train = run.rms
        policy.held = policy.last = self.held_error = error
        self.factors.refresh(self.engine.host)
        self.samples += run.samples
        self.history.stopped = "ridge"
        self.left, self.P = 0, None

    # --- Tables ---------------------------------------------------------------------------------

    def _is_table(self, seen: Observations) -> bool:
        rows, columns = seen.shape
        small = columns <= min(_TABLE, rows) and len(seen) > _FULL * rows * columns
        asked = self.center == self.regularization == "auto"
        return asked and small and self.loss.name == "squared" and not seen.symmetric

    def _by_columns(self, rest: Observations, held: Chunk, sides=None) -> bool:
        """Whether held-out entries are told better by columns of different kinds, which are then
        taken. Args: sides, sizes of rows and columns, in units of which that is judged."""
        table, weights = _table(rest)
        own = self._of_columns(table, weights)
        filled = (own.rows(table, weights) @ own.loadings.T + own.means)[tuple(held.index.T)]
        error, before = rms(held.targets - filled), self.policy.held
        if sides is not None:
            at = np.array([0, self.factors.begin])
            z = self.engine.host.scores(self.factors, held.index + at, self.loss).astype(np.float64)
            z += self.biases.of(held.index) if self.biases else 0.0
            error, before = (
                rms(divided(Chunk(held.index, held.targets - told), sides)) for told in (filled, z)
            )
        if not error < before:
            return False
        index = np.concatenate([rest.index, held.index])
        every = rest.of(Chunk(index, np.append(rest.targets, held.targets)))
        self._take_columns(every)
        return True

    def _of_columns(self, table: np.ndarray, weights: np.ndarray) -> Columns:
        m, n = table.shape
        rank = max(1, min(WIDEST, n, m // 2)) if self.wide else self.factors.rank
        rng = np.random.default_rng([self.factors.seed, 8])
        ridge = 1.0 if self.regularization == "auto" else float(self.regularization)
        return Columns.fit(table, rank, rng, ridge, weights)

    def _take_columns(self, seen: Observations) -> None:
        """What columns of different kinds tell, instead of what the steps found."""
        clock, (table, weights) = perf_counter(), _table(seen)
        found = self._of_columns(table, weights)
        rows, spectrum = found.balanced(found.rows(table, weights))
        error = table - rows @ found.loadings.T - found.means
        factors, policy, rank = self.factors, self.policy, found.loadings.shape[1]
        X = self.engine.host.put(np.concatenate([rows, found.loadings]).astype(factors.X.dtype))
        self.factors = Factors(X, len(rows), factors.seed, factors.scale, spectrum=spectrum)
        self.biases = Biases(0.0, np.zeros(len(rows)), found.means)
        self.columns, self.held_error, self.noise = found, None, None
        # For rows that are folded in once more was learned.
        self.ridge = float(np.mean(found.noises) / np.sqrt(len(found.means)))
        policy.useful = policy.columns = rank
        policy.rms = policy.train = policy.last = policy.held = rms(error[~np.isnan(table)])
        policy.size = policy.size or rms(seen.targets)
        self.samples += len(seen)
        self.history.records.append(
            {"epoch": 1.0, "samples": float(self.samples), "loss": policy.rms**2 / 2,
             "condition_number": self.factors.condition_number, "seconds": perf_counter() - clock}
        )  # fmt: skip
        empty = np.flatnonzero(np.isnan(table).all(axis=0)).tolist()
        self.undetermined = {1: empty}
        self.history.stopped = "undetermined" if empty else "columns"
        self.left, self.P, self.snapshot = 0, None, None

    # --- Few samples ----------------------------------------------------------------------------

    def _finished(self, rest: Observations, held: Chunk | None, starts: int = STARTS) -> bool:
        """Whether Gauss-Newton has found an exact fit that holds for what was held out."""
        assert held is not None
        policy, fits = self.policy, self._fits
        seen = fits.seen(rest)
        self.factors.refresh(self.engine.host)
        found = self.factors.X[:, : max(policy.useful, 1)].astype(np.float64)
        near = policy.held < _NOISY * rms(held.targets)
        X = fits.near(found, seen, held) if near else None
        if X is None and self.loss.name == "squared":
            X = fits.anywhere(seen, held, starts)
        if X is None:
            return False
        X = fits.fewest(X, seen, held)
        self.held_error = fits.error(held, X)
        index = np.concatenate([seen.index, held.index + fits.at()])
        X, _ = fits.descend(X, Chunk(index, np.append(seen.targets, held.targets)))
        self._hold(X, self.held_error)
        self.history.stopped = "solved"
        return True

    @property
    def _fits(self) -> Exact:
        return Exact(self.factors, self.loss, self.engine.host, self.biases)

    def _hold(self, X: np.ndarray, error: float) -> None:
        """An exact fit, instead of what the steps found."""
        factors, policy = self.factors, self.policy
        factors.X[...] = 0.0
        factors.X[:, : X.shape[1]] = X
        factors.refresh(self.engine.host)
        policy.useful = policy.columns = X.shape[1]
        policy.last = policy.held = error
        self.left, self.P = 0, None

    def _from_paths(self, rest: Observations, held: Chunk | None) -> bool:
        """Whether distances of neighbours are explained better from a start of shortest paths. Of
        few distances, of which none are held out, the fit tells."""
        fits, policy = self._fits, self.policy
        if self.factors.d > _DENSE:
            return False
        seen = fits.seen(rest)
        before = policy.held if held else fits.error(seen)
        start = fits.from_paths(seen)
        X, fit = fits.descend(start, seen)
        for _ in range(0 if held or fit <= EXACT else _SHAKES):  # few are soon tried
            shaken = start + start.std() * self.rng.standard_normal(start.shape)
            other, left = fits.descend(shaken, seen)
            if left < fit:
                X, fit = other, left
        error = fits.error(held or seen, X)
        if not error < _BETTER * before:
            return False
        if held:
            everything = np.concatenate([rest.index, held.index])
            X, fit = fits.descend(X, Chunk(everything, np.append(seen.targets, held.targets)))
        self._hold(X, error)
        self.held_error, policy.train = error, fit * rms(rest.targets)
        self.history.stopped = "solved" if fit <= EXACT else "settled"
        return True

    # --- The end --------------------------------------------------------------------------------

    def _conclude(self, rest: Observations, held: Chunk | None) -> None:
        """Nothing, where nothing was found; and what is not determined is said."""
        policy, factors, squared = self.policy, self.factors, self.loss.name == "squared"
        if policy.whole:
            return
        if held is not None and np.isfinite(policy.held):
            self.held_error = policy.held
            # The best of many epochs and ranks is better than nothing by chance alone.
            gain = 1 - (policy.held / max(rms(held.targets), 1e-300)) ** 2
            if squared and gain < _CHANCE / len(held):
                if self._fits_too_well():
                    self.lost, self.history.stopped = True, "undetermined"
                    return
                policy.useful = 0
                small = SMALL * float(np.sqrt(policy.size))
                self.engine.host.sow(factors, 0, factors.rank, small, [factors.seed, 6])
                # What is there may have more directions than so few entries tell.
                few = self.entries < PLENTY * self.factors.numbers(1)
                self.lost = few if self.wide else self._few()
                if self.lost:
                    self.history.stopped = "undetermined"
                return
        solved = self.history.stopped in ("solved", "tol")
        used = policy.useful if policy.useful >= 0 else factors.rank
        numbers = self.factors.numbers(max(used, 1))
        distances = self.loss.name == "distance"
        # A point that is as far from r others has a mirror image that is, too.
        needed = used + 1 if distances else policy.useful
        unknown = [seen < needed for seen in self.counts[: len(factors.sides)]]
        if self.loss.name in ("squared", "huber") and used > 0:
            how = {"solved": solved, "wide": self.wide}
            found = loose(self._fits, rest, held, policy, self.entries, **how)
            cut = tied(rest, used, factors)
            unknown = [a | b | c for a, b, c in zip(unknown, found, cut, strict=True)]
        self.undetermined = {
            side: np.flatnonzero(rows).tolist() for side, rows in enumerate(unknown)
        }
        self._calibrate(held)
        nothing = squared and not self.wide and policy.held > _NOISY * policy.size
        share = min(numbers / max(self.entries, 1), 0.9)
        gap = min(_GAP * np.sqrt((1 + share) / (1 - share)), _APART_AT_MOST)
        astray = policy.held > gap * policy.train or (nothing and self._few())
        self.lost = bool(not solved and held is not None and astray)
        if distances and held is None and not solved:
            self.lost = self.entries < _FEW * numbers
        if self.lost or any(self.undetermined.values()):
            self.history.stopped = "undetermined"

    def _fits_too_well(self) -> bool:
        """Whether the steps explain more than noise lets them: what they found is then not where
        anything was held out."""
        chance = _GAP * 2 * self.factors.numbers(self.factors.rank) / max(self.entries, 1)
        return bool(self.policy.train**2 < (1 - chance) * self.policy.size**2)

    def _count(self, rest: Observations, held: Chunk | None) -> None:
        """How many entries of every row and column are known."""
        counts = {side: np.zeros(rest.shape[side], np.int64) for side in rest.sides()}
        parts = [index for _, index, _ in rest.blocks()] + ([] if held is None else [held.index])
        self.entries = sum(map(len, parts))
        # What was held out, with all its mentions, shows whether there are any.
        once = held is not None and len(rest.distinct(held.index)) == len(held)
        if not once and self.entries < PLENTY * self.factors.numbers(self.factors.rank):
            parts = [rest.distinct(np.concatenate(parts))]
            self.entries = len(parts[0])
        for index in parts:
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


def _table(seen: Observations) -> tuple[np.ndarray, np.ndarray]:
    """All entries, NaN for gaps, and their weights; of one named more than once, the mean."""
    m, n = seen.shape
    allow(64.0 * m * n, f"a table of {m} x {n}, with its gaps,")
    place = seen.index[:, 0].astype(np.int64) * n + seen.index[:, 1]
    w = np.broadcast_to(weight(seen.targets), len(seen))
    weights = np.bincount(place, w, minlength=m * n)
    total = np.bincount(place, w * seen.targets.real, minlength=m * n)
    table = np.divide(total, weights, out=np.full(m * n, np.nan), where=weights > 0)
    return table.reshape(m, n), weights.reshape(m, n)
