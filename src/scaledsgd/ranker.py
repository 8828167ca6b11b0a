"""Rankings from comparisons: which of two items is nearer to a third, or to a user."""

from __future__ import annotations

import numpy as np
from sklearn.utils.validation import check_is_fitted

from . import metrics
from .ids import Ids
from .learner import Learner, columns_of
from .losses import LOSSES
from .observations import Observations
from .recommend import top_k


class ItemRanker(Learner):
    """Learn vectors whose products order items as the comparisons do.

    A triplet (i, j, k) says that i is nearer to j than to k. With mode="item-item" all three are
    items; with mode="user-item" i is a user who prefers item j to item k. Settings are those of
    `MatrixCompleter`.

    >>> place = np.arange(8.0)                       # items along a line, near ones alike
    >>> i, j, k = np.random.default_rng(0).integers(8, size=(3, 4000))
    >>> keep = abs(place[i] - place[j]) != abs(place[i] - place[k])
    >>> i, j, k = i[keep], j[keep], k[keep]
    >>> nearer = abs(place[i] - place[j]) < abs(place[i] - place[k])
    >>> model = ItemRanker(rank=3, epochs=20, random_state=0).fit(np.stack([i, j, k], 1), nearer)
    >>> model.score(np.stack([i, j, k], 1), nearer) > 0.95
    True
    """

    _loss = LOSSES["bpr"]

    def __init__(
        self, rank=16, *, mode="item-item", scaled=True, learning_rate: float | str = "auto",
        damping: float | str = "auto", refresh="round", epochs=5, tol=1e-16, evaluations=1,
        n_jobs=1, device="cpu", dtype="float32", random_state=None, callbacks=(), verbose=False,
    ):  # fmt: skip
        super().__init__(
            rank, scaled=scaled, learning_rate=learning_rate, damping=damping, refresh=refresh,
            epochs=epochs, tol=tol, evaluations=evaluations, n_jobs=n_jobs, device=device,
            dtype=dtype, random_state=random_state, callbacks=callbacks, verbose=verbose,
        )  # fmt: skip
        self.mode = mode

    @property
    def _symmetric(self) -> bool:
        if self.mode not in ("item-item", "user-item"):
            raise ValueError(f"mode={self.mode!r} is not 'item-item' or 'user-item'")
        return self.mode == "item-item"

    def fit(self, triplets, y=None, *, i=None, j=None, k=None, target=None):
        """Learn from an integer array of columns i, j, k and targets y (all 1 when absent), a frame
        with the named columns, or Observations."""
        return self._learn((triplets, y), (i, j, k, target), self.epochs, fresh=True)

    def partial_fit(self, triplets, y=None, *, i=None, j=None, k=None, target=None):
        """One pass over new comparisons; items and users not seen before are added."""
        fresh = not hasattr(self, "history_")
        return self._learn((triplets, y), (i, j, k, target), 1, fresh=fresh)

    def _new_ids(self) -> list[Ids]:
        ids = Ids()
        return [ids, ids] if self._symmetric else [ids, Ids()]

    def _observe(self, data, names, *, reset: bool) -> Observations:
        triplets, y = data
        if isinstance(triplets, Observations):
            return triplets
        if self._ids is None:
            triplets = np.asarray(triplets)
            if triplets.ndim != 2 or triplets.shape[1] != 3:
                raise ValueError(f"triplets have three columns, this array is {triplets.shape}")
            i, j, k = triplets.T
            return Observations.triplets(i, j, k, y, symmetric=self._symmetric)
        i, j, k = columns_of(triplets, names[:3])
        if names[3] is not None:
            (y,) = columns_of(triplets, names[3:])
        rows, items = self._ids
        i, j, k = rows.add(i, names[0]), items.add(j, names[1]), items.add(k, names[2])
        shape = (len(rows), len(items))
        return Observations.triplets(i, j, k, y, shape=shape, symmetric=self._symmetric)

    def predict(self, triplets) -> np.ndarray:
        """z = x_i.(x_j - x_k) of each triplet: above 0 where i is nearer to j."""
        check_is_fitted(self, "history_")
        i, j, k = np.asarray(triplets).T
        return self._scores([self._rows(j, 1), self._rows(k, 1), self._rows(i, 0)])

    def score(self, triplets, y=None) -> float:
        """Share of the triplets that are ordered as observed (the paper's AUC)."""
        z = self.predict(triplets)
        if len(z) == 0:
            raise ValueError("no triplets to score: the input is empty")
        return metrics.auc_of(z, np.ones(len(z)) if y is None else np.asarray(y))

    def similar(self, item, k: int = 10):
        """The k items most similar to an item, best first, and their scores."""
        return self._best(self.factors.right, self._rows([item], 1), k, exclude_self=True)

    def recommend(self, user, k: int = 10):
        """The k items a user ranks highest, and their scores (mode="user-item")."""
        if self._symmetric:
            raise ValueError("recommend needs mode='user-item': here there are only items")
        return self._best(self.factors.left, self._rows([user], 0), k, exclude_self=False)

    def ranked(self, row, candidates) -> np.ndarray:
        """The candidates in the order in which an item (or user) ranks them."""
        candidates = np.asarray(candidates)
        query = self.factors.left[self._rows([row], 0)[0]]
        scores = self.factors.right[self._rows(candidates, 1)] @ query
        return candidates[np.argsort(-scores, kind="stable")]

    def _best(self, side: np.ndarray, query: np.ndarray, k: int, *, exclude_self: bool):
        exclude = query if exclude_self else None
        rows, scores = top_k(side[query], self.factors.right, k, exclude)
        names = self._ids[1].names(rows[0]) if self._ids else rows[0]
        return names, scores[0]
