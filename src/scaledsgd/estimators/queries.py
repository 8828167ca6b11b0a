"""What a ranker is asked: which items are similar, which to recommend, in which order."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import scipy.sparse as sp
from sklearn.utils.validation import check_is_fitted

from ..core.linalg import unit
from ..core.validation import real
from ..io.tables import columns_of
from ..recommend import evaluation
from ..recommend.search import Lists, Search
from ..training import metrics

if TYPE_CHECKING:
    from ..io.ids import Ids
    from ..recommend.histories import Histories
    from .base import Learner as _Base
else:
    _Base = object


class Answers(_Base):
    """Questions to vectors of items, and of users where there are any."""

    _histories: Histories
    _search: tuple  # what was last searched, and for which state of the vectors

    @property
    def _item_ids(self) -> Ids:
        assert self._ids is not None  # whoever asks has seen names
        return self._ids[1]

    def predict(self, triplets) -> np.ndarray:
        """z = x_i.(x_j - x_k) of each triplet: above 0 where i is nearer to j."""
        check_is_fitted(self, "history_")
        i, j, k = np.asarray(triplets).T
        return self.scores([self.row_numbers(j, 1), self.row_numbers(k, 1), self.row_numbers(i, 0)])

    def score(self, triplets, y=None) -> float:
        """Share of the triplets that are ordered as observed (the paper's AUC)."""
        z = self.predict(triplets)
        if len(z) == 0:
            raise ValueError("no triplets to score: the input is empty")
        return metrics.auc_of(z, np.ones(len(z)) if y is None else np.asarray(y))

    def similar(self, item, k: int = 10, *, by: str = "angle"):
        """The k items most similar to an item, best first, and their scores; of a list of items,
        arrays with a row for each.

        by="angle" goes by the cosines between vectors. by="score" goes by their products, which
        training orders and `ranked` goes by: there a few items with long vectors, which are near
        to a little of everything, come up again and again.
        """
        rows, search = self.row_numbers(np.atleast_1d(item), 1), self._searched(by)
        alone = np.arange(len(rows) + 1), rows
        return self._named(*search.top_k(search.table[rows], _number(k), alone), np.ndim(item) == 0)

    def recommend(
        self, asked=None, k: int = 10, ratings=None, exclude_seen: bool = True, *, user=None,
        items=None,
    ):  # fmt: skip
        """The k items that suit a user best, and their scores.

        `asked` is a user in mode="user-item", and in mode="item-item" a list of items, which stand
        for somebody who likes them (as much as `ratings` say); `user` and `items` tell which of
        the two is meant. A list of users, or of such lists, gets arrays with a row for each. Items
        that the user is known to have had are left out unless `exclude_seen` is False; rows with
        too few others end in -1 (or None) with a score of -inf.

        In mode="item-item" a user is the mean of the vectors of her items, weighted by ratings,
        and items are ordered by their angle to it. In mode="user-item" users are those of the
        comparisons, and items are ordered by their products with theirs.
        """
        check_is_fitted(self, "history_")
        given = [one for one in (asked, user, items) if one is not None]
        if len(given) != 1:
            raise ValueError("recommend needs a user or a list of items, and not both")
        (asked,) = given
        if user is not None or (items is None and not self.is_symmetric):
            if ratings is not None:
                raise ValueError("ratings belong to a list of items, not to a user")
            single = np.ndim(asked) == 0
            vectors, seen = self._known(np.atleast_1d(asked))
        else:
            if not self.is_symmetric:
                raise ValueError("a user of this model is one that it has seen: give her id")
            if isinstance(asked, str) or not hasattr(asked, "__len__"):
                raise ValueError(f"{asked!r} is not a list of items; a user is named by user=")
            single = not any(np.ndim(part) for part in asked)
            stars = [ratings] if single and ratings is not None else ratings
            vectors, seen = self._unknown([asked] if single else asked, stars)
        search = self._searched("angle" if self.is_symmetric else "score")
        if self.is_symmetric:
            vectors = unit(vectors)
        found = search.top_k(vectors, _number(k), seen if exclude_seen else None)
        return self._named(*found, single)

    def explain(self, user=None, item=None, *, items=None) -> tuple[np.ndarray, np.ndarray]:
        """Which of a user's items, or of the `items` that somebody likes, speak for an item, and
        how much: shares that add up to 1, largest first. In mode="item-item" alone, where a user is
        the mean of her items, and a score the sum of what each of them gives."""
        check_is_fitted(self, "history_")
        if (user is None) == (items is None):
            raise ValueError("explain needs a user or a list of items, and not both")
        if not self.is_symmetric:
            raise ValueError("mode='user-item' gives no reasons")
        wanted = int(self.row_numbers([item], 1)[0])
        if items is None:
            _, (_, chosen) = self._known(np.array([user]))
            weights = self._histories.of(self._histories.users.rows([user], "user"))[2]
        else:
            chosen = np.unique(self.row_numbers(np.asarray(items), 1))
            weights = np.ones(len(chosen))
        others = chosen != wanted  # an item does not speak for itself
        chosen, weights = chosen[others], weights[others]
        if not len(chosen):
            raise ValueError("nothing is known of other choices")
        parts = weights * (self.factors.right[chosen] @ self.factors.right[wanted])
        shares = parts / parts.sum() if parts.sum() else np.full(len(parts), 1 / len(parts))
        order = np.argsort(-shares)
        names = self._item_ids.names()[chosen] if self._ids else chosen
        return names[order], shares[order]

    def ranked(self, row, candidates) -> np.ndarray:
        """The candidates in the order in which an item (or user) ranks them; a list of items gets
        a row for each."""
        candidates, rows = np.asarray(candidates), self.row_numbers(np.atleast_1d(row), 0)
        scores = self.factors.left[rows] @ self.factors.right[self.row_numbers(candidates, 1)].T
        order = candidates[np.argsort(-scores, axis=1, kind="stable")]
        return order[0] if np.ndim(row) == 0 else order

    def vectors(self, items) -> np.ndarray:
        """The learned vectors of items, a row each."""
        return self.factors.right[self.row_numbers(items, 1)]

    def evaluate(self, table, *, user: str, item: str, k: int = 10) -> dict[str, float]:
        """How well the items of these events are found among all that their users have not had:
        the measures of `evaluation.evaluate`. Events of a user or an item that is not known from
        training are left out, and counted."""
        check_is_fitted(self, "history_")
        if self._ids is None:
            raise ValueError("this model knows no users by id: fit it to ratings or events")
        who, what = (np.asarray(column) for column in columns_of(table, (user, item)))
        users, items = self._histories.users, self._item_ids
        known = np.fromiter(
            (u in users and i in items for u, i in zip(who.tolist(), what.tolist(), strict=True)),
            bool, len(who),
        )  # fmt: skip
        rows = users.rows(who[known], user)
        had = np.diff(self._histories.of(rows)[0]) > 0
        wanted = items.rows(what[known], item)[had]
        shape = len(users), len(self.factors.right)
        test = sp.csr_array((np.ones(len(wanted)), (rows[had], wanted)), shape=shape)
        seen = self._histories.table.copy()
        seen.resize(shape)
        candidates = self._searched("angle" if self.is_symmetric else "score").table

        def scores(asked: np.ndarray) -> np.ndarray:
            return self._vectors_of(asked) @ candidates.T

        found = evaluation.evaluate(scores, seen, test, k)
        return found | {"left_out": len(who) - len(wanted)}

    def _vectors_of(self, rows: np.ndarray) -> np.ndarray:
        """Vectors of users by number, who have a history where there are only items."""
        if not self.is_symmetric:
            return self.factors.left[rows]
        return self._mean(*self._histories.of(rows))

    def _known(self, users: np.ndarray) -> tuple[np.ndarray, Lists]:
        """Vectors of users of the training, and what they had."""
        nothing = np.zeros(len(users) + 1, np.int64), np.zeros(0, np.int64)
        if self._ids is None:  # comparisons by number, which do not tell who had what
            if self.is_symmetric:
                raise ValueError("this model knows no users: give recommend a list of items")
            return self.factors.left[self.row_numbers(users, 0)], nothing
        rows = self._histories.users.rows(users, "user")
        start, items, _ = self._histories.of(rows)
        empty = np.diff(start) == 0
        if self.is_symmetric and empty.any():
            raise ValueError(
                f"user {users[np.argmax(empty)]!r}: the model does not know her items, give them"
            )
        return self._vectors_of(rows), (start, items)

    def _unknown(self, lists, ratings) -> tuple[np.ndarray, Lists]:
        """Vectors of users who had these items."""
        start = np.concatenate([[0], np.cumsum([len(part) for part in lists])])
        if not len(lists) or (np.diff(start) == 0).any():
            raise ValueError("a list of items to recommend by is empty")
        items = np.concatenate([self.row_numbers(np.asarray(part), 1) for part in lists])
        stars = None
        if ratings is not None:
            stars = np.concatenate([real(part, "rating") for part in ratings])
            if len(stars) != len(items):
                raise ValueError(f"{len(items)} items and {len(stars)} ratings do not pair up")
            if not np.isfinite(stars).all():
                raise ValueError(f"rating {stars[~np.isfinite(stars)][0]} is not a finite number")
        weights = np.ones(len(items)) if stars is None else stars
        return self._mean(start, items, weights), (start, items)

    def _mean(self, start, items, weights) -> np.ndarray:
        right = self.factors.right
        rows = sp.csr_array((weights, items, start), shape=(len(start) - 1, len(right)))
        total = abs(rows).sum(axis=1)
        if not total.all():
            raise ValueError("ratings that are all 0 say nothing about a user")
        return ((rows @ right) / total[:, None]).astype(right.dtype)

    def _searched(self, by: str) -> Search:
        """A search among the items as they are now."""
        if by not in ("score", "angle"):
            raise ValueError(f"by={by!r} is not 'score' or 'angle'")
        right = self.factors.right
        state = by, self._trainer.samples, len(right)
        if getattr(self, "_search", (None,))[0] != state:
            self._search = state, Search(unit(right) if by == "angle" else right)
        return self._search[1]

    def _named(self, rows: np.ndarray, scores: np.ndarray, single: bool):
        found = rows >= 0
        names = self._item_ids.names()[rows] if self._ids else rows
        if single:
            return names[0][found[0]], scores[0][found[0]]
        names[~found] = -1 if names.dtype.kind == "i" else None
        return names, scores


def _number(k) -> int:
    if not isinstance(k, int | np.integer) or isinstance(k, bool) or k < 1:
        raise ValueError(f"k={k!r} is not a whole number from 1 up")
    return int(k)
