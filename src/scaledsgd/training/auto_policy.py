"""A policy that needs no tuning: the start, the step, the damping and the rank find themselves.

It rests on six observations:

- From a small start directions are learned one after the other, the largest first, and none that
  the data does not show.
- P = 1 / (S + eta) with eta as large as the error still is keeps noise out of small directions.
- A row of high leverage overshoots: each step undoes at most `cap` of its residual.
- A row that lags far behind the others is found at once by itself (`rows`).
- Directions that do not help on held-out entries are cut off, and grow again if they do help.
- When neither training nor held-out error comes down, what is left is noise: the step decays. Once
  it has, the held-out entries have said what they know, and are trained on as well.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from ..core.factors import Factors
from ..core.linalg import floored
from ..core.losses import Loss
from ..core.observations import Chunk, Observations
from ..engines.base import Engine
from . import holdout
from .lagging_rows import LINEAR
from .policy import Policy

_HELPS = 0.99  # held-out error must fall by a percent for a direction to be worth having
_PRUNED_EVERY = 8  # epochs between prunings down to the smallest rank that is as good
_GAINED, _PROGRESS = 0.98, 0.9  # ratios of errors that count as some gain, and as good progress
_PATIENCE, _WARM = 3, 10  # epochs without a gain before the step decays, and before that may be
_SLOWER = 0.7  # what a step is multiplied with when it should be smaller
_WORSE = 1.5  # times the best error of both kinds: the run has left its course
_BLOWN = 10.0  # times the error at the start: it will not come back by itself
_AWAKE = 0.05  # the smallest theta in a stream: forgets within some twenty observations of a row
_LAST = 0.02  # theta below which an epoch changes nothing any more
_POLISH, _POLISHED = 0.3, 0.01  # theta when the held-out entries join in, and at the end of the run
# Epochs in between. Of a matrix that is known as a whole, directions of noise are told apart.
_POLISHING, _POLISHING_WHOLE = 10, 60
_SOLVED = 1e-11  # of the targets' size: held-out error this small is rounding away from zero
_ROUNDING = 1e-15  # of the targets' size: nothing is smaller


_PULL = 0.05  # how much of a step pulls what is all damping back to zero
SMALL = 1e-3  # of the natural scale: far below every direction there is to find


class Initialisation(NamedTuple):
    """How a run on a loss begins, and how its step decays by itself."""

    scale: float = SMALL  # of X_0, in units of the square root of the targets' size, or of 1
    natural: bool = True  # whether it is in units of the targets
    column: float = 0.0  # the first column of X_0 is this, plus the noise of the others
    rounds: float = np.inf  # of d samples until the step is half as long


INITIALISATIONS = {
    "squared": Initialisation(),
    "huber": Initialisation(),
    "distance": Initialisation(),
    "logistic": Initialisation(),
    # Who is popular is most of a ranking, and a constant column learns that first. Comparisons
    # contradict each other, so the step has to decay even within the first epoch.
    "bpr": Initialisation(0.1, natural=False, column=1.5, rounds=20.0),
}


@dataclass
class AutoPolicy(Policy):
    """Starts bold, and keeps what helps on entries it has not seen.

    >>> from scaledsgd.core.losses import LOSSES
    >>> policy = AutoPolicy()
    >>> factors = Factors(np.eye(6, 2), spectrum=np.ones(2))
    >>> policy.rates(factors, LOSSES["squared"])
    array([3., 3.])
    """

    damping: float = 1.0
    theta: float = 1.0  # the step, in units of d / r: about the share of a residual that it undoes
    size: float = 0.0  # root mean square of the targets
    total: int = 0  # samples seen
    kind: str = "squared"  # of the observations, whose way to begin was taken
    first: float = 0.0  # of the residuals before the first step
    gap: float = 1.0  # held-out error against training error
    squares: float = 0.0  # of the residuals since the last review
    epoch: int = 0
    train: float = np.inf  # the best training and held-out errors so far
    held: float = np.inf
    stalled: int = 0
    patience: int = _PATIENCE
    turn: float = _SLOWER  # what the step is multiplied with next, in a stream or at the end
    last: float = np.inf  # the held-out error of the last review
    whole: bool = False  # whether every entry is known
    polishing: bool = False  # whether the held-out entries have been given back
    threshold: float = 0.0  # of Huber's loss, in units of the targets
    biased: float = 0.0  # held-out error of biases alone, where those were looked at

    automatic = True
    cap = 1.7  # beyond 2 a residual grows; at 1 more epochs are needed

    @property
    def starting_column(self) -> float:
        return INITIALISATIONS[self.kind].column if self.scaled else 0.0

    @property
    def regrets(self) -> bool:
        return bool(self.last > self.held / _GAINED)

    @property
    def catches_up(self) -> bool:
        return self.scaled and not self.polishing and self.epoch % 2 == 1 and self.kind in LINEAR

    def starting_scale(self, size: float, shape, rank: int, kind: str) -> tuple[float, float]:
        self.columns, self.kind, self.size = int(rank), kind, size
        start = INITIALISATIONS[kind]
        if not self.scaled:  # plain SGD never leaves a start as small as that
            return 1.0, 1.0
        spread = start.scale * (np.sqrt(self.size) if start.natural and self.size else 1.0)
        # Both sides carry half of every singular value, spread over as many rows as they have.
        ratio = (shape[1] / shape[0]) ** 0.25
        return spread * ratio, spread / ratio

    def hold_out(self, observations: Observations, rng) -> tuple[Observations, Chunk | None]:
        self.whole = observations.complete()
        return holdout.hold_out(observations, rng)

    def rates(self, factors: Factors, loss: Loss) -> np.ndarray:
        start = INITIALISATIONS[self.kind]
        # A row of L learns from rows of R, of which there are as many as the matrix has columns.
        others = [factors.shape[1 - side] for side in loss.sides]
        decay = 1.0 / (1.0 + self.total / factors.d / start.rounds)
        step = self.theta * max(decay, _AWAKE) / (self._dimension(factors, loss) * loss.gain)
        return step * np.array(others)

    def _dimension(self, factors: Factors, loss: Loss) -> float:
        """How many directions a step moves along: those that are more than damping."""
        columns = self.columns or factors.rank
        if np.isfinite(INITIALISATIONS[self.kind].rounds):
            return columns
        S = factors.spectrum
        return max(float((S / floored(S + self.eta(factors, loss))).sum()), columns / 2)

    def eta(self, factors: Factors, loss: Loss) -> float:
        return self.gap * super().eta(factors, loss)

    def preconditioner(self, factors: Factors, loss: Loss) -> np.ndarray:
        eta = self.eta(factors, loss)
        if not self.scaled:  # plain SGD, at the step that its steepest direction allows
            return np.full(factors.rank, 1.0 / floored(factors.spectrum + eta)[0])
        P = 1.0 / floored(factors.spectrum + eta)
        P[self.columns :] = 0.0
        return P

    def shrink(self, factors: Factors, loss: Loss) -> np.ndarray | None:
        """Pulls back what is mostly damping."""
        if not self.scaled:
            return None
        eta, P = self.eta(factors, loss), self.preconditioner(factors, loss)
        step = float(self.rates(factors, loss).mean()) * loss.gain / np.mean(factors.shape)
        return 1.0 - np.minimum(2 * step * _PULL * (eta * P) ** 2, 0.5)

    def expects(self, rms: float) -> None:
        self.rms = self.first = rms

    def saw(self, squares: float, samples: int) -> bool:
        self.squares += squares
        self.samples += samples
        self.total += samples
        return super().saw(squares, samples) and squares <= samples * (_BLOWN * self.first) ** 2

    def review(self, factors, engine: Engine, loss: Loss, held: Chunk | None, streaming) -> str:
        train = float(np.sqrt(self.squares / self.samples))
        left = (self.until - self.total) // self.samples
        self.squares, self.samples, self.epoch = 0.0, 0, self.epoch + 1
        if streaming:
            return self._follow(train)
        if self.polishing:
            self.theta *= self.turn
            return "" if self.theta >= _POLISHED else "settled"
        rms = np.array([train])
        if held is None:
            error = train
        else:
            errors = holdout.errors_by_rank(factors, engine, loss, held)[:, : self.columns]
            rms = np.sqrt(np.mean(errors**2, axis=0))
            error = float(rms[-1])
            if not np.isfinite(error):
                return "bad"
        if self.epoch > 2 and train >= _WORSE * self.train and error >= _WORSE * self.held:
            return "bad"
        if held is not None:
            error = self._select(factors, engine, rms)
        self.gap = max(error / train, 1.0) if train else 1.0
        deep = 1.0 if held is None else factors.depth(self.useful)
        verdict = self._pace(train, error, _SOLVED * deep)
        decays = np.isfinite(INITIALISATIONS[self.kind].rounds)  # by itself
        if held is None or decays or verdict == "solved" or left < _POLISHING // 2:
            return verdict
        # Where the floor was seen, and nothing is to be found out any more or it is time.
        due = self.patience < _PATIENCE and (self.whole or left <= _POLISHING)
        return "polish" if due or verdict == "settled" else verdict

    def polish(self, factors: Factors, engine: Engine) -> None:
        """Decay once more, with the directions that helped. Of a matrix that is known as a whole
        there is nothing to predict: all directions approximate it, as well as they can."""
        left = (self.until - self.total) * self.epoch / self.total
        epochs = np.clip(left, 1, _POLISHING_WHOLE if self.whole else _POLISHING)
        self.turn = float((_POLISHED / _POLISH) ** (1 / epochs))
        self.polishing, self.theta, self.last = True, _POLISH, self.held
        stop, size = self.useful, 0.0
        if self.whole:
            # The largest directions of noise are 2 sqrt(d) times its size: so large they are sown,
            # and less is damped.
            root = float(np.sqrt(np.sqrt(np.prod(factors.shape))))
            stop, size, self.gap = factors.rank, float(np.sqrt(2 * self.rms / root)), 1 / root
        self._sow(factors, engine, self.useful, stop, size)

    def _select(self, factors: Factors, engine: Engine, rms: np.ndarray) -> float:
        """Cut off directions that do not help, add some where the last one does. `rms[k - 1]` is
        the held-out error with the first k. Returns the error of what is left."""
        error, used = float(rms[-1]), self.columns
        best = int(np.argmin(rms)) + 1
        self.useful = int(np.argmax(rms * _HELPS <= rms.min())) + 1
        if rms[best - 1] >= _HELPS * error and self.epoch % _PRUNED_EVERY == 0:
            best = self.useful
        elif rms[best - 1] >= _HELPS * error:
            best = used
        if best < used:
            # Half as many again may grow, in case that the cut went too deep.
            error = float(rms[best - 1])
            self._sow(
                factors, engine, best, min(used, best + max(1, -(-best // 2))), self._small(error)
            )
            self.rms = max(self.rms, error)
        elif used < factors.rank and error < _HELPS * (rms[-2] if used > 1 else self.first):
            self._sow(
                factors, engine, used, min(factors.rank, used + -(-used // 2)), self._small(error)
            )
        return error

    def _small(self, error: float) -> float:
        """The size of a fresh direction's entries."""
        return SMALL * float(np.sqrt(self.size * error / self.first))

    def _sow(self, factors: Factors, engine: Engine, start: int, stop: int, size: float) -> None:
        """Fresh directions from `start` on, and none from `stop`."""
        engine.sow(factors, start, stop, size, [factors.seed, 3, self.epoch])
        factors.spectrum[start:] = 0.0
        self.columns = stop

    def _pace(self, train: float, error: float, solved: float) -> str:
        """Adapt the step to how the errors develop, and say whether to go on."""
        if train < _PROGRESS * self.train:
            self.theta = min(1.0, 1.2 * self.theta)
        gained = min(train / self.train, error / self.held) if self.held else 1.0
        self.stalled = 0 if gained < _GAINED else self.stalled + 1
        if self.stalled >= self.patience and self.epoch > _WARM:
            self.theta, self.patience, self.stalled = _SLOWER * self.theta, 1, 0
        best, self.last = error <= self.held, error
        self.train, self.held = min(self.train, train), min(self.held, error)
        if error < max(solved, _ROUNDING) * self.first:
            return "solved"
        if self.theta < _LAST:
            return "settled"
        return "best" if best else ""

    def _follow(self, train: float) -> str:
        """In a stream the truth may move, and there is a step that follows it best: try a smaller
        one, turn around whenever errors rise."""
        if self.polishing:
            self.polishing, self.gap, self.turn = False, 1.0, _SLOWER
        if train >= _WORSE * self.train:
            self.theta, self.turn = 1.0, _SLOWER
        elif train < _PROGRESS * self.train:
            self.theta = min(1.0, 1.2 * self.theta)
        else:
            if train * _HELPS > self.train:
                self.turn = 1.0 / self.turn
            self.theta = float(np.clip(self.turn * self.theta, _AWAKE, 1.0))
        self.train = self.held = self.last = train
        return "best"

    def retreat(self) -> bool:
        self.theta /= 2
        self.stretch = 1
        self.rms = min(self.held, self.first)
        self.squares, self.samples = 0.0, 0
        return self.theta >= _LAST
