"""Choices: the reference is the gradient of its loss, and every engine follows the reference."""

from __future__ import annotations

import numpy as np
import pytest

from scaledsgd.core import reference
from scaledsgd.core.choices import Choices
from scaledsgd.core.factors import Factors
from scaledsgd.engines.base import SoftmaxRound, SquaredRound, open_engine
from scaledsgd.engines.cuda.kernels import unavailable

CPU = [pytest.param(("cpu", jobs), id=f"cpu{jobs}") for jobs in (1, 2, 3)]
CUDA = pytest.param(
    ("cuda", 1), id="cuda", marks=pytest.mark.skipif(bool(unavailable()), reason=unavailable())
)


def some(users: int = 40, items: int = 30, count: int = 400, rank: int = 5, seed: int = 0):
    """Choices of different weights, and factors in a basis in which both Grams are diagonal."""
    rng = np.random.default_rng(seed)
    pairs = rng.permutation(users * items)[:count]
    weights = rng.uniform(0.5, 2, count).astype(np.float32)
    choices = Choices.of(pairs // items, pairs % items, weights, shape=(users, items))
    factors = Factors.start((users, items), rank, seed=seed, scale=(0.4, 0.4), dtype="float32")
    factors.refresh()
    return choices, factors, rng


def numerical(loss, X: np.ndarray, h: float = 1e-6) -> np.ndarray:
    out = np.zeros_like(X)
    for at in np.ndindex(X.shape):
        before = X[at]
        X[at] = before + h
        above = loss()
        X[at] = before - h
        out[at] = (above - loss()) / (2 * h)
        X[at] = before
    return out


@pytest.mark.parametrize(("cosine", "ridge"), [(True, 0.0), (False, 0.7)])
def test_the_softmax_of_the_reference_has_its_gradient(cosine, ridge):
    choices, factors, rng = some(6, 7, 12, 3)
    U, V = factors.left.astype(float), factors.right.astype(float)
    negatives = rng.integers(0, 7, 5)  # one of them may be named twice, or be a choice
    how = {"tau": 0.3, "c": 1.2, "cosine": cosine, "ridge": ridge}
    _, G, H = reference.softmax_gradients(U, V, choices, negatives, **how)

    def loss():
        return reference.softmax_gradients(U, V, choices, negatives, **how)[0]

    assert numerical(loss, U) == pytest.approx(G, abs=1e-6)
    assert numerical(loss, V) == pytest.approx(H, abs=1e-6)


def test_small_squared_steps_of_the_reference_go_down_the_gradient_of_its_loss():
    choices, factors, _ = some(6, 7, 20, 3)
    U, V = factors.left.astype(float), factors.right.astype(float)
    T, W, _ = reference_basis(U, V)
    U, V = U @ T, V @ W
    ridges, theta = [np.full(6, 0.3), np.full(7, 0.2)], 1e-6
    seen = choices.row_weights()
    means = [w @ side**2 / w.sum() for w, side in zip(seen, (U, V), strict=True)]
    grams = [0.1 * (side**2).sum(axis=0) for side in (U, V)]
    Gu = numerical(lambda: reference.squared_loss(U, V, choices, 0.1, ridges), U)
    Gv = numerical(lambda: reference.squared_loss(U, V, choices, 0.1, ridges), V)
    A, B = U.copy(), V.copy()
    reference.squared_steps(A, B, choices, np.arange(20), theta, 0.1, ridges)
    P = 1 / (seen[0][:, None] * means[1] + grams[1] + ridges[0][:, None])
    Q = 1 / (seen[1][:, None] * means[0] + grams[0] + ridges[1][:, None])
    assert (A - U) / theta == pytest.approx(-P * Gu, abs=1e-4)
    assert (B - V) / theta == pytest.approx(-Q * Gv, abs=1e-4)


def reference_basis(U, V):
    from scaledsgd.core.linalg import balance

    return balance(U.T @ U, V.T @ V)


def frozen(
    choices: Choices, factors: Factors, theta: float, alpha0: float, ridge: float = 1.0
) -> SquaredRound:
    sides, seen = factors.sides, choices.row_weights()
    ridges = [ridge * np.linspace(0.1, 0.5, len(side)) for side in sides]
    grams = np.stack([alpha0 * (side**2).sum(axis=0) for side in sides])
    means = np.stack([w @ side**2 / w.sum() for w, side in zip(seen, sides, strict=True)])
    return SquaredRound(theta, seen, ridges, grams, means)


@pytest.mark.parametrize("ridge", [1.0, 0.0])
@pytest.mark.parametrize("rank", [1, 5, 16, 33])
def test_squared_steps_follow_the_reference(rank, ridge):
    choices, factors, rng = some(rank=rank)
    U, V = factors.left.astype(float), factors.right.astype(float)
    order, theta, alpha0 = rng.permutation(len(choices)), 1.3, 0.1
    round = frozen(choices, factors, theta, alpha0, ridge)
    reference.squared_steps(U, V, choices, order, theta, alpha0, round.ridges)
    squares = open_engine("cpu").run_squared(factors, choices, order, round)
    assert squares > 0  # without a ridge more directions than items are large
    assert factors.left == pytest.approx(U, abs=1e-5 * max(1, np.abs(U).max()))
    assert factors.right == pytest.approx(V, abs=1e-5 * max(1, np.abs(V).max()))


@pytest.mark.parametrize("engine", [*CPU[1:], CUDA])
def test_squared_rounds_on_many_threads_end_where_those_of_one_do(engine):
    found = []
    for device, jobs in (("cpu", 1), engine):
        choices, factors, rng = some(400, 300, 60_000, 4)
        runner = open_engine(device, jobs)
        factors.X = runner.put(factors.X)
        for k in range(40):
            factors.refresh(runner)
            round = frozen(choices, Factors(runner.get(factors.X), factors.rows), 1 - k / 40, 0.1)
            runner.run_squared(factors, choices, rng.permutation(len(choices)), round)
        X = runner.get(factors.X)
        found.append(X[:400] @ X[400:].T)
    assert np.linalg.norm(found[1] - found[0]) < 0.03 * np.linalg.norm(found[0])


@pytest.mark.parametrize("engine", [*CPU, CUDA])
@pytest.mark.parametrize(("cosine", "ridge"), [(True, 0.0), (False, 0.7)])
def test_a_block_of_the_softmax_steps_along_the_gradient(engine, cosine, ridge):
    choices, factors, rng = some(rank=6)
    U, V = factors.left.astype(float), factors.right.astype(float)
    negatives = rng.integers(0, 30, (1, 12))
    P = np.stack([np.linalg.inv(side.T @ side / len(side)) for side in (U, V)])
    # With dot products a step is shortened by its own curvature: for a small one, hardly.
    alpha = 1e-4 if cosine else 1e-6
    loss, G, H = reference.softmax_gradients(
        U, V, choices, negatives[0], 0.3, 1.2, cosine=cosine, ridge=ridge
    )
    runner = open_engine(*engine)
    factors.X = runner.put(factors.X)
    round = SoftmaxRound(P, (alpha, alpha), len(choices), 0.3, 1.2, cosine, ridge)
    order = rng.permutation(len(choices))
    told = runner.run_softmax(factors, choices, order, negatives, round)
    X = runner.get(factors.X)
    for moved, wanted in ((X[:40] - U, -alpha * G @ P[1]), (X[40:] - V, -alpha * H @ P[0])):
        assert np.linalg.norm(moved - wanted) < (1e-4 if cosine else 0.01) * np.linalg.norm(wanted)
    if cosine:
        assert told == pytest.approx(loss, rel=1e-4)


@pytest.mark.parametrize("engine", [*CPU[1:], ("cpu", 8), CUDA])  # 8 cut the negatives as well
@pytest.mark.parametrize("cosine", [True, False])
def test_many_blocks_on_threads_are_those_of_one(engine, cosine, monkeypatch):
    """Also with a last block that is not full; threads see each other's rows in no other order."""
    monkeypatch.setattr("scaledsgd.engines.cpu.crew.cores", lambda: 8)
    found = []
    for device, jobs in (("cpu", 1), engine):
        choices, factors, rng = some(900, 70, 20_000, 8)
        runner = open_engine(device, jobs)
        factors.X = runner.put(factors.X)
        P = np.stack([np.eye(8) + 0.1, 2 * np.eye(8)])
        negatives = rng.integers(0, 70, (-(-20_000 // 256), 40))
        round = SoftmaxRound(P, (1e-3, 1e-4), 256, 0.3, 1.2, cosine, 0.3)
        order = rng.permutation(len(choices))
        told = runner.run_softmax(factors, choices, order, negatives, round)
        found.append((runner.local(runner.get(factors.X)).copy(), told))
    (X, told), (Y, other) = found
    assert np.abs(Y - X).max() < 1e-4 * np.abs(X).max() and other == pytest.approx(told, rel=1e-5)


@pytest.mark.parametrize("engine", [*CPU, CUDA])
def test_a_block_that_is_not_full_is_as_good_as_a_small_one(engine):
    found = []
    for block in (50, 96):
        choices, factors, rng = some()
        runner = open_engine(*engine)
        factors.X = runner.put(factors.X)
        negatives = rng.integers(0, 30, (1, 12))
        round = SoftmaxRound(np.stack([np.eye(5)] * 2), (0.1, 0.1), block, 0.3, 1.2, True, 0.0)
        runner.run_softmax(factors, choices, np.arange(50), negatives, round)
        found.append(runner.local(runner.get(factors.X)).copy())
    assert np.abs(found[0] - found[1]).max() < 1e-5


@pytest.mark.parametrize("engine", [*CPU, CUDA])
def test_steps_of_products_do_not_grow_without_end(engine):
    """However long a step is, it goes no further than its curvature lets it."""
    moved = []
    for alpha in (1e3, 1e6):
        choices, factors, _ = some()
        before = factors.X.copy()
        runner = open_engine(*engine)
        factors.X = runner.put(factors.X)
        P = np.stack([np.eye(5)] * 2)
        round = SoftmaxRound(P, (alpha, alpha), 400, 0.3, 1.2, False, 0.5)
        runner.run_softmax(factors, choices, np.arange(400), np.arange(30)[None], round)
        moved.append(np.abs(runner.local(runner.get(factors.X)) - before).max(axis=1))
    assert (moved[1] < 1.1 * moved[0]).all()
