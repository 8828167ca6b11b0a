"""What items say for others: the regression, and the best by vectors and neighbours together."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.optimize import nnls

from scaledsgd import Recommender, load
from scaledsgd.core.choices import Choices
from scaledsgd.estimators.recommender import _renumbered
from scaledsgd.io.model_file import ModelFileError
from scaledsgd.recommend import neighbours
from scaledsgd.recommend.neighbours import Neighbours
from scaledsgd.recommend.search import Search

NAMES = {"user": "user", "item": "item"}


def table(users=60, items=12, seed=0) -> np.ndarray:
    """Who chose what, with weights of at most 1."""
    rng = np.random.default_rng(seed)
    likes = rng.random((users, 3)) @ rng.random((3, items)) > rng.random((users, items))
    return (likes * rng.choice([0.5, 1.0], likes.shape)).astype(np.float32)


def choices_of(X: np.ndarray) -> Choices:
    return Choices.of(*np.nonzero(X), X[np.nonzero(X)], shape=X.shape)


def dense(found: Neighbours, items: int) -> np.ndarray:
    """W (items, items), from whom to whom."""
    W = np.zeros((items, items))
    W[np.repeat(np.arange(items), np.diff(found.start)), found.items] = found.weights
    return found.blend * W


def test_weights_are_those_of_least_squares_that_are_not_negative():
    X, ridge = table(), 7.0
    W = dense(Neighbours.of(choices_of(X), count=12, ridge=ridge), 12)
    for i in range(12):
        others = np.arange(12) != i
        A = np.vstack([X[:, others], np.sqrt(ridge) * np.eye(11)])
        right, _ = nnls(A, np.concatenate([X[:, i], np.zeros(11)]))
        np.testing.assert_allclose(W[others, i], right, atol=0.01)
        assert W[i, i] == 0  # an item does not speak for itself


def test_only_the_nearest_speak():
    X = table(300, 40)
    found = Neighbours.of(choices_of(X), count=5, ridge=1.0)
    sizes = (X**2).sum(axis=0)
    likeness = X.T @ X / (np.sqrt(np.outer(sizes, sizes)) + neighbours._SHRINK)
    np.fill_diagonal(likeness, 0)
    nearest = -np.sort(-likeness, axis=0)[4]
    W = dense(found, 40)
    assert (np.count_nonzero(W, axis=0) <= 5).all() and W.any()
    assert (likeness >= nearest - 1e-6)[W > 0].all()


def test_entries_that_are_not_kept_are_as_usual():
    # Independent choices: whatever is near is so by chance, and must not add up to much.
    rng = np.random.default_rng(1)
    X = (rng.random((400, 200)) < 0.4).astype(np.float32)
    W = dense(Neighbours.of(choices_of(X), count=8, ridge=1.0), 200)
    assert W.sum(axis=0).max() < 1.2


def test_of_too_many_pairs_those_of_some_users_are_looked_at(monkeypatch):
    X = table(400, 12)
    whole = dense(Neighbours.of(choices_of(X), count=12, ridge=0.1), 12)
    monkeypatch.setattr(neighbours, "_MOST", 0.5 * (np.count_nonzero(X, axis=1) ** 2).sum())
    half = dense(Neighbours.of(choices_of(X), count=12, ridge=0.1), 12)
    assert not np.array_equal(half, whole)
    assert np.corrcoef(half.ravel(), whole.ravel())[0, 1] > 0.8


@pytest.mark.parametrize("filtered", [False, True])
@pytest.mark.parametrize("among", [None, np.arange(3, 40, 2)])
def test_the_best_are_those_of_the_whole_sum(filtered, among):
    rng, X = np.random.default_rng(2), table(150, 40)
    found = Neighbours.of(choices_of(X), count=6, ridge=1.0).times(0.7)
    V, U = (rng.standard_normal((n, 4)).astype(np.float32) for n in (40, 150))
    scores = U @ V.T + X @ dense(found, 40)
    if filtered:
        scores[X > 0] = -np.inf
    start, items = np.concatenate([[0], np.cumsum((X > 0).sum(axis=1))]), np.nonzero(X)[1]
    places, rows = None, np.arange(40)
    if among is not None:
        rows, places = among, np.full(40, -1)
        places[among] = np.arange(len(among))
    seen = (start, items) if places is None else _renumbered((start, items), places)
    best, told = found.top_k(
        Search(V[rows]), U, 9, (start, items, X[X > 0]), seen if filtered else None, places
    )
    right = -np.sort(-scores[:, rows], axis=1)[:, :9]
    np.testing.assert_allclose(told, right, rtol=1e-5, atol=1e-6)
    held = best >= 0
    chosen = np.take_along_axis(scores[:, rows], np.where(held, best, 0), axis=1)
    np.testing.assert_allclose(chosen[held], told[held], rtol=1e-5, atol=1e-6)
    assert held.sum() == np.isfinite(right).sum()


def sequels(users=400, books=60, seed=0) -> dict[str, np.ndarray]:
    """Whoever reads the first part of a book reads the second: more pairs than directions."""
    rng = np.random.default_rng(seed)
    who, what = [], []
    for u in range(users):
        for book in rng.choice(books, 4, replace=False):
            who += [u, u]
            what += [f"{book}a", f"{book}b"]
    return {"user": np.array(who), "item": np.array(what)}


@pytest.fixture(scope="module")
def readers():
    return Recommender(rank=4, neighbours=8, epochs=2, random_state=0).fit(sequels(), **NAMES)


def test_neighbours_find_what_few_directions_cannot(readers):
    assert readers.policy_.neighbours == 8
    books = [f"{n}a" for n in range(60)]
    found = readers.recommend(items=[[book] for book in books], k=1)[0][:, 0]
    alone = Recommender(rank=4, neighbours=0, epochs=2, random_state=0).fit(sequels(), **NAMES)
    vectors = alone.recommend(items=[[book] for book in books], k=1)[0][:, 0]
    right = np.array([book[:-1] + "b" for book in books])
    assert (found == right).mean() > 0.95 > 0.5 > (vectors == right).mean()


def test_the_pair_explains_itself(readers):
    items, shares = readers.explain(items=["1a", "2a", "3a"], item="2b")
    assert items[0] == "2a" and shares[0] > 0.5 and shares.sum() == pytest.approx(1)


def test_a_model_comes_back_with_its_neighbours(readers, tmp_path):
    readers.save(tmp_path / "m.model")
    again = load(tmp_path / "m.model")
    for one, other in zip(readers.recommend([3, 7]), again.recommend([3, 7]), strict=True):
        np.testing.assert_array_equal(one, other)


def test_new_items_have_none_and_new_choices_speak_at_once(readers, tmp_path):
    readers.save(tmp_path / "m.model")
    model = load(tmp_path / "m.model")
    fresh = {"user": np.array([7000, 7000]), "item": np.array(["5a", "new"])}
    model.partial_fit(fresh, **NAMES)
    assert "5b" in model.recommend(7000, k=2)[0]
    assert "new" not in model.recommend(items=["5a"], k=5)[0]


@pytest.mark.parametrize("loss", ["softmax", "squared"])
def test_a_stream_finds_neighbours_anew_whenever_it_ends(loss, readers, tmp_path):
    """A twentieth of new choices, in pieces: a series that nobody has read before them."""
    readers.save(tmp_path / "m.model")
    one, two = (load(tmp_path / "m.model") for _ in range(2))
    one.policy_.loss = two.policy_.loss = loss
    counts = []
    for n in range(10):
        who = np.repeat(np.arange(9) + 9000 + 9 * n, 2)
        piece = {"user": who, "item": np.tile(["new a", "new b"], 9)}
        one.partial_fit(piece, **NAMES)
        counts.append(one._regressed_on)
        two.partial_fit(piece, **NAMES)
        two.save(tmp_path / "two.model")  # killed, and begun anew from its file
        two = load(tmp_path / "two.model")
    told = one.histories.table
    first = next(n for n in range(10) if counts[n] > 3200)
    assert counts == [3200] * first + [3200 + 18 * (first + 1)] * (10 - first) and first == 8
    held = one._neighbours, two._neighbours
    for name in ("start", "items", "weights"):
        np.testing.assert_array_equal(*(getattr(table, name) for table in held))
    assert one.recommend(items=["new a"], k=1)[0] == two.recommend(items=["new a"], k=1)[0]
    W = dense(one._neighbours, told.shape[1])
    a, b = one.item_ids.rows(["new a", "new b"], "item")
    assert W[a, b] > 0 and W[b, a] > 0


def test_ridges_of_one_finder_and_blends_of_one_pass_are_those_of_each(monkeypatch):
    X = table(100, 30)
    choices, vectors = choices_of(X), np.random.default_rng(1).random((130, 4), np.float32)
    start = np.concatenate([[0], np.cumsum((X > 0).sum(axis=1))])
    had = start, choices.items, choices.weights
    for small in (neighbours._SMALL, 0):
        monkeypatch.setattr(neighbours, "_SMALL", small)
        find = Neighbours.finder(choices, 6)
        for ridge in (3.0, 30.0, 3.0):
            found, right = find(ridge), Neighbours.of(choices, 6, ridge)
            np.testing.assert_array_equal(dense(found, 30), dense(right, 30))
    search, queries = Search(vectors[100:]), vectors[:100]
    best, before = search.top_k(queries, 5), search.top_k(queries, 5)
    lists = found.blended((0.3, 5.0), best, search.table, queries, had)
    np.testing.assert_array_equal(best, before)
    for blend, told in zip((0.3, 5.0), lists, strict=True):
        right = found.times(blend).top_k(search, queries, 5, had)
        np.testing.assert_array_equal(told[0], right[0])
        np.testing.assert_allclose(told[1], right[1], rtol=1e-6)
    assert (lists[0][0] != lists[1][0]).any()


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("items", lambda array: array + 10_000),
        ("weights", lambda array: -array),
        ("weights", lambda array: array * np.float32(np.nan)),
        ("start", lambda array: array[::-1].copy()),
        ("start", lambda array: np.concatenate([array, np.full(500, array[-1])])),
    ],
)
def test_a_forged_table_is_refused(readers, tmp_path, monkeypatch, name, change):
    held = {part: getattr(readers._neighbours, part) for part in ("start", "items", "weights")}
    held[name] = change(held[name])
    monkeypatch.setattr(readers, "_neighbours", Neighbours(**held))
    with pytest.raises(ModelFileError, match=f"near_{name}"):  # by either of them
        readers.save(tmp_path / "forged.model")
        load(tmp_path / "forged.model")
