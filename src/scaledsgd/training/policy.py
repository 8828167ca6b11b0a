"""The steps of a run: alpha, P and the length of a round, as the paper and its user set them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ..core.factors import CALM, Factors
from ..core.linalg import floored
from ..core.losses import Loss
from ..core.observations import Chunk, Observations
from ..engines.base import Engine

# P must not be wrong by a half: a step is stable up to twice its best length.
_RESTLESS = 0.5


@dataclass
class Policy:
    """Turns the state of a run into the steps of its next round.

    This one does as it is told; `tuning.AutoPolicy` finds its own way.

    >>> from scaledsgd.core.losses import LOSSES
    >>> Policy(learning_rate=0.3).rates(Factors(np.eye(4, 2)), LOSSES["squared"])
    array([0.3, 0.3])
    """

    learning_rate: float = 0.0
    damping: float = 0.0
    scaled: bool = True
    rms: float = 0.0  # running root mean square of the residuals
    stretch: int = 1  # how many times d samples the next round takes

    columns: int = 0  # directions in use, where the policy chooses
    useful: int = -1  # of those, directions that were seen to help; -1 where nobody looked
    samples: int = 0  # seen since its last review
    until: int = 0  # samples after which the run will end, where that is known

    automatic = False  # whether the policy reviews epochs and may step back
    regrets = False  # whether an earlier state was better
    polishing = False  # whether what was held out is trained on
    catches_up = False  # whether rows that lag behind are to be solved for
    cap = np.inf  # the share of its residual that a step may undo, to first order
    threshold = 0.0  # of Huber's loss, where the policy has one
    starting_column = 0.0  # what is added to the first column of X_0

    def starting_scale(self, size: float, shape, rank: int, kind: str) -> tuple[float, float]:
        """Standard deviation of the entries of X_0 on either side, for targets of that size: the
        paper's."""
        return 1.0, 1.0

    def hold_out(self, observations: Observations, rng) -> tuple[Observations, Chunk | None]:
        """What to train on, and what to judge by."""
        return observations, None

    def rates(self, factors: Factors, loss: Loss) -> np.ndarray:
        """alpha for each row that a sample names."""
        return np.full(loss.arity, float(self.learning_rate))

    def eta(self, factors: Factors, loss: Loss) -> float:
        """The damping of P = 1 / (Lambda + eta)."""
        rows, columns = factors.shape
        return self.damping * loss.damping * np.sqrt(rows) * np.sqrt(columns) * self.rms

    def preconditioner(self, factors: Factors, loss: Loss) -> np.ndarray:
        """The diagonal of P for the next round."""
        if not self.scaled:
            return np.ones(factors.rank)
        return 1.0 / floored(factors.spectrum + self.eta(factors, loss))

    def round_length(self, factors: Factors) -> int:
        return self.stretch * factors.d

    def refreshed(self, moved: float, longest: int) -> None:
        """Longer rounds while P hardly moves, short ones when it does."""
        if moved < CALM:
            self.stretch = min(2 * self.stretch, longest)
        elif moved > _RESTLESS:
            self.stretch = 1
        else:
            self.stretch = max(1, self.stretch // 2)

    def expects(self, rms: float) -> None:
        """The residual before the first step."""
        self.rms = rms

    def saw(self, squares: float, samples: int) -> bool:
        """Take in the squared residuals of some samples. False if the run has blown up."""
        latest = squares / samples
        if not np.isfinite(latest):
            return False
        # Half of the running mean is the newest round's.
        self.rms = (self.rms + float(np.sqrt(latest))) / 2
        return True

    def shrink(self, factors: Factors, loss: Loss) -> np.ndarray | None:
        """What to multiply the columns of X with before a round, if anything."""
        return None

    def review(self, factors, engine: Engine, loss: Loss, held: Chunk | None, streaming) -> str:
        """A look back after an epoch: "" to go on, "best" if the state is worth keeping, "bad" to
        take it back, "polish" to give back what was held out, or why the run should end."""
        return ""

    def polish(self, factors: Factors, engine: Engine) -> None:
        """What was held out is trained on from now on."""

    def retreat(self) -> bool:
        """Go more carefully after a roll-back; False if that is not ours to do."""
        return False
