"""The paper's algorithm, line by line: slow, obvious, and the oracle of every engine.

X is the factor, P = (X^T X)^-1 its cached preconditioner, alpha the learning rate. A two-sided
matrix L R^T is the stacked X = [L; R] with one P a side: a row steps along the other side's P
and updates its own.
"""

from __future__ import annotations

import numpy as np

from .choices import Choices
from .losses import Loss, weighed


def preconditioners(X: np.ndarray, rows: int | None = None) -> list[np.ndarray]:
    """P = (X^T X)^-1, or the pair of them for the stacked factor of a two-sided matrix.

    >>> preconditioners(np.eye(3, 2))[0]
    array([[1., 0.],
           [0., 1.]])
    """
    sides = [X] if rows is None else [X[:rows], X[rows:]]
    return [np.linalg.inv(side.T @ side) for side in sides]


def sherman_morrison(P: np.ndarray, u: np.ndarray, sign: float) -> np.ndarray:
    """(P^-1 + sign u u^T)^-1."""
    Pu = P @ u
    return P - sign * np.outer(Pu, Pu) / (1.0 + sign * (u @ Pu))


def form(X: np.ndarray, rows: np.ndarray, loss: Loss) -> tuple[np.ndarray, np.ndarray]:
    """u and v of one sample: z = <u, v>."""
    x = X[rows]
    return np.asarray(loss.a) @ x, np.asarray(loss.b) @ x


def sgd(
    X: np.ndarray,
    index: np.ndarray,
    targets: np.ndarray,
    loss: Loss,
    alpha: float,
    P: np.ndarray | None = None,
) -> None:
    """SGD over the samples in order, plain or with a P that stays as it is; X changes in place.
    Targets y + i w have the weight w, here and below."""
    frozen = [np.eye(X.shape[1]) if P is None else P]
    for rows, y in zip(index, targets, strict=True):
        _move(X, frozen, rows, y, loss, alpha)


def scaled_sgd(
    X: np.ndarray,
    P: list[np.ndarray],
    index: np.ndarray,
    targets: np.ndarray,
    loss: Loss,
    alpha: float,
) -> list[np.ndarray]:
    """ScaledSGD over the samples in order; X changes in place, the new P is returned.

    >>> from scaledsgd.core.losses import LOSSES
    >>> X = np.array([[1.0], [2.0]])
    >>> P = scaled_sgd(X, preconditioners(X), np.array([[0, 1]]), np.array([1.0]),
    ...                LOSSES["squared"], alpha=1.0)
    >>> X[:, 0], P[0] * (X.T @ X)
    (array([0.6, 1.8]), array([[1.]]))
    """
    P = list(P)
    for rows, y in zip(index, targets, strict=True):
        before = X[rows]
        moved = _move(X, P, rows, y, loss, alpha)
        for m in moved:
            side = loss.sides[m] % len(P)
            P[side] = sherman_morrison(P[side], X[rows[m]], +1.0)
            P[side] = sherman_morrison(P[side], before[m], -1.0)
    return P


def _move(X, P, rows, y, loss: Loss, alpha: float) -> list[int]:
    """One step. Returns which of the sample's places moved: a row named twice moves once, the
    first time it is named."""
    u, v = form(X, rows, loss)
    slope = weighed(loss.slope, u @ v, y)
    moved = [m for m, row in enumerate(rows) if row not in rows[:m]]
    steps = [P[(1 - loss.sides[m]) % len(P)] @ (loss.a[m] * v + loss.b[m] * u) for m in moved]
    for m, step in zip(moved, steps, strict=True):
        X[rows[m]] -= alpha * slope * step
    return moved


def squared_loss(U, V, choices: Choices, alpha0: float, ridges) -> float:
    """The whole-data squared loss: 1 is wanted of a choice, with its weight, and 0 of every entry,
    with weight alpha_0. The second sum is over all entries, and still only a product of Grams."""
    z = (U[choices.users] * V[choices.items]).sum(axis=1)
    ridge = ridges[0] @ (U**2).sum(axis=1) + ridges[1] @ (V**2).sum(axis=1)
    everything = np.sum((U.T @ U) * (V.T @ V))
    return float(choices.weights @ (z - 1) ** 2 + alpha0 * everything + ridge) / 2


def squared_steps(U, V, choices: Choices, order, theta: float, alpha0: float, ridges) -> None:
    """ScaledSGD on the whole-data squared loss, choice after choice, with Grams as they are at the
    beginning; U and V are in a basis in which both Grams are diagonal, and change in place.

    A choice carries the share w / n of what the other entries and the ridge ask of its row, n being
    the sum of that row's weights. P is the inverse of the curvature of all of it."""
    seen = choices.row_weights()
    grams = [alpha0 * (side**2).sum(axis=0) for side in (U, V)]
    means = [w @ side**2 / w.sum() for w, side in zip(seen, (U, V), strict=True)]
    for t in order:
        u, i, w = choices.users[t], choices.items[t], choices.weights[t]
        x, v = U[u].copy(), V[i].copy()
        h, g = grams[1] + ridges[0][u], grams[0] + ridges[1][i]
        a, b = theta * w / seen[0][u], theta * w / seen[1][i]
        P = 1 / (seen[0][u] * means[1] + (1 + a) * h)
        Q = 1 / (seen[1][i] * means[0] + (1 + b) * g)
        lever = P @ v**2 + Q @ x**2
        e = theta * w * (1 - x @ v) / (1 + theta * w * lever)  # the residual after the step
        U[u] = x + P * (e * v - a * h * x)
        V[i] = v + Q * (e * x - b * g * v)


def softmax_gradients(U, V, choices: Choices, negatives, tau, c, *, cosine=True, ridge=0.0):
    """The sampled softmax of a block of choices over shared negatives, its gradients G_U and G_V.

    loss = sum w (c log sum_j exp(s_uj / tau) - s_ui / tau),   s a cosine or a dot product
    """
    u, i, w = choices.users, choices.items, choices.weights.astype(np.float64)
    lengths = [np.linalg.norm(side, axis=1, keepdims=True) for side in (U, V)]
    A, B = (U / lengths[0], V / lengths[1]) if cosine else (U, V)
    E = np.exp(A[u] @ B[negatives].T / tau)
    loss = w @ (c * np.log(E.sum(axis=1)) - (A[u] * B[i]).sum(axis=1) / tau)
    p = c * w[:, None] * E / E.sum(axis=1, keepdims=True) / tau
    G, H = np.zeros_like(U), np.zeros_like(V)
    np.add.at(G, u, p @ B[negatives] - w[:, None] * B[i] / tau)
    np.add.at(H, i, -w[:, None] * A[u] / tau)
    np.add.at(H, negatives, p.T @ A[u])
    if cosine:
        G = (G - (G * A).sum(axis=1, keepdims=True) * A) / lengths[0]
        H = (H - (H * B).sum(axis=1, keepdims=True) * B) / lengths[1]
    np.add.at(G, u, ridge * w[:, None] * U[u])
    np.add.at(H, i, ridge * w[:, None] * V[i])
    loss += ridge / 2 * (w @ (U[u] ** 2).sum(axis=1) + w @ (V[i] ** 2).sum(axis=1))
    return float(loss), G, H
