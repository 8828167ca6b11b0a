"""From ratings and events to similar items and recommendations."""

from __future__ import annotations

import numpy as np
import pandas as pd
import polars as pl
import pytest
import scipy.sparse as sp
from rated import NAMES, two_kinds
from shared_data import SMALL
from sklearn.base import clone

from scaledsgd import ItemRanker, load
from scaledsgd.recommend import comparisons as ratings
from scaledsgd.recommend.similarity import SIMILARITIES
from scaledsgd.research import movielens


def fitted(**settings) -> ItemRanker:
    return ItemRanker(**({"rank": 4, "random_state": 0} | settings)).fit(two_kinds(), **NAMES)


def test_every_table_gives_the_same_model(tmp_path):
    table = two_kinds()
    frame = pd.DataFrame(table)
    frame.to_csv(tmp_path / "a.csv", index=False)
    pl.DataFrame(table).write_parquet(tmp_path / "a.parquet")
    models = [
        ItemRanker(rank=4, random_state=0).fit(data, **NAMES)
        for data in (table, frame, pl.DataFrame(table), tmp_path / "a.csv", tmp_path / "a.parquet")
    ]
    for model in models:
        assert np.array_equal(model.factors.X, models[0].factors.X)
        assert model.similar("red0", 3)[0].tolist() == models[0].similar("red0", 3)[0].tolist()
    assert 0.5 < models[0].test_auc_ < 1


def test_a_sparse_matrix_knows_its_items_by_number():
    G = sp.lil_array((40, 30))
    for user in range(40):
        G[user, [5 * (user % 2) + step for step in range(user % 5 + 1)]] = 4.0
    model = ItemRanker(rank=2, random_state=0).fit(G.tocsr())
    assert set(model.similar(0, 4)[0]) == {1, 2, 3, 4}
    with pytest.raises(ValueError, match="item 29 was never seen"):
        model.similar(29)


@pytest.mark.parametrize("kind", SIMILARITIES)
def test_items_of_a_kind_are_similar(kind):
    if kind == "adjusted":
        pytest.skip("between users of one taste adjusted ratings are noise")
    model = fitted(similarity=kind)
    names, scores = model.similar([f"red{n}" for n in range(12)], 5)
    assert names.shape == scores.shape == (12, 5)
    assert np.mean([[name.startswith("red") for name in row] for row in names]) > 0.9
    alone = model.similar("red3", 5)
    assert alone[0].tolist() == names[3].tolist() and alone[1] == pytest.approx(scores[3])


def test_the_last_of_repeated_ratings_counts_and_time_orders_them():
    table = pd.DataFrame(two_kinds()).drop_duplicates(["who", "what"])
    table["at"] = np.arange(len(table))
    old = table.assign(stars=0.5, at=-1 - np.arange(len(table))).sample(frac=0.3, random_state=0)
    both = pd.concat([table, old]).sort_values("at", kind="stable")
    mixed = both.sample(frac=1, random_state=1)
    settings = {"rank": 4, "random_state": 0}
    fits = [ItemRanker(**settings).fit(data, **NAMES, time="at") for data in (both, mixed)]
    assert np.array_equal(fits[0].factors.X, fits[1].factors.X)
    last = table.groupby("who").what.last()
    for who, what in last.items():
        row = fits[1]._histories.users.rows([who])[0]
        assert fits[1]._ids[0].names()[fits[1].histories.previous[row]] == what
    stars = fits[1]._histories.table
    assert stars.nnz == len(table) and 0.5 not in stars.data


def test_recommendations_are_what_similar_users_like():
    model = fitted()
    names, scores = model.recommend(["red1", "red2"], 5)
    assert sum(name.startswith("red") for name in names) >= 4
    assert not {"red1", "red2"} & set(names) and (np.diff(scores) <= 0).all()
    assert model.recommend(["red1"], 1, exclude_seen=False)[0] == ["red1"]
    # One item is its own mean.
    alone, like = model.recommend(["blue4"], 6), model.similar("blue4", 6)
    assert alone[0].tolist() == like[0].tolist() and alone[1] == pytest.approx(like[1])
    # Whom ratings draw to one side is found there.
    tastes = [model.recommend(["red1", "blue1"], 8, [5, low])[0] for low in (0.01, 500)]
    reds = [sum(name.startswith("red") for name in taste) for taste in tastes]
    assert reds[0] > reds[1]


def test_batches_are_the_same_questions_at_once():
    model = fitted()
    lists, stars = [["red1", "red2"], ["blue3"]], [[5, 1], [2]]
    names, scores = model.recommend(lists, 4, stars)
    for row in range(2):
        alone = model.recommend(lists[row], 4, stars[row])
        assert alone[0].tolist() == names[row].tolist() and alone[1] == pytest.approx(scores[row])
    names, _ = model.recommend(user=["u0", "u1"], k=3)
    assert names[1].tolist() == model.recommend(user="u1", k=3)[0].tolist()
    order = model.ranked(["red0", "blue0"], ["red5", "blue5", "red7"])
    assert order[1].tolist() == model.ranked("blue0", ["red5", "blue5", "red7"]).tolist()
    products = model.vectors(["blue0"]) @ model.vectors(order[1].tolist()).T
    assert (np.diff(products) <= 0).all()


def test_what_a_user_had_is_left_out():
    model, table = fitted(), two_kinds()
    users = [f"u{n}" for n in range(10)]
    names, scores = model.recommend(user=users, k=24)
    for user, row, numbers in zip(users, names, scores, strict=True):
        had = set(table["what"][table["who"] == user])
        given = [name for name in row if name is not None]
        assert not had & set(given) and len(given) == 24 - len(had)
        assert np.isinf(numbers[len(given) :]).all()
        assert len(model.recommend(user=user, k=24)[0]) == len(given)
    assert len(model.recommend(user="u0", k=24, exclude_seen=False)[0]) == 24


def test_a_file_keeps_all_that_answers_need(tmp_path):
    model = fitted()
    model.save(tmp_path / "m.model")
    again = load(tmp_path / "m.model")
    for ask in (
        lambda m: m.recommend(user=["u1", "u2"], k=24),
        lambda m: m.similar(["red1"], 5),
    ):
        for a, b in zip(ask(model), ask(again), strict=True):
            assert a.tolist() == b.tolist()
    assert getattr(again, "test_auc_", None) == getattr(model, "test_auc_", None)
    more = {
        "who": ["new", "u1", "new"],
        "what": ["red1", "red3", "green"],
        "stars": [1.0, 2.0, 3.0],
    }
    for one in (model, again):
        one.partial_fit(more, **NAMES)
    assert np.array_equal(model.factors.X, again.factors.X)
    assert np.array_equal(model.histories.previous[:61], again.histories.previous[:61])


def test_events_that_follow_each_other_bring_items_together():
    rng = np.random.default_rng(0)
    model = ItemRanker(rank=4, random_state=0)
    for _ in range(60):
        who = rng.integers(40, size=500)
        what = np.char.add(np.array(["a", "b"])[who % 2], rng.integers(9, size=500).astype(str))
        model.partial_fit({"who": who, "what": what}, user="who", item="what")
    names, _ = model.similar([f"a{n}" for n in range(9)], 5)
    assert np.mean([[name[0] == "a" for name in row] for row in names]) > 0.9


def test_a_lone_event_of_a_new_item_makes_room_for_it():
    model = fitted()
    before = model.factors.X.copy()
    model.partial_fit({"who": ["nobody"], "what": ["green"]}, user="who", item="what")
    assert len(model.factors.X) == len(before) + 1
    assert np.array_equal(model.factors.X[:-1], before)
    assert "green" in model.similar("red1", 24)[0]


def test_refused_events_leave_nothing_behind():
    model = fitted()
    before, last = model.recommend(user="u1"), model.histories.previous.copy()
    with pytest.raises(ValueError, match="observation 1: value nan"):
        model.partial_fit({"who": ["x", "y"], "what": ["q", "r"], "stars": [1, np.nan]}, **NAMES)
    with pytest.raises(TypeError, match="is not of the type of"):
        model.partial_fit({"who": ["x"], "what": [3], "stars": [1]}, **NAMES)
    with pytest.raises(ValueError, match="rank=99"):
        model.set_params(rank=99).fit(two_kinds(), **NAMES)
    assert np.array_equal(before[1], model.recommend(user="u1")[1])
    assert np.array_equal(last, model.histories.previous)
    with pytest.raises(ValueError, match="user 'x' was never seen"):
        model.recommend(user="x")


BAD_FITS = {
    "a column that is not there": (two_kinds(), NAMES | {"item": "film"}, "no column 'film'"),
    "no item": (two_kinds(), {"user": "who"}, r"user=\.\.\. and item="),
    "both kinds": (two_kinds(), NAMES | {"i": "who"}, "not both"),
    "empty": ({"who": [], "what": []}, {"user": "who", "item": "what"}, "input is empty"),
    "all zero": ({"who": [1], "what": [1], "stars": [0]}, NAMES, "all values are 0"),
    "one item": ({"who": [1, 2], "what": [1, 1], "stars": [1, 2]}, NAMES, "0 exist"),
    "lengths": ({"who": [1, 2], "what": [1], "stars": [1, 2]}, NAMES, "do not pair up"),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD_FITS)
def test_data_that_cannot_be_used_is_refused(name):
    data, names, message = BAD_FITS[name]
    with pytest.raises(ValueError, match=message):
        ItemRanker(rank=1).fit(data, **names)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"similarity": "pearson"}, "similarity='pearson' is not 'cosine' or 'adjusted'"),
        ({"comparisons": 0}, "comparisons=0 is not 'auto'"),
        ({"comparisons": 10**9}, "1,000,000,000 comparisons of 24 items wanted"),
        ({"mode": "user-item"}, "is learned by Recommender"),
        ({"mode": "user"}, "mode='user'"),
    ],
)
def test_settings_that_make_no_sense_are_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        fitted(**settings)
    model = ItemRanker(**settings)
    assert clone(model).get_params() == model.get_params()


def test_questions_that_make_no_sense_are_refused():
    model = fitted()
    for ask, message in (
        (lambda: model.similar("green"), "item 'green' was never seen"),
        (lambda: model.similar("red1", -1), "k=-1 is not"),
        (lambda: model.similar("red1", by="luck"), "by='luck'"),
        (lambda: model.recommend([]), "empty"),
        (lambda: model.recommend("red1"), "not a list of items"),
        (lambda: model.recommend(["red1"], ratings=[1, 2]), "1 items and 2 ratings"),
        (lambda: model.recommend(["red1"], ratings=[np.nan]), "rating nan"),
        (lambda: model.recommend(["red1"], ratings=[0]), "all 0"),
        (lambda: model.recommend(["red1"], user="u1"), "not both"),
        (lambda: model.recommend(user="nobody"), "user 'nobody' was never seen"),
    ):
        with pytest.raises(ValueError, match=message):
            ask()


@pytest.mark.slow
def test_movielens():
    if not SMALL.is_dir():
        pytest.skip("no copy of MovieLens-Latest-Small beside the repository")
    model = ItemRanker(rank=16, random_state=0, n_jobs=2)
    model.fit(
        SMALL / "ratings.csv", user="userId", item="movieId", value="rating", time="timestamp"
    )
    assert model.test_auc_ >= 0.87  # of a million comparisons: good to a thousandth
    # Of what well-known films are answered with, most is what their raters also like: among the
    # nearest hundredth of all films by the ratings themselves.
    table, _, ids = movielens.load(SMALL)
    known = np.flatnonzero(np.bincount(table.indices) >= 100)
    found, _ = model.similar(ids[known], 10)
    items, near = ratings.prepared(table), len(ids) // 100
    shares = []
    for i, answers in zip(known, found, strict=True):
        nearest = ids[np.argsort(-ratings.similarities(items, i))[: near + 1]]
        shares.append(np.isin(answers, nearest).mean())
    assert np.mean(shares) > 0.75
