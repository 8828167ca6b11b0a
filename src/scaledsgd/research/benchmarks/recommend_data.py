"""Who chose what, for the benchmark: data sets in folders, a user's own file, or made-up choices,
split so that nothing leaks."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse as sp

from ...core.choices import Choices
from ...io.readers import InputError, open_file
from ...recommend.evaluation import pattern, top_measures
from ...recommend.interactions import Interactions, read
from ...recommend.search import Lists
from ..synthetic import ratings

NAMES = ("gowalla", "lastfm", "ml-latest-small")
K = 20
TEST, VALIDATION = 0.2, 0.1  # of each user's choices
_LIKED = 4  # stars

Table = Any  # a scipy.sparse.csr_array of ones, users x items; its stubs do not know its shape


class Data(NamedTuple):
    """What to learn from and what to find."""

    name: str
    train: Table
    test: Table

    @property
    def users(self) -> np.ndarray:
        """Those who have something to learn from and something to be found."""
        return np.flatnonzero(np.diff(self.train.indptr) * np.diff(self.test.indptr))

    def seen(self, users: np.ndarray) -> Lists:
        part = self.train[users]
        return part.indptr, part.indices

    def events(self) -> dict[str, np.ndarray]:
        """The training choices as a table."""
        users = np.repeat(np.arange(self.train.shape[0]), np.diff(self.train.indptr))
        return {"user": users, "item": self.train.indices.astype(np.int64)}

    def choices(self) -> Choices:
        return Choices.of(*self.events().values(), shape=self.train.shape)

    def held_out(self, seed: int) -> Data:
        """A validation part of the training choices, by which settings are chosen."""
        return Data(self.name, *split(self.train, VALIDATION, [seed, 1]))

    def measures(self, found: np.ndarray) -> dict[str, float]:
        """Of the first items for `users`: recall is the share of a user's test items among them,
        those that nobody chose in training included; NDCG has a gain of 1 for each; coverage is the
        share of the items of training that are shown to anybody."""
        ndcg, recall = top_measures(found, self.test[self.users])
        shown, known = np.unique(found[found >= 0]), np.unique(self.train.indices)
        return {
            f"recall@{K}": float(recall.mean()), f"ndcg@{K}": float(ndcg.mean()),
            "coverage": len(shown) / len(known),
        }  # fmt: skip

    def described(self) -> str:
        users, items = self.train.shape
        return (
            f"{self.name}: {users:,} users, {items:,} items, {self.train.nnz:,} choices to learn "
            f"from and {self.test.nnz:,} to find"
        )


def split(table: Table, share: float, seed) -> tuple[Table, Table]:
    """A share of each user's choices apart from the others, rounded up, but never all of them.

    >>> kept, held = split(sp.csr_array(np.ones((2, 10))), 0.2, seed=0)
    >>> np.diff(kept.indptr), np.diff(held.indptr), kept.multiply(held).nnz
    (array([8, 8]), array([2, 2]), 0)
    """
    count = np.diff(table.indptr)
    user = np.repeat(np.arange(len(count)), count)
    order = np.lexsort((np.random.default_rng(seed).random(len(user)), user))
    place = np.empty(len(user), np.int64)
    place[order] = np.arange(len(user)) - np.repeat(table.indptr[:-1], count)
    # 0.2 * 10 may be a little more than 2.
    held = place < np.minimum(np.ceil(share * count - 1e-9), count - 1)[user]
    return _table(user[~held], table.indices[~held], table.shape), _table(
        user[held], table.indices[held], table.shape
    )


def load(name: str, folder: Path, seed: int, user: str | None, item: str | None) -> Data:
    """A data set by its name in the folder, or by its path: a folder with train and test files or
    with MovieLens's ratings, or a file of events."""
    path = folder / name if (folder / name).exists() else Path(name)
    if not path.exists():
        raise InputError(f"{name}: no data set in {folder} and no file (try --quick without data)")
    if path.is_file():
        return _halved(path.stem, _read(path, user, item), seed)
    parts = [sorted(path.glob(f"{part}.*")) for part in ("train", "test")]
    if all(parts):
        return _numbered(path.name, *(_read(part[0], user, item) for part in parts))
    if (path / "ratings.csv").exists():
        told = read(path / "ratings.csv", ("userId", "movieId", "rating", None))
        assert told.values is not None
        return _halved(path.name, told.kept(told.values >= _LIKED), seed)
    raise InputError(f"{path}: neither train and test files nor a ratings.csv")


def present(folder: Path) -> list[str]:
    """Which of the usual data sets are there."""
    return [name for name in NAMES if (folder / name).is_dir()]


def made_up(seed: int, shape=(200, 300, 5_000)) -> Data:
    """Users whose few tastes and the popularity of items decide what they choose.

    >>> made_up(0).train.shape
    (200, 300)
    """
    return Data("made-up", *split(pattern(ratings(shape, seed)), TEST, [seed, 0]))


def _read(path: Path, user: str | None, item: str | None) -> Interactions:
    source = open_file(path)
    names = source.choose({"user": user, "item": item}, 2) if source.names else {}
    return read(path, (names.get("user"), names.get("item"), None, None))


def _halved(name: str, told: Interactions, seed: int) -> Data:
    whole = _numbered(name, told, told).train
    return Data(name, *split(whole, TEST, [seed, 0]))


def _numbered(name: str, train: Interactions, test: Interactions) -> Data:
    """Users and items by number, in the order of their names; test choices that are training
    choices are dropped."""
    users, items = (
        np.unique(np.concatenate(both), return_inverse=True)
        for both in ((train.users, test.users), (train.items, test.items))
    )
    shape, n = (len(users[0]), len(items[0])), len(train.users)
    seen = _table(users[1][:n], items[1][:n], shape)
    wanted = _table(users[1][n:], items[1][n:], shape)
    if train is not test:
        wanted = sp.csr_array(wanted - wanted.multiply(seen))
        wanted.eliminate_zeros()
    return Data(name, seen, wanted)


def _table(users, items, shape) -> Table:
    return pattern(sp.coo_array((np.ones(len(users)), (users, items)), shape=shape))
