"""Rivals of our steps, in NumPy: SGD and Adam (Kingma and Ba, 2015) on the same losses.

Only rows that a block touches are moved, and of Adam their moments kept, as frameworks do for
sparse gradients."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ...core.choices import Choices
from ...core.linalg import unit
from ...training.choice_trainer import ChoicePolicy, ChoiceTrainer

_BETAS, _EPSILON = (0.9, 0.999), 1e-8
_BLOCK, _FEW = 512, 64  # choices of the softmax, and of the squared loss
_GRAMS = 4  # times in an epoch that the squared loss takes them anew


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


def squared_gradients(x, v, weights, shares, ridges, grams) -> tuple[np.ndarray, ...]:
    """Of the whole-data squared loss in the users x (B, r) and their items v (B, r) of some
    choices, each of which carries the share w / n of what the other entries and the ridge ask of
    its row. shares, ridges : (2, B), grams : alpha_0 V^T V and alpha_0 U^T U."""
    e = (weights * ((x * v).sum(axis=1) - 1))[:, None]
    sides = zip((v, x), (x, v), shares, ridges, grams, strict=True)
    return tuple(
        e * other + share[:, None] * (row @ G + ridge[:, None] * row)
        for other, row, share, ridge, G in sides
    )


class Rival:
    """Goes on from a trainer's factors, with its loss and its negatives.

    rate : the step at the beginning.
    adam : or plain SGD.
    """

    def __init__(self, trainer: ChoiceTrainer, rate: float, *, adam: bool):
        self.trainer, self.rate, self.adam, self.time = trainer, rate, adam, 0
        self.mean, self.square = (np.zeros_like(trainer.factors.X) for _ in range(2))

    def warming(self, choices: Choices, epochs: int) -> Iterator[None]:
        """Passes of the squared loss, with a step that falls to nothing."""
        trainer, X = self.trainer, self.trainer.factors.X
        trainer.seen, shift = choices.row_weights(), trainer.factors.begin
        trainer.clear_unseen()
        ridges, done = trainer.ridges(), 0
        for _ in range(epochs):
            for part in np.array_split(trainer.rng.permutation(len(choices)), _GRAMS):
                sides = trainer.factors.sides
                grams = [trainer.policy.alpha0 * trainer.engine.gram(side) for side in sides[::-1]]
                for block in np.array_split(part, max(1, len(part) // _FEW)):
                    named = choices.users[block], choices.items[block]
                    w = choices.weights[block]
                    shares = [w / seen[at] for seen, at in zip(trainer.seen, named, strict=True)]
                    held = [ridge[at] for ridge, at in zip(ridges, named, strict=True)]
                    rows = np.concatenate([named[0], named[1] + shift])
                    x, v = np.split(X[rows], 2)
                    gradients = squared_gradients(x, v, w, shares, held, grams)
                    left = 1 - done / (epochs * len(choices))
                    self._move(X, rows, np.concatenate(gradients), self.rate * left)
                    done += len(block)
            yield

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
        if not self.adam:
            X[rows] -= rate * g
            return
        (b1, b2), m, v = _BETAS, self.mean, self.square
        m[rows] = b1 * m[rows] + (1 - b1) * g
        v[rows] = b2 * v[rows] + (1 - b2) * g * g
        mean, size = m[rows] / (1 - b1**self.time), v[rows] / (1 - b2**self.time)
        X[rows] -= rate * mean / (np.sqrt(size) + _EPSILON)
