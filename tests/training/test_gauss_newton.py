"""A step of Gauss-Newton against the dense system, and what is done with one that is no good."""

import numpy as np
import pytest

from scaledsgd.engines.cpu.crew import Crew
from scaledsgd.training import gauss_newton


def problem():
    """Weighted entries of a matrix of rank 2, and some X."""
    rng = np.random.default_rng(0)
    i, j = np.divmod(rng.choice(36, 30, replace=False), 6)
    index = np.stack([i, 6 + j], axis=1)
    X, y, w = rng.standard_normal((12, 2)), rng.standard_normal(30), rng.random(30) + 0.1

    def scores(X):
        return (X[index[:, 0]] * X[index[:, 1]]).sum(axis=1)

    return X, index, y, w, scores


@pytest.mark.parametrize("begin", [0, 6])
@pytest.mark.parametrize("weighted", [False, True])
def test_a_step_is_that_of_the_dense_system(begin, weighted):
    X, index, y, w, scores = problem()
    w, targets = (w, y + 1j * w) if weighted else (np.ones(len(y)), y)
    hold = np.array([0.3, 0.7])
    fit = gauss_newton._Fit(X, index, targets, scores, begin, False, Crew(1))
    step, _ = fit.step(hold, 1.0, 1e-13, 500)
    J = np.zeros((len(y), 12, 2))
    J[np.arange(len(y)), index[:, 0]] += X[index[:, 1]]
    J[np.arange(len(y)), index[:, 1]] += X[index[:, 0]]
    J = J.reshape(len(y), -1)
    A = J.T @ (w[:, None] * J) + np.diag(np.tile(hold, 12))
    dense = np.linalg.solve(A, -J.T @ (w * (scores(X) - y)) - (hold * X).ravel())
    assert step.ravel() == pytest.approx(dense, abs=1e-9)


def test_a_step_uphill_is_not_taken(monkeypatch):
    X, index, y, _, scores = problem()
    monkeypatch.setattr(gauss_newton._Fit, "step", lambda fit, *how: (100 * np.ones_like(X), 1))
    found, share = gauss_newton.descend(X.copy(), index, y, scores)
    assert np.array_equal(found, X)
    assert share == pytest.approx(np.linalg.norm(scores(X) - y) / np.linalg.norm(y))
