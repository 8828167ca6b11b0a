"""Rows that lag behind are found by themselves, as far as their neighbours tell."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scaledsgd import DistanceCompleter, Observations
from scaledsgd.core.factors import Factors
from scaledsgd.core.losses import LOSSES
from scaledsgd.engines.base import open_engine
from scaledsgd.training.lagging_rows import catch_up, prior, solved


def setting(loss: str, wrong: dict[int, list[float]], known: int = 2000, noise: float = 0.0):
    """Rows of which some are not where the samples say; one of them knows the first two."""
    rng = np.random.default_rng(0)
    truth = rng.standard_normal((200, 2))
    truth[:2] += [10.0, 0.0]
    i, j = np.sort(rng.integers(0, 200, (2, known)), axis=0)
    i, j = np.append(i[i != j], 0), np.append(j[i != j], 1)
    z = truth[i] - truth[j] if loss == "distance" else truth[i]
    y = (z * (z if loss == "distance" else truth[j])).sum(axis=1)
    y += noise * rng.standard_normal(len(y))
    factors = Factors(truth + 1e-6 * rng.standard_normal(truth.shape))
    for row, x in wrong.items():
        factors.X[row] = x
    factors.spectrum = factors.singular_values()
    seen = Observations.pairs(i, j, y, shape=(200, 200), loss=loss, symmetric=True)
    return truth, factors, seen


def solve(factors, row, others, y, weights, loss) -> None:
    X = factors.X
    X[row] = solved(X[row], X[others], y, weights, prior(factors, row), loss)


def caught_up(factors, seen) -> int:
    engine = open_engine()
    data = engine.samples(seen, [0, 0], "float64", np.random.default_rng(0))
    return catch_up(engine, factors, seen.loss, data)


@pytest.mark.parametrize("wrong", [{0: [-10.0, 3.0]}, {0: [-10.0, 3.0], 1: [-9.0, 9.0]}])
@pytest.mark.parametrize("loss", ["squared", "distance"])
def test_rows_on_the_wrong_side_are_put_right(loss, wrong):
    """Also two who know each other: neither is a witness for where the other is."""
    truth, factors, seen = setting(loss, wrong)
    assert caught_up(factors, seen) >= len(wrong)
    assert np.abs(factors.X - truth).max() < 1e-4


def test_what_is_noise_everywhere_is_left_alone():
    """A row of which little is known, and that is wrong by six times the noise, is no laggard."""
    _, factors, seen = setting("squared", {}, noise=1.0)
    few = np.flatnonzero((seen.index == 7).any(axis=1))
    seen = seen[np.setdiff1d(np.arange(len(seen)), few[1:])]
    seen.targets[(seen.index == 7).any(axis=1)] += 6.0
    before = factors.X.copy()
    assert caught_up(factors, seen) == 0
    assert np.array_equal(factors.X, before)


def test_a_change_of_ten_times_the_usual_is_expected():
    """The ridge regression that it is: residuals in units of their noise, changes in units of ten
    times what the rows of a direction are."""
    rng = np.random.default_rng(0)
    factors = Factors(rng.standard_normal((200, 2)) * [3.0, 1.0])
    factors.spectrum = (factors.X**2).sum(axis=0)
    old, others, weights = factors.X[0].copy(), np.array([5, 6, 7]), np.array([0.1, 0.2, 0.05])
    P, y = factors.X[others], np.array([90.0, -40.0, 70.0])
    A = (P.T * weights**2) @ P + np.diag(200 / factors.spectrum) / 10**2
    expected = old + np.linalg.solve(A, (P.T * weights**2) @ (y - P @ old))
    solve(factors, 0, others, y, weights, LOSSES["squared"])
    assert factors.X[0] == pytest.approx(expected)


@given(st.integers(0, 10**6), st.sampled_from(["squared", "distance"]))
def test_no_row_is_made_worse(seed, name):
    rng = np.random.default_rng(seed)
    factors = Factors(rng.standard_normal((30, 2)))
    factors.spectrum = (factors.X**2).sum(axis=0)
    P, y = factors.X[1:4].copy(), 3 * rng.random(3)

    def misfit():
        z = ((P - factors.X[0]) ** 2).sum(axis=1) if name == "distance" else P @ factors.X[0]
        return ((z - y) ** 2).sum()

    before = misfit()
    solve(factors, 0, np.arange(1, 4), y, np.ones(3), LOSSES[name])
    assert misfit() <= before


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
