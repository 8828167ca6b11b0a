"""Adam (Kingma and Ba, 2015) on the sampled softmax, in NumPy: a rival of our steps.

Only rows that a block touches are moved, and their moments kept, as frameworks do for sparse
gradients."""

from __future__ import annotations

import numpy as np

from ...core.choices import Choices
from ...core.linalg import unit
from ...training.choice_trainer import ChoicePolicy, ChoiceTrainer

_BETAS, _EPSILON = (0.9, 0.999), 1e-8
_BLOCK = 512  # choices


def softmax_gradients(x, v, w, policy: ChoicePolicy) -> tuple[np.ndarray, ...]:
    """Of sum over choices of -s_ui / tau + c log sum_j exp(s_uj / tau), s cosines or products, the
    latter with a ridge: in the users x (B, r), their items v (B, r) and the negatives w (N, r)."""
    tau, c = policy.tau, policy.c
    xs, vs, ws = (unit(x), unit(v), unit(w)) if policy.cosine else (x, v, w)
    z = xs @ ws.T / tau
    p = np.exp(z - z.max(axis=1, keepdims=True))
    p *= c / p.sum(axis=1, keepdims=True)
    slopes = ((p @ ws - vs, xs, x), (-xs, vs, v), (p.T @ xs, ws, w))
    if not policy.cosine:
        ridges = policy.dot_ridge, policy.dot_ridge, 0.0
        return tuple(g / tau + h * row for (g, _, row), h in zip(slopes, ridges, strict=True))
    found = []
    for g, direction, row in slopes:  # the length of a row does not matter: neither does its slope
        g = (g - (g * direction).sum(axis=1, keepdims=True) * direction) / tau
        found.append(g / np.maximum(np.linalg.norm(row, axis=1, keepdims=True), 1e-12))
    return tuple(found)


class Adam:
    """Goes on from a trainer's factors, with its loss and its negatives.

    rate : the step at the beginning.
    """

    def __init__(self, trainer: ChoiceTrainer, rate: float):
        self.trainer, self.rate, self.time = trainer, rate, 0
        self.mean, self.square = (np.zeros_like(trainer.factors.X) for _ in range(2))

    def softmax_epoch(self, choices: Choices, begin: float, end: float) -> None:
        """One pass, with a step that falls from 1 - begin to 1 - end of its length."""
        trainer, X = self.trainer, self.trainer.factors.X
        policy, shift = trainer.policy, trainer.factors.begin
        order = trainer.rng.permutation(len(choices))
        blocks = np.array_split(order, max(1, len(order) // _BLOCK))
        for n, block in enumerate(blocks):
            negatives = trainer.rng.choice(trainer.pool, policy.negatives)
            users, items = choices.users[block], choices.items[block]
            rows = np.concatenate([users, items + shift, negatives + shift])
            parts = X[users], X[items + shift], X[negatives + shift]
            gradients = np.concatenate(softmax_gradients(*parts, policy))
            share = 1 - begin - (end - begin) * n / len(blocks)
            self._move(X, rows, gradients / len(block), self.rate * share)

    def _move(self, X, rows: np.ndarray, gradients: np.ndarray, rate: float) -> None:
        self.time += 1
        rows, at = np.unique(rows, return_inverse=True)
        g = np.zeros((len(rows), X.shape[1]), np.float32)
        np.add.at(g, at, gradients)
        (b1, b2), m, v = _BETAS, self.mean, self.square
        m[rows] = b1 * m[rows] + (1 - b1) * g
        v[rows] = b2 * v[rows] + (1 - b2) * g * g
        mean, size = m[rows] / (1 - b1**self.time), v[rows] / (1 - b2**self.time)
        X[rows] -= rate * mean / (np.sqrt(size) + _EPSILON)
