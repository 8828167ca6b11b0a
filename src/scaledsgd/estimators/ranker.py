"""Rankings from ratings, events or comparisons: which of two items is nearer to a third."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import contextmanager
from os import PathLike
from typing import cast

import numpy as np
import scipy.sparse as sp
from sklearn.utils.validation import check_is_fitted

from ..core.linalg import unit
from ..core.losses import LOSSES, Loss
from ..core.observations import Chunk, Observations
from ..core.validation import LARGEST, real, target_bounds
from ..io.ids import Ids
from ..io.schema import Either, Number
from ..io.tables import are_files, columns_of
from ..recommend import evaluation
from ..recommend.comparisons import SIMILARITIES, successions, triplets
from ..recommend.histories import Histories, last_of
from ..recommend.interactions import UNNAMED, Interactions, read
from ..recommend.search import Lists, Search
from ..training import metrics
from .base import SETTINGS, Learner, NothingToLearn, Role

# With comparisons="auto": so many for each number to be learned, and no more than fit a gigabyte.
# On MovieLens-Small at rank 16, with 13, 32 and 64 of them 0.886, 0.921 and 0.933 of comparisons
# that were held out are ordered right: twice as many would gain less than a percent.
_COMPARISONS_A_NUMBER, _COMPARISONS_MOST = 64, 80_000_000
_WIDEST = 32  # the largest rank that rank="auto" looks for

_TESTED = 0.1  # share of the comparisons that is held out to tell how good the rest made it


class ItemRanker(Learner):
    """Learn vectors of items from ratings or events, or from comparisons.

    Two items are as similar as those who rated them make them (`similarity`: "cosine", "adjusted",
    "jaccard" or "shrunk"), and vectors are learned whose products order items as `comparisons` of
    them do; a tenth of these is held out, and `test_auc_` is the share of it that is ordered right.
    (What users will choose next is learned by `Recommender`.)

    >>> rated = {"who": ["ann", "ann", "bob", "bob", "cem", "cem", "dee", "dee"],
    ...          "what": ["tea", "rye", "tea", "rye", "jam", "fig", "jam", "fig"]}
    >>> model = ItemRanker(rank=2, epochs=50, random_state=0).fit(rated, user="who", item="what")
    >>> model.similar("tea", k=1)[0], model.recommend(["fig"], k=1)[0]
    (array(['rye'], dtype=object), array(['jam'], dtype=object))

    A comparison (i, j, k) says that i is nearer to j than to k. With mode="item-item" all three
    are items; with mode="user-item" i is a user who prefers item j to item k. The other settings
    are those of `MatrixCompleter`.

    >>> place = np.arange(8.0)                       # items along a line, near ones alike
    >>> i, j, k = np.random.default_rng(0).integers(8, size=(3, 4000))
    >>> keep = abs(place[i] - place[j]) != abs(place[i] - place[k])
    >>> i, j, k = i[keep], j[keep], k[keep]
    >>> nearer = abs(place[i] - place[j]) < abs(place[i] - place[k])
    >>> model = ItemRanker(rank=3, epochs=20, random_state=0).fit(np.stack([i, j, k], 1), nearer)
    >>> model.score(np.stack([i, j, k], 1), nearer) > 0.95
    True
    """

    _legal = SETTINGS | {
        "mode": Either("item-item", "user-item"),
        "similarity": Either(*SIMILARITIES),
        "comparisons": Either("auto", Number(1, whole=True)),
    }
    _histories: Histories
    _search: tuple  # what was last searched, and for which state of the vectors

    def __init__(
        self, rank=16, *, mode="item-item", similarity="cosine", comparisons: int | str = "auto",
        scaled=True, learning_rate: float | str = "auto", damping: float | str = "auto",
        refresh="round", epochs=5, tol=1e-16, evaluations=1, n_jobs=1, device="cpu", engine=None,
        dtype="float32", random_state=None, callbacks=(), verbose=False,
    ):  # fmt: skip
        super().__init__(
            rank, scaled=scaled, learning_rate=learning_rate, damping=damping, refresh=refresh,
            epochs=epochs, tol=tol, evaluations=evaluations, n_jobs=n_jobs, device=device,
            engine=engine, dtype=dtype, random_state=random_state, callbacks=callbacks,
            verbose=verbose,
        )  # fmt: skip
        self.mode = mode
        self.similarity = similarity
        self.comparisons = comparisons

    @property
    def objective(self) -> Loss:
        return LOSSES["bpr"]

    @property
    def is_symmetric(self) -> bool:
        if self.mode not in ("item-item", "user-item"):
            raise ValueError(f"mode={self.mode!r} is not 'item-item' or 'user-item'")
        return self.mode == "item-item"

    @property
    def _sides(self) -> tuple[str, str]:
        return ("item" if self.is_symmetric else "user", "item")

    def fit(
        self, data, y=None, *, user=None, item=None, value=None, time=None, i=None, j=None, k=None,
        target=None,
    ):  # fmt: skip
        """Learn from ratings or events: a frame, a mapping of columns or the path of a file, with
        the columns named `user`, `item` and, if there are any, `value` and `time`; or a sparse
        matrix of users x items. Or from comparisons: an integer array of columns i, j, k and
        targets y (all 1 when absent), a frame with those columns named, or Observations."""
        names = (user, item, value, time), (i, j, k, target)
        told, columns = self._told(data, y, *names, whole=True)
        self._learn(told, columns, self.epochs, fresh=True)
        vars(self).pop("test_auc_", None)
        held = vars(self).pop("_held", None)
        if held is not None:
            engine = self._trainer.engine
            self.test_auc_ = metrics.auc(engine, self.factors, held, self.objective)
        return self

    def partial_fit(
        self, data, y=None, *, user=None, item=None, value=None, time=None, i=None, j=None, k=None,
        target=None,
    ):  # fmt: skip
        """One pass over new events or comparisons; items and users not seen before are added.

        An event says that the item before it, of the same user, is nearer to this item than to a
        random one; of every user only her last item is remembered."""
        names = (user, item, value, time), (i, j, k, target)
        told, columns = self._told(data, y, *names, whole=False)
        return self._learn(told, columns, 1, fresh=not hasattr(self, "history_"), streaming=True)

    def _told(self, data, y, names: tuple, columns: tuple, *, whole: bool) -> tuple[tuple, tuple]:
        """The data as `_learn` takes it, and the names of its columns."""
        if names[0] is None and names[1] is None and not _is_matrix(data):
            return (data, y), columns
        if y is not None or any(name is not None for name in columns):
            raise ValueError("events have user and item, comparisons i, j, k and y: not both")
        if not self.is_symmetric:
            raise ValueError("what users choose is learned by Recommender, not by mode='user-item'")
        if not _is_matrix(data) and (names[0] is None or names[1] is None):
            raise ValueError(UNNAMED)
        return (read(data, names), whole), ("user", "item") if names[0] is None else names

    @property
    def histories(self) -> Histories:
        """What each user chose."""
        return self._histories

    @property
    def user_ids(self) -> Ids | None:
        """Names of the users; None where they are known by number."""
        return self._histories.users if self._ids is not None else None

    def frozen(self) -> ItemRanker:
        still = cast(ItemRanker, super().frozen())
        vars(still).pop("_search", None)
        if self._ids is not None:
            still._histories = self._histories.frozen()
        return still

    def roles(self, columns: Mapping[str, str | None]) -> tuple[list[Role], int]:
        low, high = target_bounds(self.objective, self.dtype)
        if columns.get("user") or columns.get("item"):
            largest = LARGEST[str(np.dtype(self.dtype))]  # and users have no rows of their own
            return [Role("user", 2), Role("item", 1), Role("value", None, -largest, largest)], 2
        second = 0 if self.is_symmetric else 1
        ids = [Role("i", 0), Role("j", second), Role("k", second)]
        return [*ids, Role("target", None, low, high)], 3

    def id_kinds(self) -> dict[int, type]:
        users = self._histories.users.kind if self._ids is not None else None
        return super().id_kinds() | ({2: users} if users else {})

    def _new_ids(self) -> list[Ids]:
        ids = Ids()
        self._histories = Histories(Ids())
        return [ids, ids] if self.is_symmetric else [self._histories.users, ids]

    def _observe(self, data, names, *, reset: bool) -> Observations | None:
        triplets, y = data
        if isinstance(triplets, Interactions):
            return self._observe_events(triplets, names, whole=y, reset=reset)
        if isinstance(triplets, Observations):
            return triplets
        if are_files(triplets):
            i, j, k, target = names
            return self._in_files(triplets, (j, k, i), target)
        if self._ids is None:
            triplets = np.asarray(triplets)
            if triplets.ndim != 2 or triplets.shape[1] != 3:
                raise ValueError(f"triplets have three columns, this array is {triplets.shape}")
            i, j, k = triplets.T
            return Observations.triplets(i, j, k, y, symmetric=self.is_symmetric)
        i, j, k = columns_of(triplets, names[:3])
        if names[3] is not None:
            (y,) = columns_of(triplets, names[3:])
        rows, items = self._ids
        i, j, k = rows.add(i, names[0]), items.add(j, names[1]), items.add(k, names[2])
        shape = (len(rows), len(items))
        return Observations.triplets(i, j, k, y, shape=shape, symmetric=self.is_symmetric)

    def _observe_events(self, told: Interactions, names, *, whole: bool, reset: bool):
        """Comparisons from events: from all there are, or from those that came next."""
        if whole and told.values is not None:
            # In a similarity, zero is what was not rated.
            told = told.kept(np.abs(told.values) >= np.finfo(np.float32).tiny)
            if not len(told.users):
                raise ValueError("all values are 0: there is nothing to compare")
        users, items = self._histories.users, self._item_ids
        u, i = users.add(told.users, names[0]), items.add(told.items, names[1])
        d, seed = len(items), self._seed(reset)
        if whole:
            return self._compared(u, i, told.values, seed)
        found = successions(self._histories.room(), u, i, (d, d), seed=seed)
        if found is None and reset:
            raise NothingToLearn("nothing to learn: no user has two events on different items")
        return found

    def _compared(self, users, items, values, seed: int) -> Observations:
        """Items by how similar those who rated them make them, part of it kept for a test."""
        d, wanted = len(self._item_ids), self._wanted()
        test = int(_TESTED * wanted)
        values = np.ones(len(users), np.float32) if values is None else values
        drawn = triplets(
            last_of(users, items, values), wanted - test, test, seed, similarity=self.similarity,
            fewer=self.comparisons == "auto", progress=self.verbose, n_jobs=self.n_jobs,
        )  # fmt: skip
        self._histories.add(users, items, values)
        self._histories.follow(users, items)
        if len(drawn.test):
            self._held = Chunk(drawn.test, drawn.test_targets)
        return Observations(drawn.train, drawn.train_targets, (d, d), "bpr", symmetric=True)

    def _wanted(self) -> int:
        """How many comparisons to draw."""
        if self.comparisons == "auto":
            rank = _WIDEST if self.rank == "auto" else int(self.rank)
            return min(_COMPARISONS_A_NUMBER * rank * len(self._item_ids), _COMPARISONS_MOST)
        return int(self.comparisons)

    def _seed(self, reset: bool) -> int:
        """Of the next draw. That of a model under way is kept in its file, and goes on there."""
        if reset:
            return self._drawn()
        return int(self._trainer.rng.integers(2**31))

    @contextmanager
    def _unless_refused(self):
        before = getattr(self, "_histories", None)
        known = len(before.users) if before else 0
        try:
            with super()._unless_refused():
                yield
        except BaseException:
            if before is not None:
                before.users.keep(known)
                self._histories = before
            raise

    def _memory(self) -> dict[str, np.ndarray]:
        if self._ids is None:
            return {}
        known = {"users": self._histories.users.names()} if self.is_symmetric else {}
        if hasattr(self, "test_auc_"):
            known["test_auc"] = np.array([self.test_auc_])
        return known | self._histories.arrays()

    def _restore(self, arrays: dict[str, np.ndarray], facts: dict):
        super()._restore(arrays, facts)
        if self._ids is not None:
            users = Ids(arrays.get("users", ())) if self.is_symmetric else self._ids[0]
            self._histories = Histories(users)
            if "previous" in arrays:  # models of old versions have no histories
                self._histories.restore(arrays)
        if "test_auc" in arrays:
            self.test_auc_ = float(arrays["test_auc"][0])
        return self

    # --- What it is asked -------------------------------------------------------------------------

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


def _is_matrix(data) -> bool:
    return sp.issparse(data) or isinstance(data, str | PathLike)


def _number(k) -> int:
    if not isinstance(k, int | np.integer) or isinstance(k, bool) or k < 1:
        raise ValueError(f"k={k!r} is not a whole number from 1 up")
    return int(k)
