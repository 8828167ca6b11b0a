"""Recommendations from who chose what."""

from __future__ import annotations

import re
import warnings
from collections.abc import Mapping
from dataclasses import replace
from typing import cast

import numpy as np
import scipy.sparse as sp
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted

from ..core.choices import Choices
from ..core.factors import Factors
from ..core.linalg import unit
from ..core.losses import LOSSES, Loss
from ..core.validation import LARGEST
from ..engines.base import Engine, open_engine
from ..io.ids import Ids
from ..io.schema import Either, Number
from ..io.tables import columns_of
from ..recommend import fold_in, tuning
from ..recommend.evaluation import pattern, top_measures
from ..recommend.histories import Histories
from ..recommend.interactions import UNNAMED, Interactions, read
from ..recommend.search import Lists, Search, top_k
from ..training.choice_trainer import ChoicePolicy, ChoiceTrainer
from .base import SETTINGS, Learner, Role

_EPOCHS = 40  # of the softmax at most, with epochs="auto"
_HEAVIEST = 32.0  # times the mean: a choice of more weight would throw its rows about
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
    half_life : of a choice's weight, such as "30d", or a number in the units of the time column.
    epochs : of the softmax at most; "auto" is 40. As many are run as help on held-out choices.
    scaled : step with the preconditioner P; False is plain SGD.
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
            "epochs": Either("auto", Number(1, 2**31 - 1, whole=True)),
            "loss": Either("softmax", "squared", "bpr"),
            "product": Either("auto", "cosine", "dot"),
        }
    )
    _trainer: ChoiceTrainer
    _histories: Histories
    _cached: tuple | None = None  # vectors, and a search among them, of one state
    _sides = ("user", "item")
    # Settings of the other estimators, which are facts about this one.
    dtype, engine, evaluations = "float32", None, 1

    def __init__(
        self, rank=64, *, loss="softmax", temperature: float | str = "auto",
        contrast: float | str = "auto", product="auto", ridge: float | str = "auto",
        alpha0: float | str = "auto", negatives=1024, half_life: str | float | None = None,
        epochs: int | str = "auto", scaled=True, n_jobs=1, device="cpu", random_state=None,
        callbacks=(), verbose=False,
    ):  # fmt: skip
        self.rank = rank
        self.loss = loss
        self.temperature = temperature
        self.contrast = contrast
        self.product = product
        self.ridge = ridge
        self.alpha0 = alpha0
        self.negatives = negatives
        self.half_life = half_life
        self.epochs = epochs
        self.scaled = scaled
        self.n_jobs = n_jobs
        self.device = device
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
        told = self._read(data, user, item, weight, time)
        with self._unless_refused():
            self._ids, self._streams = [Ids(), Ids()], {}
            self._histories = Histories(self._ids[0])
            choices = self._choices(told)
        self._histories.add(choices.users, choices.items, choices.weights)
        seed = int(check_random_state(self.random_state).randint(2**31 - 1))
        engine = open_engine(self.device, self.n_jobs, 1000.0 * len(choices))

        def begin(policy: ChoicePolicy) -> ChoiceTrainer:
            return self._begin(choices.shape, policy, engine, seed)

        cap = _EPOCHS if self.epochs == "auto" else int(self.epochs)
        search = tuning.Tuner(choices, begin, self._fixed(), seed).find
        policy, epochs, self.measures_ = search(self.loss, cap)
        del search  # and all that it holds
        self._trainer = begin(policy)
        self.history_ = self._trainer.history
        self._trainer.run(choices, epochs=epochs, callbacks=self.callbacks, verbose=self.verbose)
        self._columns = {"user": user or "user", "item": item or "item"}
        self.n_features_in_ = choices.shape[1]
        best = self.measures_.get(policy.loss)
        if best and best[0] <= self.measures_["popularity"][0]:
            warnings.warn(
                f"held-out choices are ranked no better than by popularity: NDCG@20 {best[0]:.3f} "
                f"against {self.measures_['popularity'][0]:.3f}",
                RuntimeWarning, stacklevel=3,
            )  # fmt: skip
        return self

    def _begin(self, shape, policy: ChoicePolicy, engine: Engine, seed: int) -> ChoiceTrainer:
        """A trainer with fresh factors."""
        scale = float(self.rank) ** -0.5
        how = {"seed": seed, "scale": (scale, scale), "dtype": "float32"}
        factors = Factors.start(shape, int(self.rank), **how)
        factors.X = engine.put(factors.X)
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
        return {name: value for name, value in given.items() if not isinstance(value, str)}

    def _read(self, data, user, item, weight, time) -> Interactions:
        if not sp.issparse(data) and not isinstance(data, str) and (user is None or item is None):
            raise ValueError(UNNAMED)
        if self.half_life is not None and time is None:
            raise ValueError("half_life needs the column of times: time=...")
        return read(data, (user, item, weight, time), weights=True)

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
            seed = int(check_random_state(self.random_state).randint(2**31 - 1))
            engine = open_engine(self.device, self.n_jobs, 0)
            policy = replace(ChoicePolicy("squared"), **self._fixed())
            self._trainer = self._begin(choices.shape, policy, engine, seed)
            self.history_, self.measures_ = self._trainer.history, {}
            self._columns = {"user": user or "user", "item": item or "item"}
            self.n_features_in_ = choices.shape[1]
        self._histories.add(choices.users, choices.items, choices.weights)
        self._trainer.grow(choices.shape)
        users = np.unique(choices.users)
        self._cached = None
        self._trainer.follow(choices, self._all_of(users))
        if self.policy_.loss == "squared":  # one step an event; the softmax has seen all of theirs
            self._fold_in_again(users)
        self._cached = None
        return self

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
            single, (vectors, seen) = np.ndim(user) == 0, self._known(np.atleast_1d(user))
        else:
            single = not any(np.ndim(part) for part in _listed(items))
            vectors, seen = self._unknown([items] if single else items)
        among = np.arange(len(self.item_ids))
        if candidates is not None:
            among = np.unique(self.item_ids.rows(_listed(candidates), "item"))
        if exclude is not None:
            among = np.setdiff1d(among, self.item_ids.rows(_listed(exclude), "item"))
        if len(among) == 0:
            raise ValueError("no items to recommend: the list of candidates is empty")
        if not isinstance(k, int | np.integer) or not 1 <= k <= len(among):
            raise ValueError(f"k={k!r} is not a whole number from 1 to the {len(among)} items")
        if len(among) < len(self.item_ids):
            search = Search(self._vectors()[1][among])
            seen = _renumbered(seen, among, len(self.item_ids))
        else:
            search = self._searched()
        rows, scores = search.top_k(vectors, int(k), seen if filter_seen else None)
        return self._named(np.where(rows >= 0, among[rows], -1), scores, single)

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
        vectors, exclude = self._known_rows(asked)
        found, _ = self._searched().top_k(vectors, min(k, shape[1]), exclude)
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

    def _known(self, users: np.ndarray) -> tuple[np.ndarray, Lists]:
        return self._known_rows(self.user_ids.rows(users, "user"))

    def _known_rows(self, rows: np.ndarray) -> tuple[np.ndarray, Lists]:
        """Vectors of users by number, and what they had."""
        start, items, _ = self._histories.of(rows)
        return self._vectors()[0][rows], (start, items)

    def _unknown(self, lists) -> tuple[np.ndarray, Lists]:
        """Vectors of users who had these items."""
        start = np.concatenate([[0], np.cumsum([len(part) for part in lists])])
        if not len(lists) or (np.diff(start) == 0).any():
            raise ValueError("a list of items to recommend by is empty")
        items = np.concatenate([self.item_ids.rows(_listed(part), "item") for part in lists])
        vectors = self._folded(start, items, np.ones(len(items)))
        return vectors, (start, items)

    def _folded(self, start, items, weights) -> np.ndarray:
        table, pool = self._vectors()[1], self._trainer.pool
        return fold_in.vectors(self.policy_, table, pool, start, items, weights)

    def _named(self, rows: np.ndarray, scores: np.ndarray, single: bool):
        found = rows >= 0
        names = self.item_ids.names()[rows]
        if single:
            return names[0][found[0]], scores[0][found[0]]
        names[~found] = -1 if names.dtype.kind == "i" else None
        return names, scores

    def _trained(self, factors: Factors, policy, engine: Engine) -> ChoiceTrainer:
        rng = np.random.default_rng([factors.seed, 2])
        return ChoiceTrainer(factors, policy, engine, rng)

    def _policy(self) -> ChoicePolicy:
        return ChoicePolicy(self.loss)

    def _facts(self) -> dict:
        return {"measures": self.measures_, "columns": self._columns, "unit": self._unit}

    def _memory(self) -> dict[str, np.ndarray]:
        seen = {f"weights{n}": weights for n, weights in enumerate(self._trainer.seen)}
        return seen | self._histories.arrays()

    def _restore(self, arrays: dict[str, np.ndarray], facts: dict):
        super()._restore(arrays, facts)
        self._histories = Histories(self.user_ids)
        self._histories.restore(arrays)
        own = facts["own"]
        self.measures_, self._columns, self._unit = own["measures"], own["columns"], own["unit"]
        self._trainer.seen = [arrays["weights0"], arrays["weights1"]]
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


def _renumbered(lists: Lists, among: np.ndarray, count: int) -> Lists:
    """Lists of items as places among some of them."""
    start, items = lists
    places = np.full(count, -1)
    places[among] = np.arange(len(among))
    kept = places[items] >= 0
    ends = np.concatenate([[0], np.cumsum(kept)])[start]
    return ends, places[items][kept]
