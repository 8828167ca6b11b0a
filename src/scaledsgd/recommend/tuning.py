"""Settings of a recommender, found on a held-out part of each user's choices.

A few short runs tell which weight unobserved entries should have and how strong the ridge should
be; from the best of these, short runs of the softmax tell whether it ranks better, with cosines or
with products, at which temperature; and how much more neighbours of items should say. All is judged
by NDCG@20 of what was held out.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import scipy.sparse as sp
from threadpoolctl import threadpool_limits

from ..core.choices import Choices
from ..core.linalg import lengths
from ..engines.base import Engine
from ..training.choice_trainer import ChoicePolicy, ChoiceTrainer
from ..training.history import DivergenceError
from .evaluation import top_measures
from .neighbours import Neighbours
from .search import top_k

_K = 20
_SHARE = 0.1  # of a user's choices are held out, one at least, if she has three
_USERS = 3000  # asked at most: the error of a mean NDCG is then below .005
# Up to so many choices so many hold-outs: more make up for the noise of few.
_FOLDS = ((20_000, 3), (50_000, 2), (np.inf, 1))
MOST = 1_000_000  # choices that a search looks at: those of some users, where there are more
_SQUARED_EPOCHS = 5
_SHORT, _LONG, _LONGEST = 6, 12, 24  # epochs of a trial, of one of the best, and of the last
_NEGATIVES = 256  # of a trial: they cost a quarter of the usual ones, and order settings alike
# Of the best NDCG: what is tried again for longer, with so many cosines that are as good; and below
# which cosines or products are given up at once, if they are behind by so many standard errors.
_CLOSE, _LONGER, _FAR, _SURE = 0.97, 2, 0.9, 2.0
# Share of NDCG that twice the epochs must gain, and that makes twice as many again worth a trust.
_GAINED, _TRUSTED = 0.015, 0.02
# Of the best NDCG: what is as good. Of ridges the strongest, which overfits least.
_ALIKE = 0.99
# Times the squared loss's NDCG that another loss has to reach: the best of a dozen runs with seven
# blends each is better by chance alone, and takes a hundred times as long to train.
_AHEAD = 1.005
_DOT_TAU = 0.2  # temperature and ridge of a dot product are one number, but for the start

# What is tried, in steps from the middle outward, one axis at a time.
_GRID = {
    "alpha0": (0.01, 0.03, 0.1, 0.3, 1.0, 3.0),
    "ridge": (0.5, 1.0, 2.0, 4.0, 8.0, 16.0),
    "tau": (0.05, 0.07, 0.1, 0.14, 0.2, 0.28, 0.4),
    "c": (0.9, 1.05, 1.2, 1.35),
    "dot_ridge": (0.003, 0.01, 0.03, 0.1, 0.25, 0.5, 1.0, 2.0, 4.0),
    "local_ridge": (3.0, 10.0, 30.0, 100.0, 300.0),
}
# How much neighbours say beside the vectors: tried of every run, since that costs next to nothing.
# Vectors that are trained for longer than any that were tried need them less: on seven sets of
# choices, from 100 to 41,000 items, 0.5 to 1 were best once training was over.
_BLENDS, _LOUDEST = (0.0, 0.3, 0.55, 1.0, 1.7, 3.0, 10.0), 1.0


class Measures(NamedTuple):
    """NDCG@20 and recall@20 of each user who was asked."""

    ndcg: np.ndarray
    recall: np.ndarray

    def mean(self) -> tuple[float, float]:
        return float(self.ndcg.mean()), float(self.recall.mean())


class Found(NamedTuple):
    """What a search found."""

    policy: ChoicePolicy
    epochs: int  # of the softmax
    measures: dict[str, tuple[float, float]]  # NDCG@20 and recall@20 of held-out choices


class Holdout:
    """A split of choices, and how well vectors rank what is held out.

    >>> choices = Choices.of(np.repeat(np.arange(8), 4), np.tile(np.arange(4), 8), shape=(8, 9))
    >>> split = Holdout(choices, seed=0)
    >>> len(split.kept), len(split.held)
    (24, 8)
    """

    def __init__(self, choices: Choices, seed: int):
        rng = np.random.default_rng([seed, 7])
        count = np.bincount(choices.users, minlength=choices.shape[0])
        asked = np.zeros(len(count), bool)
        asked[rng.permutation(np.flatnonzero(count >= 3))[:_USERS]] = True
        order = np.lexsort((rng.random(len(choices)), choices.users))
        place = np.empty(len(choices), np.int64)
        place[order] = np.arange(len(choices)) - (np.cumsum(count) - count)[choices.users[order]]
        share = np.maximum(1, np.round(_SHARE * count))
        held = asked[choices.users] & (place < share[choices.users])
        self.kept, self.held = choices[~held], choices[held]
        self.users = np.unique(self.held.users)
        self._seen, self._test = (_rows(part, self.users) for part in (self.kept, self.held))
        self.local: Neighbours | None = None  # of the items, among what is kept

    def measures(self, users: np.ndarray, items: np.ndarray, blended: bool) -> list[Measures]:
        """For vectors of all users and items, alone and, if asked for and if there are neighbours,
        for each of the blends with them; zeros for those of a run that has blown up."""
        local = self.local if blended else None
        blends = _BLENDS[:1] if local is None else _BLENDS
        if not all(np.isfinite(lengths(side)).all() for side in (users, items)):
            return [Measures(*np.zeros((2, len(self.users))))] * len(blends)
        queries, seen = users[self.users], (self._seen.indptr, self._seen.indices)
        lists, told = [top_k(queries, items, _K, seen, copied=False)], []
        if local is not None:
            had = (*seen, self._seen.data)
            lists += local.blended(_BLENDS[1:], lists[0], items, queries, had, seen)
        items_of = [found for found, _ in lists]
        del lists  # the scores add to the peak of a fit's memory
        for found in items_of:
            ndcg, recall = top_measures(found, self._test)
            told.append(Measures(ndcg.astype(np.float32), recall.astype(np.float32)))
        return told

    def popularity(self) -> tuple[float, float]:
        """NDCG@20 and recall@20 of the items that most have chosen."""
        counts = np.bincount(self.kept.items, minlength=self.kept.shape[1])[:, None]
        ones = np.ones((self.kept.shape[0], 1), np.float32)
        found, _ = top_k(ones[self.users], counts.astype(np.float32), _K,
                         (self._seen.indptr, self._seen.indices))  # fmt: skip
        return Measures(*top_measures(found, self._test)).mean()


def _rows(choices: Choices, users: np.ndarray) -> sp.csr_array:
    places = choices.users, choices.items
    table = sp.csr_array((choices.weights, places), shape=choices.shape)
    return table[users]


def some_users(choices: Choices, most: int, seed: int) -> Choices:
    """The choices of users drawn at random, about `most` of them, or all.

    >>> choices = Choices.of(np.repeat(np.arange(50), 4), np.tile(np.arange(4), 50), shape=(50, 4))
    >>> len(some_users(choices, 40, seed=0)), len(some_users(choices, 500, seed=0))
    (40, 200)
    """
    if len(choices) <= most:
        return choices
    count = np.bincount(choices.users, minlength=choices.shape[0])
    order = np.random.default_rng([seed, 8]).permutation(len(count))
    kept = np.zeros(len(count), bool)
    kept[order[np.cumsum(count[order]) <= most]] = True
    return choices[kept[choices.users]]


def climb(value: Callable[[tuple], float], at: tuple, axes: Sequence[Sequence], trials: int):
    """The best point of a grid that steps along one axis at a time reach, and its value.

    >>> climb(lambda at: -abs(at[0] - 4), (1,), [(1, 2, 3, 4, 5)], trials=9)
    ((4,), 0)
    """
    known = {at: value(at)}
    moved = True
    while moved and len(known) <= trials:
        moved = False
        for axis, grid in enumerate(axes):
            for step in (1, -1):
                place = grid.index(at[axis]) + step
                while 0 <= place < len(grid) and len(known) <= trials:
                    new = (*at[:axis], grid[place], *at[axis + 1 :])
                    if new not in known:
                        known[new] = value(new)
                    if known[new] <= known[at]:
                        break
                    at, moved, place = new, True, place + step
    return at, known[at]


class Tuner:
    """A search for settings. `fixed` are those that the user has chosen."""

    def __init__(
        self, choices: Choices, begin: Callable[[ChoicePolicy, Engine], ChoiceTrainer],
        engine: Engine, fixed: dict, seed: int,
    ):  # fmt: skip
        choices = some_users(choices, MOST, seed)
        folds = next(count for most, count in _FOLDS if len(choices) <= most)
        self.holdouts = [Holdout(choices, seed + k) for k in range(folds)]
        self.begin, self.fixed = begin, fixed
        self.engines = engine.divided(folds)
        self._known: dict[tuple, list[Measures]] = {}  # of each run
        self.warm: list[ChoiceTrainer] = []  # one a hold-out, from which the softmax begins

    def find(self, loss: str, epochs: int) -> Found:
        """The settings that rank held-out choices best, with at most so many epochs of the
        softmax."""
        if not len(self.holdouts[0].held):  # nobody has three choices: nothing to judge by
            return Found(self._policy(loss="squared"), epochs, {})
        policy, base = self._squared()
        policy, base = self._with_neighbours(policy, base)
        best, at = _best(base)
        told = {"popularity": self.holdouts[0].popularity(), "squared": best.mean()}
        if loss != "squared":
            changes, length, run = self._length(self._products(loss), epochs)
            values, blend = _best(run)
            told[loss] = values.mean()
            if values.ndcg.mean() > _AHEAD * best.ndcg.mean():
                policy, at = replace(policy, **(changes | self._given)), blend
                epochs = length
                at = min(at, _LOUDEST) if length > _LONGEST else at
        count = self.fixed.get("neighbours", 0) if at else 0
        return Found(replace(policy, neighbours=count, blend=at), epochs, told)

    def _with_neighbours(self, policy: ChoicePolicy, base: list[Measures]):
        """The ridge of the regressions on neighbours with which the vectors of the squared loss
        rank best. Returns the policy and what it reaches, by blends."""
        count, tried = self.fixed.get("neighbours", 0), {}

        def regress(ridge: float) -> None:
            for split, find in zip(self.holdouts, finders, strict=True):
                split.local = None  # before there is another
                split.local = find(ridge)

        def value(at: tuple) -> float:
            regress(at[0])
            _, tried[at] = self._judged(lambda fold: self.warm[fold])
            return _best(tried[at])[0].ndcg.mean()

        if not count:
            return policy, base
        finders = [Neighbours.finder(split.kept, count) for split in self.holdouts]
        grid = _GRID["local_ridge"]
        at, _ = climb(value, (10.0,), [grid], trials=len(grid))
        regress(at[0])  # again: where tables are large, of others none is kept
        return replace(policy, local_ridge=at[0]), tried[at]

    def _squared(self) -> tuple[ChoicePolicy, list[Measures]]:
        """The weight of what was not chosen, and the ridge."""
        best = ChoicePolicy(), [Measures(*np.full((2, 1), -1.0))]

        def value(at: tuple) -> float:
            nonlocal best
            policy = self._policy(loss="squared", alpha0=at[0], ridge=at[1])

            def warmed(fold: int) -> ChoiceTrainer:
                trainer = self.begin(policy, self.engines[fold % len(self.engines)])
                with suppress(DivergenceError):  # ranks nothing
                    trainer.warm_up(self.holdouts[fold].kept, _SQUARED_EPOCHS)
                return trainer

            trainers, measures = self._judged(warmed)
            reached = measures[0].ndcg.mean()
            if reached > best[1][0].ndcg.mean():  # of the others nothing is kept
                best, self.warm = (policy, measures), trainers
            return reached

        self._climbed(value, {"alpha0": 0.1, "ridge": 2.0}, trials=10)
        return best

    def _products(self, loss: str) -> list[dict]:
        """Cosines or dot products, the temperature and c, or the ridge: short runs of many, and
        longer ones of the best, since cosines and a larger c take longer to get there. Returns the
        best, and what is as good."""

        def cosine(at: tuple) -> dict:
            return {"loss": loss, "cosine": True, "tau": at[0], "c": at[1]}

        def dot(at: tuple) -> dict:
            tau = 1.0 if loss == "bpr" else _DOT_TAU
            return {"loss": loss, "cosine": False, "tau": tau, "c": 1.0, "dot_ridge": at[0]}

        kinds = [(cosine, {"tau": 0.14, "c": 1.2}, 6), (dot, {"dot_ridge": 1.0}, 2)]
        if loss == "bpr":
            kinds = [(dot, {"dot_ridge": 0.03}, 4)]
        elif "cosine" in self.fixed:
            kinds = kinds[:1] if self.fixed["cosine"] else kinds[1:]
        begun = [self._run(kind(self._at(start)), _SHORT)[0] for kind, start, _ in kinds]
        best = max(begun, key=lambda one: one.ndcg.mean())
        tried: list[tuple[float, dict]] = []
        for one, (kind, start, trials) in zip(begun, kinds, strict=True):
            known: dict[tuple, float] = {}

            def value(at: tuple, kind=kind, known=known) -> float:
                known[at] = self._run(kind(at), _SHORT)[0].ndcg.mean()
                return known[at]

            if not _behind(one, best):
                self._climbed(value, start, trials)
            alike = [at for at in known if known[at] >= _ALIKE * max(known.values())]
            best_first = sorted(alike, key=lambda at: -known[at])[:_LONGER]
            chosen = [max(alike)] if kind is dot and alike else best_first
            tried.extend((known[at], kind(at)) for at in chosen)
        most = max(value for value, _ in tried)
        close = [changes for value, changes in tried if value >= _CLOSE * most]
        if len(close) == 1:
            return close
        reached = [self._run(changes, _LONG, blended=True)[0].ndcg.mean() for changes in close]
        order = np.argsort(reached)[::-1]
        return [close[n] for n in order if reached[n] >= _ALIKE * max(reached)]

    def _length(self, tied: list[dict], epochs: int) -> tuple[dict, int, list[Measures]]:
        """As many epochs as help: twice as many, as long as that is better by more than chance.
        Returns settings, those epochs, and what the longest of these runs reaches, by blends.

        Args: tied, settings that are as good as the first after fewer epochs. Where many help,
        the longest run tells them apart."""
        length, gain, changes = min(_SHORT, epochs), 0.0, tied[0]
        values = self._run(changes, length)
        while length < min(_LONGEST, epochs):
            twice = min(2 * length, epochs)
            longer = self._run(changes, twice, blended=True)
            more = longer[0].ndcg - values[0].ndcg
            gain = more.mean() / max(values[0].ndcg.mean(), 1e-12)
            if gain < _GAINED or more.mean() < more.std() / np.sqrt(len(more)):
                return changes, length, self._run(changes, length, blended=True)
            values, length = longer, twice
        for other in tied[1:]:
            rival = self._run(other, length, blended=True)
            if rival[0].ndcg.mean() > values[0].ndcg.mean():
                changes, values = other, rival
        # What helped much up to here is trusted once more.
        twice = min(2 * length, epochs) if gain >= _TRUSTED else length
        return changes, twice, self._run(changes, length, blended=True)

    def _run(self, changes: dict, epochs: int, blended: bool = False) -> list[Measures]:
        """What a run with these settings reaches, if asked for by blends; none is made twice for
        the same."""
        key = tuple(sorted(changes.items())), epochs, blended
        if (*key[:2], True) in self._known:
            key = *key[:2], True
        if key not in self._known:
            self._known[key] = self._descended(changes, epochs, blended)
        return self._known[key]

    def _descended(self, changes: dict, epochs: int, blended: bool) -> list[Measures]:
        policy = changes | self._given | {"negatives": _NEGATIVES}

        def descended(fold: int) -> ChoiceTrainer:
            trainer = self.warm[fold].copy(**policy)
            trainer.rng = np.random.default_rng(fold)  # settings alone make a difference
            with suppress(DivergenceError):
                trainer.descend(self.holdouts[fold].kept, epochs)
            return trainer

        return self._judged(descended, blended)[1]

    def _judged(
        self, trained: Callable[[int], ChoiceTrainer], blended: bool = True
    ) -> tuple[list, list[Measures]]:
        """A training for each hold-out, several at a time, and how well they rank, by blends.
        (Small ones run sooner side by side than each on all threads.)"""

        def judged(fold: int) -> tuple[ChoiceTrainer, list[Measures]]:
            trainer = trained(fold)
            return trainer, self.holdouts[fold].measures(*trainer.vectors(last=True), blended)

        folds = range(len(self.holdouts))
        if len(self.engines) == 1:
            found = list(map(judged, folds))
        else:  # what limits the threads of BLAS is one for all
            with threadpool_limits(1, "blas"), ThreadPoolExecutor(len(self.engines)) as pool:
                found = list(pool.map(judged, folds))
        trainers, told = zip(*found, strict=True)
        folds = zip(*told, strict=True)  # for each blend, those of the hold-outs
        first, *others = (Measures(*map(np.concatenate, zip(*one, strict=True))) for one in folds)
        # User by user only vectors alone are compared.
        return [*trainers], [first, *(Measures(*map(np.array, one.mean())) for one in others)]

    def _climbed(self, value: Callable, start: dict[str, float], trials: int) -> tuple:
        """The best of a grid around `start`, but for what is fixed."""
        axes = [(self.fixed[name],) if name in self.fixed else _GRID[name] for name in start]
        return climb(value, self._at(start), axes, trials)

    def _at(self, start: dict[str, float]) -> tuple:
        """Where a search begins: the usual values, but for what is fixed."""
        return tuple(self.fixed.get(name, usual) for name, usual in start.items())

    @property
    def _given(self) -> dict:
        """What is fixed, but for the number of neighbours, which is one at most."""
        return {name: value for name, value in self.fixed.items() if name != "neighbours"}

    def _policy(self, **changes) -> ChoicePolicy:
        return ChoicePolicy(**(changes | self._given | {"loss": changes["loss"]}))


def _best(measures: list[Measures]) -> tuple[Measures, float]:
    """Of measures by blends the best, and its blend."""
    at = int(np.argmax([one.ndcg.mean() for one in measures]))
    return measures[at], _BLENDS[at]


def _behind(one: Measures, best: Measures) -> bool:
    """Whether it ranks much worse, by more than chance."""
    less = best.ndcg - one.ndcg
    much = less.mean() > (1 - _FAR) * best.ndcg.mean()
    return bool(much and less.mean() > _SURE * less.std() / np.sqrt(len(less)))
