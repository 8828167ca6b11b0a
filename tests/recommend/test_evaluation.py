"""Measures against scikit-learn and every order that ties allow; splits that do not leak."""

from itertools import pairwise, permutations

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from sklearn.metrics import label_ranking_average_precision_score, ndcg_score, roc_auc_score

from scaledsgd.recommend import evaluation
from scaledsgd.recommend.evaluation import evaluate, leave_last_out, time_split


@st.composite
def rankings(draw, users=4, items=6, ties=True):
    """Scores, and of each user's items 0 (neither), 1 (seen) or 2 (to be found)."""
    if ties:
        scores = draw(arrays(float, (users, items), elements=st.integers(0, 3)))
    else:
        scores = np.stack([draw(st.permutations(range(items))) for _ in range(users)]).astype(float)
    role = draw(arrays(int, (users, items), elements=st.integers(0, 2)))
    role[0, 0] = 2  # somebody has something to be found
    return scores, role, draw(st.integers(1, items))


def measured(scores, role, k):
    seen, test = sp.csr_array(role == 1), sp.csr_array(role == 2)
    return evaluate(lambda users: scores[users], seen, test, k)


def every_order(scores, wanted, k):
    """NDCG, recall and reciprocal rank, averaged over the orders that the scores allow."""
    found = []
    for order in permutations(range(len(scores))):
        if all(scores[a] >= scores[b] for a, b in pairwise(order)):
            places = np.flatnonzero(wanted[list(order)])
            top = places[places < k]
            ideal = (1 / np.log2(2 + np.arange(min(k, len(places))))).sum()
            dcg = (1 / np.log2(2 + top)).sum() / ideal
            found.append((dcg, len(top) / len(places), 1 / (1 + places[0])))
    return np.mean(found, axis=0)


@given(rankings())
def test_ties_count_as_every_order_on_average(drawn):
    scores, role, k = drawn
    rows = [
        every_order(s[r != 1], r[r != 1] == 2, k)
        for s, r in zip(scores, role, strict=True)
        if (r == 2).any()
    ]
    found = measured(scores, role, k)
    expected = np.mean(rows, axis=0)
    assert found["users"] == len(rows)
    assert np.allclose([found[f"ndcg@{k}"], found[f"recall@{k}"], found["mrr"]], expected)


@given(rankings(items=12))
def test_ndcg_and_auc_are_those_of_scikit_learn(drawn):
    scores, role, k = drawn
    ndcg, auc = [], []
    for s, r in zip(scores, role, strict=True):
        s, wanted = s[r != 1], (r == 2)[r != 1]
        if wanted.any() and len(wanted) > 1:  # scikit-learn does not rank a single item
            ndcg.append(ndcg_score([wanted], [s], k=k))
        elif wanted.any():
            ndcg.append(1.0)
        if wanted.any() and not wanted.all():
            auc.append(roc_auc_score(wanted, s))
    found = measured(scores, role, k)
    assert np.isclose(found[f"ndcg@{k}"], np.mean(ndcg))
    assert np.isclose(found["auc"], np.mean(auc)) if auc else np.isnan(found["auc"])


@given(rankings(items=9, ties=False))
def test_mrr_is_that_of_scikit_learn_where_one_item_is_wanted(drawn):
    scores, _, k = drawn
    wanted = np.eye(9, dtype=int)[np.arange(4) * k % 9]
    expected = label_ranking_average_precision_score(wanted, scores)
    assert np.isclose(measured(scores, 2 * wanted, k)["mrr"], expected)


def test_a_case_by_hand():
    # Items 0 and 3 are known. Of the others in order 2, 4, 1, 5 the user wants 4 and 5.
    scores = np.array([[9.0, 2.0, 4.0, 8.0, 3.0, 1.0]])
    found = measured(scores, np.array([[1, 0, 0, 1, 2, 2]]), k=3)
    ideal = 1 + 1 / np.log2(3)
    assert found["ndcg@3"] == pytest.approx(1 / np.log2(3) / ideal)
    assert (found["recall@3"], found["mrr"], found["auc"]) == (0.5, 0.5, 0.25)


def test_blocks_change_nothing(monkeypatch):
    rng = np.random.default_rng(0)
    scores, role = rng.integers(0, 9, (50, 30)).astype(float), rng.integers(0, 3, (50, 30))
    whole = measured(scores, role, 5)
    monkeypatch.setattr(evaluation, "_BLOCK", 64)
    blocks = measured(scores, role, 5)
    assert whole.keys() == blocks.keys() and np.allclose([*whole.values()], [*blocks.values()])


def test_what_was_trained_on_is_not_there_to_be_found():
    seen = sp.csr_array([[0, 1, 1]])
    with pytest.raises(ValueError, match="leakage: item 2 of user 0"):
        evaluate(lambda users: np.zeros((1, 3)), seen, sp.csr_array([[0, 0, 1]]))
    test = sp.csr_array([[1, 0, 0]])
    with pytest.raises(ValueError, match="not a finite number"):
        evaluate(lambda users: np.full((1, 3), np.nan), seen, test)
    with pytest.raises(ValueError, match="came as"):
        evaluate(lambda users: np.zeros((1, 2)), seen, test)
    with pytest.raises(ValueError, match="holds no event"):
        evaluate(lambda users: np.zeros((1, 3)), seen, 0 * sp.csr_array((1, 3)))


events = st.lists(
    st.tuples(st.integers(0, 4), st.integers(0, 6), st.integers(0, 9)), min_size=1, max_size=60
)


@given(events, st.integers(0, 9))
def test_the_last_new_item_of_every_user_is_left_out(drawn, seed):
    users, items, times = np.array(drawn).T
    train, test = leave_last_out(users, items, times, seed)
    known = {(users[p], items[p]) for p in train}
    assert not set(train) & set(test)
    assert len({users[p] for p in test}) == len(test)
    for p in test:
        assert (users[p], items[p]) not in known
        assert all(times[q] <= times[p] for q in train if users[q] == users[p])
        # Nothing new came later.
        later = [q for q in range(len(users)) if users[q] == users[p] and times[q] > times[p]]
        assert all((users[q], items[q]) in known | {(users[p], items[p])} for q in later)
    tested = {users[p] for p in test}
    for user in set(users):
        assert (user in tested) == (len(set(items[users == user])) > 1)


def test_ties_in_time_are_broken_by_lot():
    users, items = np.repeat(np.arange(200), 5), np.tile(np.arange(5), 200)
    lots = [items[leave_last_out(users, items, np.zeros(1000), seed).test] for seed in (0, 0, 1)]
    assert np.array_equal(lots[0], lots[1]) and not np.array_equal(lots[0], lots[2])
    assert (np.bincount(lots[0], minlength=5) > 20).all()


@given(events, st.floats(0.05, 0.95))
def test_the_latest_events_are_left_out(drawn, share):
    users, items, times = np.array(drawn).T
    try:
        train, test = time_split(users, items, times, share)
    except ValueError as why:
        assert "nothing new" in str(why)
        return
    assert len(train) and times[train].max() < times[test].min()
    assert len(test) <= share * len(users)
    pairs = [(users[p], items[p]) for p in test]
    assert len(set(pairs)) == len(pairs)
    assert not set(pairs) & {(users[p], items[p]) for p in train}


@pytest.mark.parametrize(
    "columns, words",
    [
        (([0, 1], [0], [1, 2]), "do not match"),
        (([], [], []), "input is empty"),
        (([0, -1], [0, 1], [1, 2]), "event 1: user -1 is negative"),
        (([0, 1], [0, 1], [1, np.inf]), "event 1: time inf"),
    ],
)
def test_bad_events_are_refused_in_one_line(columns, words):
    for split in (leave_last_out, time_split):
        with pytest.raises(ValueError, match=words):
            split(*columns)
