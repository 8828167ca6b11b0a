"""Who chose what: users, items and weights, checked here."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from .compiled import njit
from .randomness import uniform
from .validation import real, refuse, whole


@dataclass(frozen=True)
class Choices:
    """Choices of items by users, each with a weight: users, items (n,) int32 and weights (n,)
    float32, of a matrix users x items of that shape. Naming a pair twice is allowed.

    >>> seen = Choices.of([0, 1, 1], [2, 0, 2], shape=(2, 3))
    >>> len(seen), seen.weights
    (3, array([1., 1., 1.], dtype=float32))
    """

    users: np.ndarray
    items: np.ndarray
    weights: np.ndarray
    shape: tuple[int, int]

    @classmethod
    def of(cls, users, items, weights=None, *, shape) -> Choices:
        """Checked choices from anything like an array."""
        users, items = whole(users, "user"), whole(items, "item")
        weights = np.ones(len(users)) if weights is None else real(weights, "weight")
        if not len(users) == len(items) == len(weights):
            raise ValueError(
                f"{len(users)} users, {len(items)} items and {len(weights)} weights do not pair up"
            )
        if len(users) == 0:
            raise ValueError("no choices: the input is empty")
        for rows, limit, what in ((users, shape[0], "user"), (items, shape[1], "item")):
            refuse((rows < 0) | (rows >= limit), rows, what + f" {{}} is not one of {limit}")
        refuse(~(np.isfinite(weights) & (weights > 0)), weights, "weight {} is not above 0")
        return cls(
            users.astype(np.int32), items.astype(np.int32), weights.astype(np.float32),
            (int(shape[0]), int(shape[1])),
        )  # fmt: skip

    def __len__(self) -> int:
        return len(self.users)

    def __getitem__(self, part) -> Choices:
        """Some of them, by slice, mask or positions."""
        return Choices(self.users[part], self.items[part], self.weights[part], self.shape)

    def merged(self) -> Choices:
        """Each pair once, with the sum of its weights.

        >>> Choices.of([0, 1, 0], [2, 0, 2], shape=(2, 3)).merged().weights
        array([2., 1.], dtype=float32)
        """
        keys = self.users.astype(np.int64) * self.shape[1] + self.items
        keys, first, at = np.unique(keys, return_index=True, return_inverse=True)
        weights = np.bincount(at, self.weights).astype(np.float32)
        return Choices(self.users[first], self.items[first], weights, self.shape)

    def row_weights(self) -> list[np.ndarray]:
        """The sum of the weights of each user (rows,) and of each item (columns,), float64."""
        return [
            np.bincount(rows, self.weights, size)
            for rows, size in zip((self.users, self.items), self.shape, strict=True)
        ]

    def gathered(self, most: int, seed: int) -> Choices:
        """Choices for one process to look at: these, since they are here."""
        return self

    def portions(
        self, rng: np.random.Generator, parts: int, block: int = 1, weighted: bool = False
    ) -> Iterator[np.ndarray]:
        """Positions of all choices in a random order, in so many parts of whole blocks; with
        `weighted`, drawn as often as their weights say.

        >>> seen = Choices.of([0, 1, 1, 0, 1], [2, 0, 2, 1, 1], shape=(2, 3))
        >>> [len(part) for part in seen.portions(np.random.default_rng(0), 2, block=2)]
        [4, 1]
        """
        order = np.empty(len(self), dtype=np.int32 if len(self) < 2**31 else np.int64)
        _permute(order, rng.integers(2**64, dtype=np.uint64))
        if weighted and np.ptp(self.weights):
            often = self.weights.astype(np.float64)
            order = rng.choice(len(order), len(order), p=often / often.sum())
        each, more = divmod(-(-len(order) // block), parts)
        ends = block * np.cumsum([each + (k < more) for k in range(parts)])
        for part in np.split(order, ends[:-1]):
            if len(part):
                yield part

    def negatives(
        self, pool: np.ndarray, blocks: int, count: int, rng: np.random.Generator
    ) -> np.ndarray:
        """Items of the pool for each block (blocks, count), all of them where they are no more."""
        if count >= len(pool):
            return np.tile(pool, (blocks, 1))
        return pool[rng.integers(0, len(pool), (blocks, count))]


@njit(nogil=True, cache=True)
def _permute(out, state):
    """0 .. len(out) - 1 in a random order (Fisher and Yates): NumPy takes eight times as long."""
    for n in range(len(out)):
        state, u = uniform(state)
        k = np.int64((1.0 - u) * (n + 1))
        out[n] = out[k]
        out[k] = n
