"""The search for a recommender's settings: what it holds out, tries, and takes."""

from __future__ import annotations

import numpy as np
import pytest

from scaledsgd.core.choices import Choices
from scaledsgd.engines.cpu.engine import CpuEngine
from scaledsgd.recommend import tuning
from scaledsgd.recommend.tuning import Holdout, Measures, Tuner, climb, some_users


def random_choices(users: int = 60, each: int = 10, items: int = 40) -> Choices:
    rng = np.random.default_rng(0)
    chosen = np.concatenate([rng.permutation(items)[:each] for _ in range(users)])
    return Choices.of(np.repeat(np.arange(users), each), chosen, shape=(users, items))


def tuner(answers=None, fixed=None) -> Tuner:
    """A search whose runs only tell what `answers` says of their settings and epochs."""
    made = Tuner(random_choices(), lambda *_: None, CpuEngine(), fixed or {}, seed=0)
    made.asked = []

    def descended(changes, epochs, blended):
        made.asked.append((changes, epochs))
        return [Measures(*np.broadcast_to(answers(changes, epochs), (2, 400)))]

    made._descended = descended
    return made


def test_what_is_held_out_is_not_trained_on_and_comes_from_every_user():
    choices = random_choices()
    split = Holdout(choices, seed=3)
    pairs = [set(zip(part.users, part.items, strict=True)) for part in (split.kept, split.held)]
    assert not pairs[0] & pairs[1] and len(pairs[0] | pairs[1]) == len(choices)
    assert (np.bincount(split.held.users, minlength=60) == 1).all()
    other = Holdout(choices, seed=4)
    assert not np.array_equal(other.held.items, split.held.items)


def test_some_users_come_with_all_that_they_chose():
    choices = random_choices()
    some = some_users(choices, 200, seed=0)
    assert len(some) == 200 and set(np.bincount(some.users)) == {0, 10}


def test_climbing_goes_both_ways_and_never_asks_twice():
    asked = []

    def value(at):
        asked.append(at)
        return -((at[0] - 2) ** 2) - (at[1] - 5) ** 2

    best, _ = climb(value, (4, 4), [range(1, 8), range(1, 8)], trials=30)
    assert best == (2, 5) and len(set(asked)) == len(asked)


@pytest.mark.parametrize(
    ("gains", "epochs", "found"),
    [
        ((0.5, 0.5, 0.5), 40, 40),  # as long as it may: what helped much is trusted once more
        ((0.5, 0.017, 0.5), 40, 24),
        ((0.5, 0.005, 0.5), 40, 12),
        ((-0.1, 0.5, 0.5), 40, 6),
        ((0.5, 0.5, 0.5), 10, 10),
    ],
)
def test_epochs_are_doubled_while_that_helps(gains, epochs, found):
    lengths = [6, 12, 24]

    def answers(changes, length):
        steps = sum(length > one for one in lengths)
        return 0.1 * np.prod([1 + gain for gain in gains[:steps]])

    assert tuner(answers)._length([{}], epochs)[1] == found


def test_a_gain_that_may_be_chance_is_none():
    rng = np.random.default_rng(0)
    noise = rng.standard_normal(400)
    noise -= noise.mean() - 0.02

    def answers(changes, length):
        return 1 + (noise if length > 6 else 0 * noise)

    assert tuner(answers)._length([{}], 12)[1] == 6


def test_what_is_fixed_is_not_searched():
    made = tuner(lambda changes, length: changes["tau"], {"tau": 0.1, "cosine": True})
    assert made._products("softmax")[0]["tau"] == 0.1
    assert {changes["tau"] for changes, _ in made.asked} == {0.1}


def test_of_ridges_that_rank_alike_the_strongest_is_taken():
    made = tuner(lambda changes, length: 1 - 0.001 * changes["dot_ridge"], {"cosine": False})
    assert made._products("softmax")[0]["dot_ridge"] == 2.0


def test_products_that_are_close_are_tried_for_longer():
    def answers(changes, length):
        return (0.100 if length > tuning._SHORT else 0.098) if changes["cosine"] else 0.099

    assert tuner(answers)._products("softmax")[0]["cosine"]
    assert not tuner(lambda changes, length: 1.0 - changes["cosine"])._products("softmax")[0][
        "cosine"
    ]


@pytest.mark.parametrize(
    ("behind", "noise", "given_up"), [(0.2, 0, True), (0.2, 4, False), (0.08, 0, False)]
)
def test_what_is_far_behind_at_once_is_given_up(behind, noise, given_up):
    """Far behind, and not by chance."""
    many = noise * np.random.default_rng(0).standard_normal(400)
    many -= many.mean()

    def answers(changes, length):
        return 1 - (behind + many) * changes["cosine"]

    made = tuner(answers)
    made._products("softmax")
    assert (sum(changes["cosine"] for changes, _ in made.asked) == 1) == given_up


@pytest.mark.parametrize(
    ("reached", "loss"), [(0.4, "squared"), (0.502, "squared"), (0.503, "softmax")]
)
def test_the_squared_loss_stays_where_the_softmax_is_hardly_better(reached, loss):
    made = tuner(lambda changes, length: reached)
    made._squared = lambda: (made._policy(loss="squared"), [Measures(*np.full((2, 9), 0.5))])
    found = made.find("softmax", 40)
    assert found.policy.loss == loss and found.measures["softmax"][0] == pytest.approx(reached)


def test_of_cosines_that_are_close_the_one_that_is_better_for_longer_is_taken():
    def answers(changes, length):
        late = (0.02 if length > tuning._SHORT else -0.002) * (changes["c"] > 1.2)
        return 1.0 - abs(changes["tau"] - 0.14) - 0.03 * abs(changes["c"] - 1.25) + late

    made = tuner(answers, {"cosine": True})
    assert made._products("softmax")[0] == {
        "loss": "softmax",
        "cosine": True,
        "tau": 0.14,
        "c": 1.35,
    }


@pytest.mark.parametrize(("late", "c"), [(0.05, 1.35), (-0.05, 1.2)])
def test_what_is_as_good_is_told_apart_where_many_epochs_help(late, c):
    def answers(changes, length):
        return 0.1 * length**0.5 * (1 + late * (length > tuning._LONG) * (changes["c"] > 1.2))

    tied = [{"c": 1.2}, {"c": 1.35}]
    made = tuner(answers)
    assert made._length(tied, 40)[0]["c"] == c
    assert made._length(tied, tuning._LONG)[0]["c"] == 1.2
    fixed = {"cosine": True, "tau": 0.1}
    made = tuner(lambda changes, length: 0.1 + 0.0005 * (changes["c"] > 1.2), fixed)
    assert [one["c"] for one in made._products("softmax")] == [1.35, 1.2]


@pytest.mark.parametrize("best", range(len(tuning._BLENDS)))
def test_neighbours_say_as_much_as_helps_and_nothing_where_nothing_does(best):
    made = tuner(fixed={"neighbours": 5})
    base = [
        Measures(*np.full((2, 9), 0.5 + 0.1 * (at == best))) for at in range(len(tuning._BLENDS))
    ]
    made._squared = lambda: (made._policy(loss="squared"), base)
    made._with_neighbours = lambda policy, base: (policy, base)
    policy = made.find("squared", 40).policy
    assert (policy.neighbours, policy.blend) == (5 if best else 0, tuning._BLENDS[best])
    # Beside vectors that are trained for longer than in any trial they are not loud.
    better = [Measures(one.ndcg + 0.1, one.recall) for one in base]
    made._products = lambda loss: [{"loss": loss}]
    for length, most in ((tuning._LONGEST, np.inf), (40, 1.0)):
        made._length = lambda tied, epochs, length=length: (*tied, length, better)
        assert made.find("softmax", 40).policy.blend == min(tuning._BLENDS[best], most)
