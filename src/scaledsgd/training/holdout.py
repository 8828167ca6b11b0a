"""What a run is judged by: samples that are held out, and what the factors make of them."""

from __future__ import annotations

import numpy as np

from ..core.factors import Factors
from ..core.losses import Loss, weight
from ..core.observations import Chunk, Observations
from ..engines.base import Engine

_SHARE = 0.03  # 1% misjudges directions, more is lost for training
_LEAST, _MOST = 60, 20_000  # enough to see a percent of difference; no need for more


def hold_out(observations: Observations, rng) -> tuple[Observations, Chunk | None]:
    """What to train on, and what to judge by, if there is enough."""
    wanted = int(np.clip(_SHARE * len(observations), _LEAST, _MOST))
    if wanted > len(observations) // 10:
        return observations, None
    # Errors on rows that are barely seen say nothing about a direction: only samples of which
    # every row is seen at least as often as the median are taken, some 1 in 2 to 1 in 8.
    drawn = np.sort(rng.integers(0, len(observations), 16 * wanted))  # as files are read
    drawn = observations.well_seen(drawn)
    drawn = drawn[np.diff(drawn, prepend=-1) > 0]
    if len(drawn) < wanted:
        return observations, None
    # Entries, not mentions: of one that is trained on, nobody need predict the other mention.
    chosen = rng.choice(drawn, wanted, replace=False)
    mentions = observations.mentions(chosen)
    if len(mentions) > wanted:
        chosen = chosen[: max(_LEAST, wanted * wanted // len(mentions))]
        mentions = observations.mentions(chosen)
    if len(mentions) > len(observations) // 5:
        return observations, None
    return observations.hold_out(mentions)


def errors_by_rank(factors: Factors, engine: Engine, loss: Loss, held: Chunk) -> np.ndarray:
    """Residuals of the held-out samples with the first 1, 2, ... directions, each times the root of
    its weight."""
    rows = engine.rows(factors.X, held.index).astype(np.float64)
    u, v = (sum(c * rows[:, m] for m, c in enumerate(own) if c) for own in (loss.a, loss.b))
    y = held.targets[:, None]
    return np.sqrt(weight(y)) * loss.slope(np.cumsum(u * v, axis=1), y.real)
