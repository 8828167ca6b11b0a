"""Settings of a recommender, found on a held-out part of each user's choices.

A few short runs tell which weight unobserved entries should have and how strong the ridge should
be; from the best of these, short runs of the softmax tell whether it ranks better, with cosines or
with products, at which temperature. All is judged by NDCG@20 of what was held out.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import scipy.sparse as sp

from ..core.choices import Choices
from ..training.choice_trainer import ChoicePolicy, ChoiceTrainer
from .evaluation import top_measures
from .search import top_k

_K = 20
_SHARE = 0.1  # of a user's choices are held out, one at least, if she has three
_USERS = 3000  # asked at most: the error of a mean NDCG is then below .005
_MANY, _HOLDOUTS = 20_000, 3  # choices up to which several hold-outs make up for their noise
_SHORT, _FEW = 6, 256  # epochs and negatives of a trial
_LONGEST = 24  # epochs of the longest trial
_TIE, _GAINED = 0.002, 0.01  # twice the epochs are taken if they lose less, doubled again if better
_SQUARED_EPOCHS = 5
_SURE = 0.25  # standard errors by which the softmax must beat the squared loss
_CLOSE = 0.99  # of the other product's NDCG: below it, its ridge is not looked for

# What is tried, in steps from the middle outward, one axis at a time.
_ALPHA0 = (0.01, 0.03, 0.1, 0.3, 1.0, 3.0)
_RIDGE = (0.5, 1.0, 2.0, 4.0, 8.0, 16.0)
_TAU = (0.05, 0.07, 0.1, 0.14, 0.2, 0.28, 0.4)
_C = (0.9, 1.05, 1.2, 1.35)
_DOT_RIDGE = (0.25, 0.5, 1.0, 2.0, 4.0)


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

    def measures(self, users: np.ndarray, items: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """NDCG@20 and recall@20 of each asked user, for vectors of all users and items."""
        found, _ = top_k(users[self.users], items, _K, (self._seen.indptr, self._seen.indices))
        return top_measures(found, self._test)

    def ndcg(self, trainer: ChoiceTrainer) -> np.ndarray:
        """NDCG@20 of each asked user, zeros for a run that has blown up."""
        users, items = trainer.vectors()
        if not (np.isfinite(users).all() and np.isfinite(items).all()):
            return np.zeros(len(self.users))
        return self.measures(users, items)[0]

    def popularity(self) -> tuple[float, float]:
        """NDCG@20 and recall@20 of the items that most have chosen."""
        counts = np.bincount(self.kept.items, minlength=self.kept.shape[1])[:, None]
        ones = np.ones((self.kept.shape[0], 1), np.float32)
        ndcg, recall = self.measures(ones, counts.astype(np.float32))
        return float(ndcg.mean()), float(recall.mean())


def _rows(choices: Choices, users: np.ndarray) -> sp.csr_array:
    ones = np.ones(len(choices), np.int8)
    table = sp.csr_array((ones, (choices.users, choices.items)), shape=choices.shape)
    return table[users]


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


def find(choices: Choices, begin: Callable[[ChoicePolicy], ChoiceTrainer], policy: ChoicePolicy,
         fixed: dict, epochs: int, seed: int) -> tuple[ChoicePolicy, int, dict]:  # fmt: skip
    """The policy that ranks held-out choices best, how many epochs of the softmax it wants, and
    what it and its rivals reach.

    begin : makes a trainer with fresh factors.
    fixed : settings that the user has chosen, which are not searched.
    epochs : of the softmax at most.
    """
    splits = 1 if len(choices) > _MANY else _HOLDOUTS
    holdouts = [Holdout(choices, seed + k) for k in range(splits)]
    if not len(holdouts[0].held):  # nobody has three choices: there is nothing to judge by
        return _with(policy, fixed, loss="squared"), epochs, {}
    warm: dict[tuple, tuple[np.ndarray, list[ChoiceTrainer]]] = {}

    def squared(at: tuple) -> float:
        trainers = []
        for holdout in holdouts:
            trainer = begin(_with(policy, fixed, loss="squared", alpha0=at[0], ridge=at[1]))
            trainer.warm_up(holdout.kept, _SQUARED_EPOCHS)
            trainers.append(trainer)
        warm[at] = _judged(holdouts, trainers), trainers
        return warm[at][0].mean()

    grid = [_axis(fixed, "alpha0", _ALPHA0), _axis(fixed, "ridge", _RIDGE)]
    at, _ = climb(squared, (_middle(grid[0], 0.1), _middle(grid[1], 2.0)), grid, trials=10)
    base, trainers = warm[at]
    found = _with(policy, fixed, alpha0=at[0], ridge=at[1])
    told = {"popularity": holdouts[0].popularity(), "squared": _measured(holdouts, trainers)}
    if policy.loss == "squared":
        return found, epochs, told
    last: list[ChoiceTrainer] = []

    def softmax(changes: dict, length: int = _SHORT) -> np.ndarray:
        last.clear()
        for holdout, trainer in zip(holdouts, trainers, strict=True):
            run = trainer.copy(**(changes | fixed | {"loss": "softmax", "negatives": _FEW}))
            run.descend(holdout.kept, length)
            last.append(run)
        return _judged(holdouts, last)

    tried = []
    if fixed.get("cosine", True):
        axes = [_axis(fixed, "tau", _TAU), _axis(fixed, "c", _C)]
        start = _middle(axes[0], 0.14), _middle(axes[1], 1.2)
        (tau, c), value = climb(
            lambda at: softmax({"cosine": True, "tau": at[0], "c": at[1]}).mean(), start, axes, 6
        )
        tried.append((value, {"cosine": True, "tau": tau, "c": c}))
    if not fixed.get("cosine", False):
        axes = [_axis(fixed, "dot_ridge", _DOT_RIDGE)]
        dot = {"cosine": False, "tau": 0.2, "c": 1.0}
        usual = _middle(axes[0], 1.0)
        value, trials = softmax(dot | {"dot_ridge": usual}).mean(), 3
        if not tried or value > _CLOSE * tried[0][0]:
            (usual,), value = climb(
                lambda at: softmax(dot | {"dot_ridge": at[0]}).mean(), (usual,), axes, trials
            )
        tried.append((value, dot | {"dot_ridge": usual}))
    changes = max(tried, key=lambda one: one[0])[1]
    values, length = softmax(changes), min(_SHORT, epochs)
    told["softmax"] = _measured(holdouts, last)
    for twice in (2 * _SHORT, 4 * _SHORT, epochs):  # as long as twice the epochs help
        if length >= epochs or twice > _LONGEST:
            length = min(epochs, 2 * length)
            break
        longer = softmax(changes, twice)
        gain = longer.mean() / values.mean() - 1
        if gain < -_TIE:
            break
        values, length = longer, min(twice, epochs)
        told["softmax"] = _measured(holdouts, last)
        if gain < _GAINED:
            break
    gain = values - base
    if gain.mean() > _SURE * gain.std() / np.sqrt(len(gain)):
        return _with(found, fixed, loss="softmax", **changes), length, told
    return _with(found, fixed, loss="squared"), length, told


def _with(policy: ChoicePolicy, fixed: dict, **changes) -> ChoicePolicy:
    return replace(policy, **(changes | fixed))


def _measured(holdouts: list[Holdout], trainers: list[ChoiceTrainer]) -> tuple[float, float]:
    """NDCG@20 and recall@20 over all hold-outs."""
    both = [h.measures(*t.vectors()) for h, t in zip(holdouts, trainers, strict=True)]
    ndcg, recall = (np.concatenate(part).mean() for part in zip(*both, strict=True))
    return float(ndcg), float(recall)


def _judged(holdouts: list[Holdout], trainers: list[ChoiceTrainer]) -> np.ndarray:
    return np.concatenate([h.ndcg(t) for h, t in zip(holdouts, trainers, strict=True)])


def _axis(fixed: dict, name: str, grid: Sequence) -> Sequence:
    return (fixed[name],) if name in fixed else grid


def _middle(grid: Sequence, usual: float) -> float:
    return usual if usual in grid else grid[0]
