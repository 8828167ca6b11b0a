"""Users' choices as comparisons: negatives, successions, and new users."""

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import chisquare

from scaledsgd.engines.cpu.engine import CpuEngine
from scaledsgd.recommend import evaluation, events
from scaledsgd.recommend.events import NEGATIVES

SIZE = (6, 8)  # users and items of the generated events


@st.composite
def choices(draw, least=1):
    one = st.tuples(*(st.integers(0, n - 1) for n in SIZE))
    return np.array(draw(st.lists(one, min_size=least, max_size=60))).T


def dense(users, items, shape=SIZE) -> np.ndarray:
    chosen = np.zeros(shape, bool)
    chosen[users, items] = True
    return chosen


@given(choices(), st.sampled_from(NEGATIVES), st.integers(0, 99))
def test_a_negative_is_never_an_item_of_the_user(pairs, kind, seed):
    chosen = dense(*pairs)
    left = ~chosen[pairs[0]].all(axis=1)
    if not left.any():
        with pytest.raises(ValueError, match="every item"):
            events.observations(*pairs, SIZE, negatives=kind)
        return
    found = events.observations(*pairs, SIZE, negatives=kind, seed=seed)
    j, k, i = found.index.T
    assert np.array_equal([i, j], pairs[:, left])  # every event that can be compared is
    assert not chosen[i, k].any()
    found.negatives.redraw(found.index, seed)
    assert not chosen[i, found.index[:, 1]].any()


@given(choices(least=8))
def test_earlier_choices_are_no_negatives_either(pairs):
    now, before = pairs[:, :4], pairs[:, 4:]
    known = dense(*pairs)
    if known[now[0]].all(axis=1).any():
        return
    # What is stored counts, not its value.
    seen = sp.coo_array((np.zeros(before.shape[1]), tuple(before)), shape=SIZE)
    found = events.observations(*now, SIZE, seen=seen)
    assert not known[found.index[:, 2], found.index[:, 1]].any()


@pytest.mark.parametrize("kind", NEGATIVES)
def test_negatives_have_the_distribution_they_are_named_after(kind):
    rng = np.random.default_rng(1)
    users, items = rng.integers(0, 50, 2000), (40 * rng.random(2000) ** 2).astype(int)
    found = events.observations(users, items, (50, 40), negatives=kind)
    chosen = dense(users, items, (50, 40))
    index = np.zeros((100_000, 3), np.int32)
    index[:, 2] = 7
    found.negatives.redraw(index, 2)
    free = np.flatnonzero(~chosen[7])
    weights = np.ones(40) if kind == "uniform" else chosen.sum(axis=0)
    expected = weights[free] / weights[free].sum()
    drawn = np.bincount(index[:, 1], minlength=40)[free]
    assert drawn.sum() == len(index)
    assert chisquare(drawn[expected > 0], len(index) * expected[expected > 0]).pvalue > 1e-3


def test_training_draws_every_epoch_anew():
    rng = np.random.default_rng(0)
    shape = (300, 500)
    users, items = rng.integers(0, 300, 70_000), rng.integers(0, 400, 70_000)  # more than a hand
    found, chosen = events.observations(users, items, shape), dense(users, items, shape)
    frozen = found.index.copy()
    data = CpuEngine().samples(found, [300, 300, 0], np.float32, np.random.default_rng(3))
    epochs = []
    for _ in range(2):
        (whole,) = data.epoch(rng)
        rounds = data.sub_rounds(len(whole))
        dealt = [batch.chunk().index for tasks in rounds for part in tasks for batch in part]
        dealt = np.concatenate(dealt)
        assert len(dealt) == 70_000 and dealt[:, 1].min() >= 300
        assert not chosen[dealt[:, 2], dealt[:, 1] - 300].any()
        epochs.append(dealt[np.lexsort(dealt.T[[1, 0, 2]])])
    assert np.array_equal(epochs[0][:, [0, 2]], epochs[1][:, [0, 2]])
    assert np.mean(epochs[0][:, 1] == epochs[1][:, 1]) < 0.1
    assert np.array_equal(found.index, frozen)  # of the caller's own nothing changed


def test_who_has_chosen_everything_prefers_nothing():
    found = events.observations([0, 0, 1], [0, 1, 0], shape=(2, 2))
    assert found.index.tolist() == [[0, 1, 1]]
    with pytest.raises(ValueError, match="every user has chosen every item"):
        events.observations([0, 0], [0, 1], shape=(1, 2))


def test_below_the_mean_is_neither_chosen_nor_a_negative():
    users, items = np.repeat([0, 1], 4), np.tile([0, 1, 2, 3], 2)
    values = [5, 1, 4, 2, 3, 3, 3, 3]
    found = events.observations(users, items, (2, 6), values=values)
    assert found.index[:, [2, 0]].tolist() == [[0, 0], [0, 2], [1, 0], [1, 1], [1, 2], [1, 3]]
    for seed in range(20):
        found.negatives.redraw(found.index, seed)
        assert set(found.index[:, 1]) <= {4, 5}


@given(choices(), st.sampled_from(NEGATIVES), st.integers(0, 99))
def test_successions_follow_each_user(pairs, kind, seed):
    last, expected = {}, []
    for user, item in pairs.T.tolist():
        if user in last and last[user] != item:
            expected.append((item, last[user]))
        last[user] = item
    previous = np.full(SIZE[0], -1, np.int32)
    found = events.successions(previous, *pairs, (SIZE[1],) * 2, negatives=kind, seed=seed)
    assert previous.tolist() == [last.get(user, -1) for user in range(SIZE[0])]
    if not expected:
        assert found is None
        return
    j, k, i = found.index.T
    assert list(zip(j, i, strict=True)) == expected
    assert ((k != j) & (k != i) & (k >= 0) & (k < SIZE[1])).all() and found.symmetric


def test_successions_draw_any_other_item():
    users, items = np.zeros(100_001, int), np.arange(100_001) % 2  # 0, 1, 0, 1, ...
    found = events.successions(np.full(1, -1, np.int32), users, items, (9, 9))
    drawn = np.bincount(found.index[:, 1], minlength=9)
    assert drawn[:2].sum() == 0 and chisquare(drawn[2:]).pvalue > 1e-3
    last = np.array([0], np.int32)
    assert events.successions(last, [0], [1], (2, 2)) is None  # with whom to compare?
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
    for refused in (
        lambda: events.observations(users, items, SIZE),
        lambda: events.successions(previous, users, items, (SIZE[1],) * 2),
    ):
        with pytest.raises(ValueError, match=words):
            refused()
    assert (previous == -1).all()
    with pytest.raises(ValueError, match="'often' is not"):
        events.observations([0], [0], SIZE, negatives="often")
    with pytest.raises(ValueError, match="event 0: value nan"):
        events.observations([0], [0], SIZE, values=[np.nan])


@pytest.mark.parametrize("count, least", [(5, 0.9), (50, 0.97), (400, 0.99)])
def test_fold_in_finds_the_users_behind_choices(count, least):
    """The more she chose the better, also in directions that a mean of her items blurs."""
    rng = np.random.default_rng(0)
    spread = np.array([1.5, 1.0, 0.7])
    right = rng.standard_normal((2000, 3)) * spread + [1.0, 0.0, 0.0]
    truth = rng.standard_normal((200, 3)) * spread / np.linalg.norm(spread)
    likes = truth @ right.T
    chosen = np.argsort(-likes - rng.gumbel(size=likes.shape), axis=1)[:, :count]
    new = events.fold_in(right, np.arange(201) * count, chosen.ravel())

    def agreement(vectors):
        return np.median(
            [np.corrcoef(*rows)[0, 1] for rows in zip(vectors @ right.T, likes, strict=True)]
        )

    assert agreement(new) > least
    assert agreement(right[chosen].mean(axis=1) - right.mean(axis=0)) < 0.97
    assert not events.fold_in(right, [0, 0], []).any()  # who chose nothing is nobody


@pytest.mark.slow
def test_movielens_is_ranked_better_than_by_popularity(movielens_events):
    """Leave-last-out over all items; new users by fold-in about as well as those trained on."""
    users, items, values, times = movielens_events
    shape = users.max() + 1, items.max() + 1
    train, test = evaluation.leave_last_out(users, items, times)
    seen, wanted = (
        sp.csr_array((np.ones(len(p)), (users[p], items[p])), shape) for p in (train, test)
    )
    u, i, v = users[train], items[train], values[train]
    found = {"popularity": [np.asarray(seen.sum(axis=0))[None].repeat(shape[0], axis=0)]}
    found |= {"trained": [], "folded in": []}
    for seed in range(3):
        model = trained(events.observations(u, i, shape, negatives="popularity", values=v), seed)
        left, right = model.factors.left, model.factors.right
        if seed == 0:
            again = trained(events.observations(u, i, shape, negatives="popularity", values=v), 0)
            assert np.array_equal(again.factors.X, model.factors.X)
        order = np.argsort(u, kind="stable")
        starts = np.searchsorted(u[order], np.arange(shape[0] + 1))
        new = events.fold_in(right, starts, i[order], v[order])
        found["trained"].append(left @ right.T)
        found["folded in"].append(new @ right.T)
    ndcg = {
        name: np.mean(
            [evaluation.evaluate(lambda rows, S=S: S[rows], seen, wanted)["ndcg@10"] for S in runs]
        )
        for name, runs in found.items()
    }
    assert ndcg["trained"] > 1.25 * ndcg["popularity"], ndcg
    assert ndcg["folded in"] > 0.9 * ndcg["trained"], ndcg


def trained(observations, seed):
    from scaledsgd import ItemRanker

    return ItemRanker(16, mode="user-item", epochs=10, random_state=seed).fit(observations)


@pytest.fixture
def movielens_events():
    from conftest import SHARED

    path = SHARED / "ml-latest-small" / "ratings.csv"
    if not path.exists():
        pytest.skip("MovieLens-Small is not there")
    table = np.loadtxt(path, delimiter=",", skiprows=1)
    users, items = (np.unique(column, return_inverse=True)[1] for column in table.T[:2])
    return users, items, table[:, 2], table[:, 3]
