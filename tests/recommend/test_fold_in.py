"""Vectors of users whom training has not seen: the best that their choices allow."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import minimize

from scaledsgd.core.linalg import unit
from scaledsgd.recommend import fold_in
from scaledsgd.training.choice_trainer import ChoicePolicy

POLICIES = [
    ChoicePolicy("squared", alpha0=0.1, ridge=0.5),
    ChoicePolicy("softmax", tau=0.3, c=1.1),
    ChoicePolicy("softmax", tau=0.3, c=1.0, cosine=False, dot_ridge=0.4),
    ChoicePolicy("bpr", tau=1.0, c=1.0, cosine=False, dot_ridge=0.1),
]


@pytest.mark.parametrize("policy", POLICIES, ids=lambda policy: f"{policy.loss}{policy.cosine:d}")
def test_a_new_user_gets_the_vector_that_makes_her_loss_least(policy):
    rng = np.random.default_rng(0)
    items = rng.standard_normal((40, 3))
    items = unit(items) if policy.by_angle else items
    chosen, weights = np.array([1, 5, 9, 30]), np.array([1.0, 2.0, 0.5, 1.0])

    def loss(x):
        z = items @ x
        if policy.loss == "squared":
            own = weights @ (1 - z[chosen]) ** 2
            return own + policy.alpha0 * z @ z + policy.ridge * x @ x
        z = z / np.linalg.norm(x) if policy.by_angle else z
        partition = policy.c * np.log(np.exp(z / policy.tau).sum())
        held = 0 if policy.by_angle else policy.dot_ridge * x @ x / 2
        return partition - weights @ z[chosen] / weights.sum() / policy.tau + held

    (found,) = fold_in.vectors(policy, items, np.arange(40), np.array([0, 4]), chosen, weights)
    starts = [found, *rng.standard_normal((5, 3))]
    best = min(minimize(loss, start).fun for start in starts)
    mean = loss(items[chosen].mean(axis=0))  # the next best thing that one may think of
    assert loss(found) - best < 0.01 * (mean - best)


@given(st.lists(st.integers(0, 12), min_size=1, max_size=6), st.integers(0, 99))
def test_squared_vectors_solve_their_normal_equations(counts, seed):
    """Of few choices and of many, by systems of either size."""
    rng, policy = np.random.default_rng(seed), ChoicePolicy("squared", alpha0=0.3, ridge=0.7)
    V = rng.standard_normal((15, 5))
    start = np.concatenate([[0], np.cumsum(counts)])
    chosen = np.concatenate([rng.permutation(15)[:n] for n in counts]).astype(int)
    weights = rng.uniform(0.1, 4.0, len(chosen))
    found = fold_in.vectors(policy, V, np.arange(15), start, chosen, weights)
    for u, x in enumerate(found):
        part = slice(start[u], start[u + 1])
        rows, w = V[chosen[part]], weights[part]
        A = rows.T @ (w[:, None] * rows) + 0.3 * V.T @ V + 0.7 * np.eye(5)
        assert np.allclose(A @ x, w @ rows, atol=1e-9)


def test_shares_add_up():
    rng = np.random.default_rng(0)
    items = np.abs(rng.standard_normal((6, 3)))
    found = fold_in.shares(ChoicePolicy("squared"), items, np.array([0, 2, 5]), np.ones(3), item=1)
    assert found.sum() == pytest.approx(1) and len(found) == 3
