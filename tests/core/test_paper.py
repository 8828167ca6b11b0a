"""What the paper claims, on the authors' own matrices: medians of five seeds."""

import contextlib

import numpy as np
import pytest

from scaledsgd import DistanceCompleter, DivergenceError, MatrixCompleter
from scaledsgd.core.losses import sigmoid

pytestmark = pytest.mark.slow


def curve(M, loss, rank, epochs, alpha, refresh="round", scaled=True):
    """The paper's mean error after each epoch."""
    runs = []
    for seed in range(5):
        errors: list[float] = []

        def note(progress, errors=errors):
            X = progress.factors.X
            if loss == "distance":
                D = ((X[:, None] - X) ** 2).sum(axis=2)
                errors.append(float(np.mean((D - M) ** 2) / 4))
            else:
                errors.append(float(np.mean((X @ X.T - M) ** 2) / 2))

        common = {
            "rank": rank, "epochs": epochs, "learning_rate": alpha, "refresh": refresh, "tol": 0.0,
            "scaled": scaled, "random_state": seed, "callbacks": [note],
        }  # fmt: skip
        if loss == "distance":
            model, data = DistanceCompleter(**common), M
        else:
            model = MatrixCompleter(loss=loss, symmetric=True, **common)
            data = sigmoid(M) if loss == "logistic" else M
        # From some Gaussian starts plain SGD diverges at the paper's step: an infinite error.
        with contextlib.nullcontext() if scaled else contextlib.suppress(DivergenceError):
            model.fit(data)
        runs.append(errors + [np.inf] * (epochs - len(errors)))
    return np.median(runs, axis=0)


def floor(M, rank):
    """The same mean for the best PSD approximation of that rank."""
    values, Q = np.linalg.eigh(M)
    best = np.maximum(values[-rank:], 0)
    return float(np.mean(((Q[:, -rank:] * best) @ Q[:, -rank:].T - M) ** 2) / 2)


refreshes = pytest.mark.parametrize("refresh", ["round", "sample"])


@refreshes
def test_fig1_conditioning_does_not_matter_to_scaled_sgd(authors, refresh):
    errors = curve(authors["MAT_30/MI"], "squared", 3, 50, 0.3, refresh)
    assert errors[19] <= 1e-10
    assert errors[49] <= 1e-16


def test_fig1_sgd_stagnates(authors):
    errors = curve(authors["MAT_30/MI"], "squared", 3, 200, 0.3, scaled=False)
    assert errors[199] >= 1e-9


@refreshes
def test_fig2_points_with_outliers_are_found(authors, refresh):
    errors = curve(authors["EDM_30/DI"], "distance", 3, 25, 0.2, refresh)
    assert errors[24] <= 1e-12


def test_fig2_sgd_needs_a_small_step_and_is_slow(authors):
    errors = curve(authors["EDM_30/DI"], "distance", 3, 50, 0.002, scaled=False)
    assert errors[49] >= 1e-4


@refreshes
def test_fig4_one_bit_completion(authors, refresh):
    errors = curve(authors["MAT_30/MI"], "logistic", 3, 100, 1.0, refresh)
    assert errors[49] <= 1e-12
    assert errors[99] <= 1e-16


def test_fig4_sgd_stagnates(authors):
    errors = curve(authors["MAT_30/MI"], "logistic", 3, 200, 1.0, scaled=False)
    assert errors[199] >= 1e-9


@refreshes
@pytest.mark.parametrize("name", ["MW", "MI"])
def test_fig5_scaled_sgd_reaches_the_noise_floor(authors, name, refresh):
    M = authors[f"EXP5/{name}"]
    assert curve(M, "squared", 5, 50, 0.15, refresh)[-1] <= 1.05 * floor(M, 5)


@refreshes
@pytest.mark.parametrize("name", ["MW", "MI"])
def test_fig6_scaled_sgd_reaches_the_noise_floor(authors, name, refresh):
    M = authors[f"EXP5/{name}"]
    assert curve(M, "logistic", 5, 300, 0.15, refresh)[-1] <= 1.05 * floor(M, 5)


@pytest.mark.parametrize(("loss", "epochs"), [("squared", 50), ("logistic", 300)])
@pytest.mark.parametrize("name", ["MW", "MI"])
def test_fig5_and_6_sgd_stays_above_the_noise_floor(authors, name, loss, epochs):
    M = authors[f"EXP5/{name}"]
    assert curve(M, loss, 5, epochs, 0.01, scaled=False)[-1] >= 1.1 * floor(M, 5)
