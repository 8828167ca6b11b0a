"""Events as comparisons of what came next with something else."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import chisquare

from scaledsgd.recommend.comparisons import successions

SIZE = (6, 8)  # users and items of the generated events


@st.composite
def choices(draw):
    one = st.tuples(*(st.integers(0, n - 1) for n in SIZE))
    return np.array(draw(st.lists(one, min_size=1, max_size=60))).T


@given(choices(), st.integers(0, 99))
def test_successions_follow_each_user(pairs, seed):
    last, expected = {}, []
    for user, item in pairs.T.tolist():
        if user in last and last[user] != item:
            expected.append((item, last[user]))
        last[user] = item
    previous = np.full(SIZE[0], -1, np.int32)
    found = successions(previous, *pairs, (SIZE[1],) * 2, seed=seed)
    assert previous.tolist() == [last.get(user, -1) for user in range(SIZE[0])]
    if not expected:
        assert found is None
        return
    j, k, i = found.index.T
    assert list(zip(j, i, strict=True)) == expected
    assert ((k != j) & (k != i) & (k >= 0) & (k < SIZE[1])).all() and found.symmetric


def test_successions_draw_any_other_item():
    users, items = np.zeros(100_001, int), np.arange(100_001) % 2  # 0, 1, 0, 1, ...
    found = successions(np.full(1, -1, np.int32), users, items, (9, 9))
    drawn = np.bincount(found.index[:, 1], minlength=9)
    assert drawn[:2].sum() == 0 and chisquare(drawn[2:]).pvalue > 1e-3
    items = np.arange(100_001) % 3 * 2  # 0, 2, 4, 0, ...: of events there is another one
    found = successions(np.full(1, -1, np.int32), users, items, (9, 9))
    assert (found.index.sum(axis=1) == 6).mean() > 0.99
    last = np.array([0], np.int32)
    assert successions(last, [0], [1], (2, 2)) is None  # with whom to compare?
    assert last.tolist() == [1]


@pytest.mark.parametrize(
    "users, items, words",
    [
        ([0, 1], [0], "2 users and 1 items"),
        ([], [], "input is empty"),
        ([0, 9], [0, 1], "event 1: user 9 is not one of 6"),
        ([0, 6], [0, 1], "event 1: user 6 is not one of 6"),
        ([0, 1], [8, 1], "event 0: item 8 is not one of 8"),
        ([0, 1], [0, -2], "event 1: item -2 is not one of 8"),
        ([0, 0.5], [0, 1], "0.5 is not a whole number"),
    ],
)
def test_bad_events_are_refused_in_one_line(users, items, words):
    previous = np.full(SIZE[0], -1, np.int32)
    with pytest.raises(ValueError, match=words):
        successions(previous, users, items, (SIZE[1],) * 2)
    assert (previous == -1).all()
