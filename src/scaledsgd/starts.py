"""How an automatic run begins on each kind of observations."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

SMALL = 1e-3  # of the natural scale: far below every direction there is to find


class Start(NamedTuple):
    """How a run on a loss begins, and how its step decays by itself."""

    scale: float  # of X_0, in units of the square root of the targets' size, or of 1
    natural: bool = False  # whether it is in units of the targets
    column: float = 0.0  # the first column of X_0 is this, plus the noise of the others
    rounds: float = np.inf  # of d samples until the step is half as long
    shrink: float = 0.05  # how much of a step pulls what is all damping back to zero
    dimension: float = 0.0  # directions that share a step, where it is not those in use
    items: float = 1.0  # times which the right side steps faster
    anneals: bool = False  # whether the step goes down to nothing by the end of the run


STARTS = {
    "squared": Start(SMALL, natural=True),
    # Points on top of each other do not know where to go: they start at their distances' scale.
    "distance": Start(0.5, natural=True),
    "logistic": Start(1.0),
    # Who is popular is most of a ranking, and a constant column learns that first. Comparisons
    # contradict each other, so the step has to decay even within the first epoch.
    "bpr": Start(0.1, column=1.5, rounds=20.0),
    # Most of what a user did not choose she has not met: every comparison is half a guess, and what
    # is learned from it has to be averaged and held back. Items have fewer events than users have,
    # and learn more from each. (Searched on MovieLens-Small alone, without its last events: good
    # at ranks 16 and 64 alike, and within noise of their neighbours.)
    "choices": Start(
        0.1, column=0.5, rounds=20.0, shrink=4.0, dimension=36.0, items=3.0, anneals=True
    ),
}
