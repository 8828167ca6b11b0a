"""Rows that lag behind are found by themselves, as far as their neighbours tell."""

import numpy as np
import pytest

from scaledsgd import DistanceCompleter, Observations
from scaledsgd.core.factors import Factors
from scaledsgd.core.losses import LOSSES
from scaledsgd.engines.base import open_engine
from scaledsgd.training.lagging_rows import _solve as solve
from scaledsgd.training.lagging_rows import catch_up


def setting(loss: str, wrong: dict[int, list[float]], known: int = 2000):
    """Rows of which some are not where the samples say."""
    rng = np.random.default_rng(0)
    truth = rng.standard_normal((200, 2))
    truth[:2] += [10.0, 0.0]
    i, j = rng.integers(0, 200, (2, known))
    i, j = i[i != j], j[i != j]
    z = truth[i] - truth[j] if loss == "distance" else truth[i]
    y = (z * (z if loss == "distance" else truth[j])).sum(axis=1)
    factors = Factors(truth + 1e-6 * rng.standard_normal(truth.shape))
    for row, x in wrong.items():
        factors.X[row] = x
    factors.spectrum = factors.singular_values()
    seen = Observations.pairs(i, j, y, shape=(200, 200), loss=loss, symmetric=True)
    return truth, factors, seen


@pytest.mark.parametrize("loss", ["squared", "distance"])
def test_a_row_on_the_wrong_side_is_put_right(loss):
    truth, factors, seen = setting(loss, {0: [-10.0, 3.0]})
    engine = open_engine()
    data = engine.samples(seen, [0, 0], "float64", np.random.default_rng(0))
    assert catch_up(engine, factors, LOSSES[loss], data) >= 1
    assert np.abs(factors.X - truth).max() < 1e-4


def test_what_neighbours_do_not_tell_stays():
    """One sample for two unknowns: it is met, and across it the row is left alone."""
    _, factors, _ = setting("squared", {})
    old, other, S = factors.X[0].copy(), factors.X[5], factors.spectrum
    solve(factors, 0, np.array([5]), np.array([50.0]), np.array([1e6]), LOSSES["squared"])
    assert factors.X[0] @ other == pytest.approx(50.0, rel=1e-3)
    along = S * other  # changes are weighed by the spectrum
    assert np.linalg.norm(np.cross((*(factors.X[0] - old), 0), (*along, 0))) < 1e-6 * (
        along @ along
    )


@pytest.mark.parametrize("start", range(4))
def test_far_points_do_not_depend_on_the_start(start):
    """By steps alone, a far point may stay on the wrong side for good."""
    rng = np.random.default_rng(1)
    points = rng.uniform(-1, 1, (2000, 2))
    points[:5, 0] += 10
    i, j = np.triu_indices(2000, 1)
    kept = rng.random(len(i)) < 0.02
    i, j = i[kept], j[kept]
    seen = Observations.pairs(i, j, ((points[i] - points[j]) ** 2).sum(axis=1), loss="distance")
    model = DistanceCompleter(2, epochs=60, tol=0, random_state=start).fit(seen)
    assert model.history_.stopped == "solved"
