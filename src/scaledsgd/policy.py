"""What nobody should have to tune: the start, the step, the damping and the length of a round."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from .factors import Factors, floored
from .losses import Loss

# The mean leverage x_i^T P x_i is r / d, so a step of d / r undoes a residual in one go on average.
# Rows differ, and 0.3 of that is stable for every loss of the paper.
_THETA = 0.3
_SMALLEST = _THETA / 2**10  # a step that has been halved ten times is not what is wrong
# A step that undoes more than twice its residual makes it larger; 1.7 instead of 1 gets to the end
# in fewer epochs.
_CAP = 1.7
_BLOWN = 10.0  # residuals this many times those of the start are not going to come back

# P may be wrong by a tenth before it matters, and must not be wrong by a half: a step is stable up
# to twice its best length.
_CALM, _RESTLESS = 0.1, 0.5
_LONGEST = 32  # rounds of more than 32 d samples save less than a percent of refreshing


@dataclass
class Policy:
    """Turns the state of a run into the steps of its next round.

    >>> from scaledsgd.losses import LOSSES
    >>> Policy(learning_rate=0.3).rates(Factors(np.eye(4, 2)), LOSSES["squared"])
    array([0.3, 0.3])
    """

    learning_rate: float | str = "auto"
    damping: float | str = "auto"
    scaled: bool = True
    theta: float = _THETA
    first: float = 0.0  # root mean square of the residuals before the first step
    rms: float = 0.0  # the same, running
    stretch: int = 1  # how many times d samples the next round takes

    @property
    def cap(self) -> float:
        """The largest share of its residual that a step may undo, to first order."""
        return _CAP if self.automatic and self.scaled else np.inf

    @property
    def automatic(self) -> bool:
        return self.learning_rate == "auto"

    def rates(self, factors: Factors, loss: Loss) -> np.ndarray:
        """alpha for each row that a sample names."""
        if not self.automatic:
            return np.full(loss.arity, float(self.learning_rate))
        # A row of L learns from rows of R, of which there are as many as the matrix has columns.
        others = [factors.shape[1 - side] for side in loss.sides]
        return self.theta * np.array(others) / (factors.rank * loss.gain)

    def eta(self, factors: Factors) -> float:
        """The damping of P = 1 / (Lambda + eta)."""
        # Beside a learning rate of the paper stands the paper's P, which is not damped.
        c = float(self.automatic) if self.damping == "auto" else float(self.damping)
        rows, columns = factors.shape
        return c * np.sqrt(rows) * np.sqrt(columns) * self.rms

    def preconditioner(self, factors: Factors) -> np.ndarray:
        """The diagonal of P for the next round."""
        if not self.scaled:
            return np.ones(factors.rank)
        return 1.0 / floored(factors.spectrum + self.eta(factors))

    def round_length(self, factors: Factors) -> int:
        return self.stretch * len(factors.X)

    def refreshed(self, moved: float) -> None:
        """Longer rounds while the spectrum hardly moves, short ones when it does."""
        if moved < _CALM:
            self.stretch = min(2 * self.stretch, _LONGEST)
        elif moved > _RESTLESS:
            self.stretch = 1
        else:
            self.stretch = max(1, self.stretch // 2)

    def expects(self, rms: float) -> None:
        self.first = self.rms = rms

    def saw(self, squares: float, samples: int) -> bool:
        """Take in the squared residuals of some samples. False if the run has blown up."""
        latest = squares / samples
        if not np.isfinite(latest) or (self.automatic and latest > (_BLOWN * self.first) ** 2):
            return False
        # Half of the running mean is the newest round's.
        self.rms = float(np.sqrt((self.rms**2 + latest) / 2))
        return True

    def retreat(self) -> bool:
        """Halve the step after a roll-back. False if that is not ours to do, or has not helped."""
        self.theta /= 2
        self.stretch = 1
        self.rms = self.first
        return self.automatic and self.theta >= _SMALLEST


# Entries of X_0 X_0^T (or squared distances of its rows) against the variance of X_0, by rank.
_SPREAD = {"squared": np.sqrt, "distance": lambda rank: 2.0 * rank}


def starting_scale(targets: np.ndarray, rank: int, loss: Loss, policy: Policy) -> float:
    """Standard deviation of X_0: the paper's 1 beside the paper's steps and where targets are
    probabilities, otherwise such that predictions start as large as the targets.

    >>> from scaledsgd.losses import LOSSES
    >>> round(starting_scale(np.array([12.0, -12.0]), 9, LOSSES["squared"], Policy()), 6)
    2.0
    """
    if not policy.automatic or loss.name not in _SPREAD:
        return 1.0
    size = float(np.linalg.norm(targets)) / np.sqrt(len(targets))
    return float(np.sqrt(size / _SPREAD[loss.name](rank))) if size > 0 else 1.0
