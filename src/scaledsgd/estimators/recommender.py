"""Recommendations from who chose what."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import asdict, replace
from time import perf_counter
from typing import cast

import numpy as np
import scipy.sparse as sp
from sklearn.utils.validation import check_is_fitted

from ..core.choices import Choices
from ..core.factors import Factors
from ..core.linalg import unit
from ..core.losses import LOSSES, Loss
from ..core.validation import LARGEST
from ..engines.base import AnyChoices, Engine, open_engine
from ..io.ids import Ids
from ..io.schema import Either, Number
from ..io.tables import are_files, columns_of
from ..recommend import fold_in, tuning
from ..recommend.evaluation import pattern, top_measures
from ..recommend.histories import Histories
from ..recommend.interactions import UNNAMED, Interactions, read
from ..recommend.neighbours import Neighbours
from ..recommend.search import Lists, Search, top_k
from ..training.choice_trainer import ChoicePolicy, ChoiceTrainer
from ..training.history import warn
from ..training.state import Checkpoint
from .base import SETTINGS, Learner, Role

_EPOCHS = 40  # of the softmax at most, with epochs="auto"
_HEAVIEST = 32.0  # times the mean: a choice of more weight would throw its rows about
_AGAIN = 1.05  # times the choices that neighbours were found in: then a stream finds them again
_NEAR = "start", "items", "weights"  # the arrays of neighbours in a file
_SECONDS = {"s": 1, "min": 60, "h": 3600, "d": 86400, "w": 604800, "y": 31557600}


class Recommender(Learner):
    """Learn vectors of users and items from choices: purchases, clicks, plays, high ratings.

    Parameters
    ----------
    rank : how many directions to learn.
    loss : "softmax" or "bpr", which begin from the squared loss and stay with it where held-out
        choices say so; "squared" alone, the objective of iALS in a fraction of its time.
    temperature, contrast, product : of the softmax: tau, the factor c of its logarithm, and
        "cosine" or "dot". "auto" finds them on held-out choices, as it finds
    ridge, alpha0 : how strongly vectors are held back, and the weight of what was not chosen.
    negatives : items that a block of choices shares.
    neighbours : items, at most, that speak for each item beside the vectors, where held-out choices
        say that it helps; 0 for vectors alone. "auto" is twice the rank with the softmax, else 0.
    half_life : of a choice's weight, such as "30d", or a number in the units of the time column.
    epochs : of the softmax at most; "auto" is 40. As many are run as help on held-out choices.
    scaled : step with the preconditioner P; False is plain SGD.
    engine : `RayEngine(...)` learns on a cluster, from Parquet files that its machines read.
        Settings are searched for here, on the choices of some users; `partial_fit` learns here.
    n_jobs, device, random_state, callbacks, verbose : as of `MatrixCompleter`.

    After `fit`, `measures_` holds NDCG@20 and recall@20 of held-out choices by what was tried, and
    of popularity; `policy_` is what was found.

    >>> chosen = {"who": ["ann", "ann", "bob", "bob", "cem", "cem", "dee"],
    ...           "what": ["tea", "rye", "tea", "rye", "jam", "fig", "jam"]}
    >>> model = Recommender(rank=2, random_state=0).fit(chosen, user="who", item="what")
    >>> model.recommend("dee", k=1)[0], model.similar("tea", k=1)[0]
    (array(['fig'], dtype=object), array(['rye'], dtype=object))
    """

    _legal = (
        SETTINGS
        | dict.fromkeys(
            ("temperature", "contrast", "ridge", "alpha0"), Either("auto", Number(1e-9, 1e9))
        )
        | {
            "rank": Number(1, 2**31 - 1, whole=True),
            "negatives": Number(1, 2**31 - 1, whole=True),
            "neighbours": Either("auto", Number(0, 2**31 - 1, whole=True)),
            "epochs": Either("auto", Number(1, 2**31 - 1, whole=True)),
            "loss": Either("softmax", "squared", "bpr"),
            "product": Either("auto", "cosine", "dot"),
        }
    )
    _trainer: ChoiceTrainer
    _histories: Histories
    _neighbours: Neighbours | None = None
    _regressed_on = 0  # choices, when neighbours were found
    _cached: tuple | None = None  # vectors, and a search among them, of one state
    _sides = ("user", "item")
    # Settings of the other estimators, which are facts about this one.
    dtype, evaluations = "float32", 1

    def __init__(
        self, rank=64, *, loss="softmax", temperature: float | str = "auto",
        contrast: float | str = "auto", product="auto", ridge: float | str = "auto",
        alpha0: float | str = "auto", negatives=1024, neighbours: int | str = "auto",
        half_life: str | float | None = None, epochs: int | str = "auto", scaled=True, n_jobs=1,
        device="cpu", engine: Engine | None = None, random_state=None, callbacks=(), verbose=False,
    ):  # fmt: skip
        self.rank = rank
        self.loss = loss
        self.temperature = temperature
        self.contrast = contrast
        self.product = product
        self.ridge = ridge
        self.alpha0 = alpha0
        self.negatives = negatives
        self.neighbours = neighbours
        self.half_life = half_life
        self.epochs = epochs
        self.scaled = scaled
        self.n_jobs = n_jobs
        self.device = device
        self.engine = engine
        self.random_state = random_state
        self.callbacks = callbacks
        self.verbose = verbose

    @property
    def objective(self) -> Loss:
        return LOSSES["squared"]

    @property
    def is_symmetric(self) -> bool:
        return False

    @property
    def policy_(self) -> ChoicePolicy:
        """What the search found."""
        check_is_fitted(self, "history_")
        return self._trainer.policy

    def fit(self, data, y=None, *, user=None, item=None, weight=None, time=None):
        """Learn from events: a frame, a mapping of columns or the path of a file, with the columns
        named `user`, `item` and, if there are any, `weight` and `time`; or a sparse matrix of users
        x items, whose values are weights."""
        self._check()
        before = vars(self).copy()
        try:
            return self._fit(data, (user, item, weight, time))
        except BaseException:  # data that is refused, or that no vectors fit: as if not told
            vars(self).clear()
            vars(self).update(before)
            raise

    def _fit(self, data, names: tuple):
        self._ids, self._streams = [Ids(), Ids()], {}
        self._columns = {"user": names[0] or "user", "item": names[1] or "item"}
        self._histories = Histories(self._ids[0])
        choices = self._observed_choices(data, names)
        seed, checkpoint = self._seeded()
        near = open_engine(self.device, self.n_jobs, 1000.0 * len(choices))
        some = choices.gathered(tuning.MOST, seed)  # all of them, where they are here
        policy, epochs, self.measures_ = self._searched_for(some, near, seed, checkpoint)
        self._trainer = self._begin(choices.shape, policy, self.engine or near, seed)
        self._trainer.checkpoint = checkpoint
        self.history_, self._neighbours = self._trainer.history, None
        self._trainer.run(choices, epochs=epochs, callbacks=self.callbacks, verbose=self.verbose)
        if policy.neighbours:  # a part of the training's time
            clock = perf_counter()
            self._neighbours, self._regressed_on = self._regressed(some), len(choices)
            self._trainer.seconds += perf_counter() - clock
            self.history_.records[-1]["seconds"] = self._trainer.seconds
        self.n_features_in_ = choices.shape[1]
        best = self.measures_.get(policy.loss)
        if best and best[0] <= self.measures_["popularity"][0]:
            warn(
                f"held-out choices are ranked no better than by popularity: NDCG@20 {best[0]:.3f} "
                f"against {self.measures_['popularity'][0]:.3f}",
                RuntimeWarning,
            )
        return self

    def _observed_choices(self, data, names: tuple) -> AnyChoices:
        """What the data says, where the engine wants it. Files are read by a cluster's machines,
        and what users had comes from there into files that are mapped into memory."""
        if self.engine is not None and are_files(data):
            self._check_names(names)
            half_life = None if self.half_life is None else seconds(self.half_life)
            found = self.engine.open_events(data, names, half_life, _HEAVIEST)
            for ids, known, what in zip(self._ids or (), found.ids, self._sides, strict=True):
                ids.add(known, what)
            self._unit = found.unit
            start, items, weights = found.histories()
            self._histories.take(start, items, weights)
            return found
        choices = self._choices(self._read(data, *names))
        self._histories.add(choices.users, choices.items, choices.weights)
        return choices if self.engine is None else self.engine.held(choices)

    def _searched_for(
        self, some: Choices, near: Engine, seed: int, checkpoint: Checkpoint | None
    ) -> tuning.Found:
        """Settings found on this machine, or by the run that a checkpoint goes on with."""
        if checkpoint and checkpoint.own:
            own = checkpoint.own
            measures = {name: tuple(pair) for name, pair in own["measures"].items()}
            return tuning.Found(ChoicePolicy(**own["policy"]), own["epochs"], measures)

        def begin(policy: ChoicePolicy, engine: Engine) -> ChoiceTrainer:
            return self._begin(some.shape, policy, engine, seed)

        cap = _EPOCHS if self.epochs == "auto" else int(self.epochs)
        found = tuning.Tuner(some, begin, near, self._fixed(), seed).find(self.loss, cap)
        if checkpoint:
            told = {"epochs": found.epochs, "measures": found.measures}
            checkpoint.own = told | {"policy": asdict(found.policy)}
        return found

    def _regressed(self, choices: Choices) -> Neighbours:
        """What items say for others."""
        policy = self._trainer.policy
        return Neighbours.of(choices, policy.neighbours, policy.local_ridge).times(policy.blend)

    def _begin(self, shape, policy: ChoicePolicy, engine: Engine, seed: int) -> ChoiceTrainer:
        """A trainer with fresh factors."""
        scale = float(self.rank) ** -0.5
        how = {"seed": seed, "scale": (scale, scale), "dtype": "float32"}
        factors = engine.start_choices(shape, int(self.rank), **how)
        return ChoiceTrainer(factors, policy, engine, np.random.default_rng([seed, 2]))

    def _check(self) -> None:
        """The settings, or one line that says which is no good."""
        super()._check()
        if self.half_life is not None:
            seconds(self.half_life)

    def _fixed(self) -> dict:
        """What is not to be searched for."""
        given = {
            "tau": self.temperature, "c": self.contrast, "ridge": self.ridge,
            "alpha0": self.alpha0, "negatives": self.negatives, "scaled": self.scaled,
        }  # fmt: skip
        if self.product != "auto":
            given["cosine"] = self.product == "cosine"
        given["neighbours"] = self.neighbours
        if self.neighbours == "auto":
            given["neighbours"] = 2 * self.rank if self.loss == "softmax" else 0
        return {name: value for name, value in given.items() if not isinstance(value, str)}

    def _read(self, data, user, item, weight, time) -> Interactions:
        named = sp.issparse(data) or isinstance(data, str)
        self._check_names((user, item, weight, time), named)
        return read(data, (user, item, weight, time), weights=True)

    def _check_names(self, names: tuple, named: bool = False) -> None:
        """Args: named, whether the columns are known without their names."""
        if not named and (names[0] is None or names[1] is None):
            raise ValueError(UNNAMED)
        if self.half_life is not None and names[3] is None:
            raise ValueError("half_life needs the column of times: time=...")

    def _choices(self, told: Interactions, *, fresh: bool = True) -> Choices:
        """Each pair of a user and an item once, its weight in units of the mean, and remembered."""
        assert self._ids is not None
        users = self._ids[0].add(told.users, "user")
        items = self._ids[1].add(told.items, "item")
        shape, weights = (len(self._ids[0]), len(self._ids[1])), told.values
        choices = Choices.of(users, items, weights, shape=shape)
        if self.half_life is not None and told.times is not None:
            ages = (told.times.max() - told.times) / seconds(self.half_life)
            choices = replace(choices, weights=choices.weights * np.exp2(-ages, dtype=np.float32))
        choices = choices.merged()
        if weights is None and self.half_life is None:  # who comes back has chosen once
            choices = replace(choices, weights=np.ones(len(choices), np.float32))
        self._unit = float(choices.weights.mean()) if fresh else self._unit
        scaled = np.clip(choices.weights / self._unit, 1 / _HEAVIEST**2, _HEAVIEST)
        return replace(choices, weights=scaled.astype(np.float32))

    def partial_fit(self, data, y=None, *, user=None, item=None, weight=None, time=None):
        """Learn from new events; users and items not seen before are added."""
        fresh = not hasattr(self, "history_")
        if fresh:
            self._check()
        told = self._read(data, user, item, weight, time)
        with self._unless_refused():
            if fresh:
                self._ids, self._streams = [Ids(), Ids()], {}
                self._histories = Histories(self._ids[0])
            choices = self._choices(told, fresh=fresh)
        if fresh:  # a stream from nothing learns by the squared loss, which needs no negatives
            seed = self._drawn()
            engine = open_engine(self.device, self.n_jobs, 0)
            policy = replace(ChoicePolicy("squared"), **self._fixed() | {"neighbours": 0})
            self._trainer = self._begin(choices.shape, policy, engine, seed)
            self.history_, self.measures_ = self._trainer.history, {}
            self._neighbours = None
            self._columns = {"user": user or "user", "item": item or "item"}
            self.n_features_in_ = choices.shape[1]
        elif self.engine is not None:  # what comes after a fit on a cluster is learned here
            self.factors  # noqa: B018  (comes here from the workers)
            self._trainer.engine = open_engine(self.device, self.n_jobs, 0)
        self._histories.add(choices.users, choices.items, choices.weights)
        self._trainer.grow(choices.shape)
        users = np.unique(choices.users)
        self._cached = None
        if self.policy_.loss == "squared":  # one step an event; the softmax sees all of theirs
            self._trainer.follow(choices)
            self._fold_in_again(users)
        else:
            self._trainer.follow(choices, self._all_of(users))
        self._cached = None
        if self._neighbours is not None:
            self._regress_again()
        return self

    def _regress_again(self) -> None:
        """Find neighbours anew, new items' among them, once there is enough to find them in: so
        seldom that a stream of small batches does not pay for it."""
        table = self._histories.table
        if table.nnz < _AGAIN * self._regressed_on:
            return
        users = np.repeat(np.arange(len(table.indptr) - 1, dtype=np.int32), np.diff(table.indptr))
        items, weights = table.indices.astype(np.int32, copy=False), np.clip(table.data, 0, 1)
        choices = Choices(users, items, weights, self.factors.shape)
        if self.engine is not None:  # as in `fit`
            choices = tuning.some_users(choices, tuning.MOST, self.factors.seed)
        self._neighbours, self._regressed_on = self._regressed(choices), table.nnz

    def _all_of(self, users: np.ndarray) -> Choices:
        """All choices of some users."""
        start, items, weights = self._histories.of(users)
        who = np.repeat(users, np.diff(start)).astype(np.int32)
        return Choices(who, items.astype(np.int32), weights, self.factors.shape)

    def _fold_in_again(self, users: np.ndarray) -> None:
        """Users whom new events have touched get the vectors that all of their choices call for."""
        trainer, (start, items, weights) = self._trainer, self._histories.of(users)
        trainer.factors.X[users] = self._folded(start, items, weights)

    def recommend(
        self, user=None, k: int = 10, *, items=None, candidates=None, exclude=None,
        filter_seen: bool = True,
    ):  # fmt: skip
        """The k items that suit a user best, and their scores; of a list of users, arrays with a
        row for each.

        items : instead of a user, what somebody likes who is not known: a list, or lists.
        candidates, exclude : items that alone may be answers, and that must not be.
        filter_seen : leave out what the user had. Rows with too few others end in -1 (or None) with
            a score of -inf.
        """
        check_is_fitted(self, "history_")
        if (user is None) == (items is None):
            raise ValueError("recommend needs a user or a list of items, and not both")
        if user is not None:
            single, (vectors, had) = np.ndim(user) == 0, self._known(np.atleast_1d(user))
        else:
            single = not any(np.ndim(part) for part in _listed(items))
            vectors, had = self._unknown([items] if single else items)
        among, search, seen, places = None, self._searched(), had[:2], None
        if candidates is not None or exclude is not None:
            among = np.arange(len(self.item_ids))
            if candidates is not None:
                among = np.unique(self.item_ids.rows(_listed(candidates), "item"))
            if exclude is not None:
                among = np.setdiff1d(among, self.item_ids.rows(_listed(exclude), "item"))
            if len(among) == 0:
                raise ValueError("no items to recommend: the list of candidates is empty")
            search = Search(self._vectors()[1][among])
            places = np.full(len(self.item_ids), -1)
            places[among] = np.arange(len(among))
            seen = _renumbered(seen, places)
        if not isinstance(k, int | np.integer) or not 1 <= k <= len(search.table):
            raise ValueError(
                f"k={k!r} is not a whole number from 1 to the {len(search.table)} items"
            )
        rows, scores = self._best(
            search, vectors, int(k), had, seen if filter_seen else None, places
        )
        rows = rows if among is None else np.where(rows >= 0, among[rows], -1)
        return self._named(rows, scores, single)

    def recommend_to_rows(
        self, users: np.ndarray, k: int, filter_seen: bool = True, sides: tuple | None = None
    ) -> Lists:
        """The same for users by row number, without checks: rows of items (users, k), -1 with a
        score of -inf where none are left, and scores. `sides` are vectors of all users and items in
        the place of those of now."""
        vectors, had = self._known_rows(users)
        if sides is not None:
            vectors = sides[0][users]
        search = self._searched() if sides is None else Search(sides[1])
        return self._best(search, vectors, k, had, had[:2] if filter_seen else None)

    def _best(self, search: Search, vectors, k: int, had, seen, places=None) -> Lists:
        """The best k by the vectors, and by what neighbours say."""
        if self._neighbours is None:
            return search.top_k(vectors, k, seen)
        return self._neighbours.top_k(search, vectors, k, had, seen, places)

    def similar(self, item, k: int = 10):
        """The k items most similar to an item by the angle between them, and the cosines; of a list
        of items, arrays with a row for each."""
        check_is_fitted(self, "history_")
        rows = self.item_ids.rows(np.atleast_1d(item), "item")
        if not isinstance(k, int | np.integer) or not 1 <= k <= len(self.item_ids):
            raise ValueError(f"k={k!r} is not a whole number from 1 to the items")
        table = unit(self._vectors()[1])
        found = top_k(table[rows], table, int(k), (np.arange(len(rows) + 1), rows))
        return self._named(*found, np.ndim(item) == 0)

    def explain(self, user=None, item=None, *, items=None) -> tuple[np.ndarray, np.ndarray]:
        """Which of a user's items, or of the `items` that somebody likes, speak for an item, and
        how much: shares that add up to 1, largest first."""
        check_is_fitted(self, "history_")
        if (user is None) == (items is None):
            raise ValueError("explain needs a user or a list of items, and not both")
        if items is None:
            _, chosen, weights = self._histories.of(self.user_ids.rows([user], "user"))
        else:
            chosen = np.unique(self.item_ids.rows(_listed(items), "item"))
            weights = np.ones(len(chosen), np.float32)
        wanted = int(self.item_ids.rows([item], "item")[0])
        others = chosen != wanted  # an item does not speak for itself
        chosen, weights = chosen[others], weights[others]
        if not len(chosen):
            whose = "the list" if user is None else f"user {user!r}"
            raise ValueError(f"{whose}: no choice but {item!r} is known")
        shares = fold_in.shares(self.policy_, self._vectors()[1], chosen, weights, wanted)
        if self._neighbours is not None:
            vector = self._folded(np.array([0, len(chosen)]), chosen, weights)[0]
            score = max(float(vector @ self._vectors()[1][wanted]), 0.0)
            said = self._neighbours.speaking_for(wanted, chosen) * np.clip(weights, 0, 1)
            whole = score * shares + said
            shares = whole / whole.sum() if whole.sum() > 0 else shares
        order = np.argsort(-shares)
        return self.item_ids.names()[chosen[order]], shares[order]

    def frozen(self) -> Recommender:
        still = cast(Recommender, super().frozen())
        still._histories, still._cached = self._histories.frozen(), None
        return still

    def evaluate(
        self, table, *, user: str | None = None, item: str | None = None, k: int = 20
    ) -> dict[str, float]:
        """How well the items of these events are found among all that their users have not had:
        NDCG@k and recall@k, means over users, and the share of all items that are shown to anybody.
        Columns that are not named are called as in training. Events of a user or an item that is
        not known are left out, and counted; so are those that were trained on."""
        check_is_fitted(self, "history_")
        names = user or self._columns["user"], item or self._columns["item"]
        who, what = (np.asarray(column) for column in columns_of(table, names))
        users, items = self.user_ids.find(who), self.item_ids.find(what)
        known = (users >= 0) & (items >= 0)
        shape = len(self.user_ids), len(self.item_ids)
        test = sp.csr_array((np.ones(known.sum()), (users[known], items[known])), shape=shape)
        seen = self._histories.table.copy()
        seen.resize(shape)
        test = pattern(test)
        test = (test - test.multiply(pattern(seen))).tocsr()
        test.eliminate_zeros()
        asked = np.flatnonzero(np.diff(test.indptr))
        if not len(asked):
            raise ValueError("nothing to evaluate: no event of a known user with a new, known item")
        found, _ = self.recommend_to_rows(asked, min(k, shape[1]))
        ndcg, recall = top_measures(found, test[asked])
        return {
            "users": len(asked),
            f"ndcg@{k}": float(ndcg.mean()),
            f"recall@{k}": float(recall.mean()),
            f"coverage@{k}": len(np.unique(found[found >= 0])) / shape[1],
            "left_out": int(len(who) - test.nnz),
        }

    @property
    def user_ids(self) -> Ids:
        """Names of the users."""
        assert self._ids is not None
        return self._ids[0]

    @property
    def item_ids(self) -> Ids:
        """Names of the items."""
        assert self._ids is not None
        return self._ids[1]

    @property
    def histories(self) -> Histories:
        """What each user chose."""
        return self._histories

    def roles(self, columns: Mapping[str, str | None]) -> tuple[list[Role], int]:
        largest = LARGEST[self.dtype]
        return [Role("user", 0), Role("item", 1), Role("weight", None, 1 / largest, largest)], 2

    def _vectors(self) -> tuple[np.ndarray, np.ndarray]:
        """Of users and items as they are now."""
        state = self._trainer.samples, *self.factors.shape
        if self._cached is None or self._cached[0] != state:
            users, items = self._trainer.vectors()
            self._cached = state, (users, items), Search(items)
        return self._cached[1]

    def _searched(self) -> Search:
        self._vectors()
        assert self._cached is not None
        return self._cached[2]

    def _known(self, users: np.ndarray) -> tuple[np.ndarray, tuple]:
        return self._known_rows(self.user_ids.rows(users, "user"))

    def _known_rows(self, rows: np.ndarray) -> tuple[np.ndarray, tuple]:
        """Vectors of users by number, and what they had: where each one's items begin, the items
        and their weights."""
        return self._vectors()[0][rows], self._histories.of(rows)

    def _unknown(self, lists) -> tuple[np.ndarray, tuple]:
        """Vectors of users who had these items."""
        start = np.concatenate([[0], np.cumsum([len(part) for part in lists])])
        if not len(lists) or (np.diff(start) == 0).any():
            raise ValueError("a list of items to recommend by is empty")
        items = np.concatenate([self.item_ids.rows(_listed(part), "item") for part in lists])
        ones = np.ones(len(items))
        return self._folded(start, items, ones), (start, items, ones)

    def _folded(self, start, items, weights) -> np.ndarray:
        table, pool = self._vectors()[1], self._trainer.pool
        return fold_in.vectors(self.policy_, table, pool, start, items, weights)

    def _trained(self, factors: Factors, policy, engine: Engine) -> ChoiceTrainer:
        rng = np.random.default_rng([factors.seed, 2])
        return ChoiceTrainer(factors, policy, engine, rng)

    def _policy(self) -> ChoicePolicy:
        return ChoicePolicy(self.loss)

    def _facts(self) -> dict:
        told = {"measures": self.measures_, "columns": self._columns, "unit": self._unit}
        return told | {"regressed": self._regressed_on}

    def _memory(self) -> dict[str, np.ndarray]:
        held = {f"weights{n}": weights for n, weights in enumerate(self._trainer.seen)}
        if self._neighbours is not None:
            held |= {f"near_{name}": getattr(self._neighbours, name) for name in _NEAR}
        return held | self._histories.arrays()

    def _restore(self, arrays: dict[str, np.ndarray], facts: dict):
        super()._restore(arrays, facts)
        self._histories = Histories(self.user_ids)
        self._histories.restore(arrays)
        own = facts["own"]
        self.measures_, self._columns, self._unit = own["measures"], own["columns"], own["unit"]
        self._trainer.seen = [arrays["weights0"], arrays["weights1"]]
        if "near_start" in arrays:
            near = {name: arrays[f"near_{name}"] for name in _NEAR}
            self._neighbours = Neighbours(**near, blend=self.policy_.blend)
            self._regressed_on = own.get("regressed", 0)
        return self


def seconds(half_life: str | float) -> float:
    """A number as it is, or a time with its unit in seconds.

    >>> seconds("30d"), seconds("1.5 h"), seconds(7)
    (2592000.0, 5400.0, 7.0)
    """
    if isinstance(half_life, int | float) and not isinstance(half_life, bool) and half_life > 0:
        return float(half_life)
    found = re.fullmatch(r"\s*(\d+\.?\d*)\s*([a-z]+)\s*", str(half_life))
    if not found or found[2] not in _SECONDS or not float(found[1]):
        units = ", ".join(_SECONDS)
        raise ValueError(f"half_life={half_life!r} is not a time above 0 in {units}, as in '30d'")
    return float(found[1]) * _SECONDS[found[2]]


def _listed(items) -> np.ndarray | list:
    if isinstance(items, str) or not hasattr(items, "__len__"):
        raise ValueError(f"{items!r} is not a list of items")
    return items


def _renumbered(lists: Lists, places: np.ndarray) -> Lists:
    """Lists of items as their places among some of them, -1 for the others, which go."""
    start, items = lists
    kept = places[items] >= 0
    ends = np.concatenate([[0], np.cumsum(kept)])[start]
    return ends, places[items][kept]
