"""The rules of the policies, one at a time: what an epoch's errors do to the next one's steps."""

import numpy as np
import pytest

from scaledsgd import Observations
from scaledsgd.core.factors import Factors
from scaledsgd.core.losses import LOSSES
from scaledsgd.core.observations import Chunk
from scaledsgd.engines.base import open_engine
from scaledsgd.training import holdout
from scaledsgd.training.auto_policy import AutoPolicy
from scaledsgd.training.metrics import rms_slope
from scaledsgd.training.policy import Policy

SQUARED = LOSSES["squared"]
SPREAD = np.random.default_rng(0).standard_normal(1000)  # errors of noise
SPREAD /= np.sqrt(np.mean(SPREAD**2))


def judged(policy, train, held=None, *, errors=SPREAD, factors=None, streaming=False):
    """The verdict on an epoch of 100 samples with that training error, and held-out errors with
    the first 1, 2, ... directions."""
    policy.saw(100 * train**2, 100)
    if held is None:
        return policy.review(factors, None, SQUARED, None, streaming)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(holdout, "errors_by_rank", lambda *_: np.outer(errors, held))
        return policy.review(factors, open_engine(), SQUARED, "some", streaming)


def begun(**state) -> AutoPolicy:
    policy = AutoPolicy(**{"size": 1.0, **state})
    policy.expects(1.0)
    return policy


def matrix(rank=6, rows=None):
    return Factors.start((40, 40), rank, seed=0, symmetric=rows is None)


# --- What is measured ---------------------------------------------------------------------------


def test_half_of_the_residual_is_that_of_the_last_round():
    policy = Policy()
    policy.expects(1.0)
    assert policy.saw(4 * 3.0**2, 4)
    assert policy.rms == 2.0


@pytest.mark.parametrize("squares", [np.nan, np.inf])
@pytest.mark.parametrize("kind", [Policy, AutoPolicy])
def test_a_sum_that_is_not_finite_is_noticed(kind, squares):
    policy = kind()
    policy.expects(1.0)
    assert not policy.saw(squares, 4)


def test_errors_ten_times_those_at_the_start_are_too_large():
    assert begun().saw(4 * 9.0**2, 4)
    assert not begun().saw(4 * 11.0**2, 4)


def test_damping_takes_the_mean_of_rows_and_columns():
    policy = Policy(learning_rate=0.3, damping=1.0)
    policy.expects(0.5)
    assert policy.eta(Factors(np.zeros((20, 1)), rows=4), SQUARED) == pytest.approx(8 * 0.5)


@pytest.mark.parametrize(("loss", "share"), [("squared", 1.0), ("distance", 0.25), ("bpr", 0.35)])
def test_damping_is_a_share_of_d_times_the_first_residual(loss, share):
    """Distances are off by twice their slope, and comparisons by a half: what policy.md found."""
    rng = np.random.default_rng(0)
    factors, arity = Factors(np.zeros((30, 2))), LOSSES[loss].arity
    y = np.ones(500) if loss == "bpr" else rng.uniform(1, 2, 500)
    policy = AutoPolicy()
    policy.expects(
        rms_slope(open_engine(), factors, Chunk(rng.integers(0, 30, (500, arity)), y), LOSSES[loss])
    )
    size = 1.0 if loss == "bpr" else np.sqrt(np.mean(y**2))
    assert policy.eta(factors, LOSSES[loss]) == pytest.approx(share * 30 * size)


def test_more_damping_where_held_out_errors_are_larger():
    for held, gap in ((0.5, 1), (3.0, 3), (50.0, 50)):
        policy = begun(columns=1)
        judged(policy, 1.0, [held], factors=matrix(1))
        assert policy.gap == pytest.approx(gap)
        assert policy.eta(matrix(1), SQUARED) == pytest.approx(gap * 40 * policy.rms)


# --- The start and the step ---------------------------------------------------------------------


def test_a_start_is_small_and_its_sides_are_of_one_size():
    left, right = AutoPolicy().starting_scale(9.0, (160, 10), 3, "squared")
    assert left * right == pytest.approx(1e-6 * 9)  # a product of rows, in units of the targets
    assert left**2 * 160 == pytest.approx(right**2 * 10)
    for kind in ("distance", "logistic"):
        scale = AutoPolicy().starting_scale(9.0, (5, 5), 3, kind)
        assert scale == pytest.approx((3e-3, 3e-3))
    assert AutoPolicy(scaled=False).starting_scale(9.0, (5, 5), 3, "squared") == (1.0, 1.0)


@pytest.mark.parametrize(("kind", "column"), [("squared", 0.0), ("bpr", 1.5)])
def test_what_all_have_in_common_is_there_from_the_start(kind, column):
    policy = AutoPolicy()
    policy.starting_scale(1.0, (9, 9), 3, kind)
    assert policy.starting_column == column


def test_a_step_is_shared_by_the_directions_that_are_more_than_damping():
    policy, factors = begun(columns=4), matrix(4)
    eta = policy.eta(factors, SQUARED)
    factors.spectrum = np.array([3 * eta, eta, 0.0, 0.0])  # 3/4 + 1/2: fewer than half of 4
    assert policy.rates(factors, SQUARED) == pytest.approx([40 / 2] * 2)
    factors.spectrum = eta * np.array([1e9, 1e9, 3.0, 0.0])
    assert policy.rates(factors, SQUARED) == pytest.approx([40 / 2.75] * 2)


def test_steps_on_comparisons_decay_by_themselves_and_never_to_nothing():
    factors, loss = matrix(4), LOSSES["bpr"]
    for rounds, decay in ((0, 1), (20, 1 / 2), (60, 1 / 4), (10**6, 0.05)):
        policy = begun(kind="bpr", total=rounds * factors.d)
        assert policy.rates(factors, loss) == pytest.approx([decay * 40 / 4] * 3)


def test_columns_not_in_use_stand_still():
    policy, factors = begun(columns=2), matrix(4)
    factors.refresh()
    P = policy.preconditioner(factors, SQUARED)
    assert (P[:2] > 0).all() and (P[2:] == 0).all()


def test_what_is_mostly_damping_is_pulled_back():
    policy, factors = begun(columns=2), matrix(2)
    factors.spectrum = policy.eta(factors, SQUARED) * np.array([99.0, 1.0])
    pull = 1 - policy.shrink(factors, SQUARED)
    step = policy.rates(factors, SQUARED).mean() / 40
    assert pull == pytest.approx(2 * step * 0.05 * np.array([0.01, 0.5]) ** 2)


# --- How a run goes on --------------------------------------------------------------------------


def test_the_step_decays_where_errors_no_longer_fall():
    policy, thetas = begun(), []
    for epoch in range(1, 17):
        judged(policy, 0.9 ** min(epoch, 12))
        thetas.append(policy.theta)
    # Three without a gain, and then, since the floor has been seen, every one.
    assert thetas[:14] == [1.0] * 14
    assert thetas[14:] == pytest.approx([0.7, 0.49])


def test_the_first_ten_epochs_may_stall():
    policy = begun()
    for _ in range(10):
        judged(policy, 0.5)
    assert policy.theta == 1.0
    judged(policy, 0.5)
    assert policy.theta == pytest.approx(0.7)


@pytest.mark.parametrize(("ratio", "decays"), [(0.97, False), (0.99, True)])
def test_a_gain_is_more_than_two_percent_of_either_error(ratio, decays):
    policy = begun()
    for epoch in range(14):
        judged(policy, 0.5 * ratio**epoch)
    assert (policy.theta < 1) == decays
    policy = begun(columns=1)
    for epoch in range(14):
        judged(policy, 0.1, [0.5 * ratio**epoch], factors=matrix(1))
    assert (policy.theta < 1) == decays


def test_good_progress_makes_the_step_bolder_up_to_one():
    policy = begun(theta=0.8)
    for train, theta in ((0.9, 0.8), (0.85, 0.8), (0.7, 0.96), (0.5, 1.0)):
        policy.train = policy.train if np.isfinite(policy.train) else 0.95
        judged(policy, train)
        assert policy.theta == pytest.approx(theta)


def test_errors_of_both_kinds_half_above_their_best_are_taken_back():
    def verdict(train, held):
        policy = begun(columns=1)
        for error in (0.5, 0.3, 0.2):
            judged(policy, error, [error], factors=matrix(1))
        return judged(policy, train, [held], factors=matrix(1))

    assert verdict(0.31, 0.31) == "bad"
    assert "bad" not in (verdict(0.28, 0.28), verdict(0.31, 0.28), verdict(0.28, 0.31))
    assert judged(begun(columns=1), 0.5, [np.nan], factors=matrix(1)) == "bad"


def test_a_retreat_halves_the_step_and_begins_with_short_rounds():
    policy = begun(theta=0.08, stretch=16)
    policy.saw(400.0, 100)
    assert policy.retreat()
    assert (policy.theta, policy.stretch, policy.rms, policy.samples) == (0.04, 1, 1.0, 0)
    assert policy.retreat()
    assert not policy.retreat()


def test_a_run_ends_when_it_is_solved_or_its_step_is_nothing():
    assert judged(begun(), 1e-12) == "solved"
    assert judged(begun(), 1e-10) == "best"
    for theta, verdict in ((0.031, "best"), (0.028, "settled")):
        policy = begun(theta=theta, epoch=20, patience=1, stalled=1, train=0.5, held=0.5)
        assert judged(policy, 0.5) == verdict


def test_a_state_two_percent_worse_than_the_best_is_regretted():
    for last, regrets in ((0.5, False), (0.505, False), (0.52, True)):
        policy = begun(held=0.5, last=last)
        assert policy.regrets == regrets


def test_rows_are_caught_up_with_every_other_epoch_until_the_end():
    turns = [begun(epoch=epoch).catches_up for epoch in range(4)]
    assert turns == [False, True, False, True]
    assert not begun(epoch=1, polishing=True).catches_up
    assert not begun(epoch=1, kind="logistic").catches_up


# --- The rank -----------------------------------------------------------------------------------


def selected(held, *, used=None, epoch=0, **state):
    """A policy and factors after a review with these held-out errors."""
    policy, factors = begun(columns=used or len(held), epoch=epoch, **state), matrix(6)
    factors.X[:] = 1.0
    factors.spectrum = np.ones(6)
    policy.rms = 0.0
    judged(policy, 0.1, held, factors=factors)
    return policy, factors


def test_directions_that_do_harm_are_cut_off_and_half_as_many_may_grow_again():
    policy, factors = selected([0.9, 0.5, 0.6, 0.7, 0.8, 0.9])
    assert (policy.columns, policy.useful, policy.held) == (3, 2, pytest.approx(0.5))
    assert policy.rms == pytest.approx(0.5)  # what is left has to be damped for its own error
    assert (factors.X[:, :2] == 1).all() and (factors.X[:, 3:] == 0).all()
    fresh = factors.X[:, 2]
    assert 0 < np.abs(fresh).max() < 0.01
    assert fresh.std() == pytest.approx(1e-3 * np.sqrt(0.5), rel=0.3)
    assert (factors.spectrum[2:] == 0).all()


def test_a_direction_has_to_help_by_a_percent():
    assert selected([0.9, 0.5, 0.4, 0.3985])[0].useful == 3
    assert selected([0.9, 0.5, 0.4, 0.392])[0].useful == 4
    policy, _ = selected([0.9, 0.398, 0.4])
    assert policy.columns == 3  # not worse by a percent
    policy, _ = selected([0.9, 0.39, 0.4, 0.4])
    assert policy.columns == 3  # cut to two, and one more may grow


@pytest.mark.parametrize(("epoch", "columns"), [(6, 6), (7, 3)])
def test_every_eighth_epoch_what_does_not_help_goes(epoch, columns):
    policy, _ = selected([0.9, 0.4, 0.4, 0.4, 0.4, 0.399], epoch=epoch)
    assert policy.columns == columns


def test_directions_are_added_while_the_last_one_helps():
    assert selected([0.9, 0.8, 0.5])[0].columns == 5
    assert selected([0.9, 0.5, 0.499])[0].columns == 3
    policy, factors = selected([0.9])
    assert policy.columns == 2
    assert 0 < np.abs(factors.X[:, 1]).max() < 0.01


# --- The held-out entries join in ---------------------------------------------------------------


def floored(left: int, **state) -> AutoPolicy:
    """A policy that has seen the floor, with so many epochs to go after the next review."""
    return begun(columns=1, patience=1, epoch=20, train=0.5, held=0.5, total=1900,
                 until=2000 + 100 * left, **state)  # fmt: skip


def test_held_out_entries_are_given_back_in_the_last_ten_epochs():
    for left, verdict in ((30, "best"), (11, "best"), (10, "polish"), (6, "polish"), (4, "best")):
        assert judged(floored(left), 0.5, [0.5], factors=matrix(1)) == verdict, left
    assert judged(floored(30, whole=True), 0.5, [0.5], factors=matrix(1)) == "polish"
    assert judged(begun(columns=1, until=600), 0.5, [0.5], factors=matrix(1)) == "best"


@pytest.mark.parametrize(
    ("left", "whole", "epochs"),
    [(10, False, 10), (6, False, 6), (99, False, 10), (99, True, 60)],
)
def test_polishing_goes_from_a_third_of_a_step_to_a_hundredth(left, whole, epochs):
    policy, factors = floored(left, useful=1, whole=whole), matrix(2)
    policy.saw(100 * 0.25, 100)
    policy.epoch = 20
    policy.polish(factors, open_engine())
    assert (policy.theta, policy.polishing) == (0.3, True)
    verdicts, thetas = [], []
    while "settled" not in verdicts:
        verdicts.append(judged(policy, 0.5))
        thetas.append(policy.theta)
    assert len(verdicts) == pytest.approx(epochs, abs=1)
    assert thetas[epochs - 1] == pytest.approx(0.01)


def test_what_is_known_as_a_whole_is_approximated_with_all_directions():
    """Of noise of size s in a d x d matrix the largest directions are 2 sqrt(d) s."""
    policy, factors = floored(30, useful=1, whole=True, rms=0.5), matrix(3)
    policy.saw(25.0, 100)
    policy.epoch = 20
    policy.polish(factors, open_engine())
    assert policy.columns == 3
    sown = (factors.X[:, 1:] ** 2).sum(axis=0)
    assert sown == pytest.approx([2 * np.sqrt(40) * policy.rms] * 2, rel=0.5)
    policy = floored(10, useful=1)
    policy.saw(25.0, 100)
    policy.polish(factors, open_engine())
    assert policy.columns == 1


# --- Streams ------------------------------------------------------------------------------------


def followed(policy, errors):
    for error in errors:
        assert judged(policy, error, streaming=True) == "best"
    return policy.theta


def test_a_stream_tries_smaller_steps_but_stays_awake():
    assert followed(begun(train=0.5), [0.5] * 3) == pytest.approx(0.7**3)
    assert followed(begun(train=0.5), [0.5] * 30) == pytest.approx(0.05)


def test_a_stream_turns_around_when_errors_rise():
    policy = begun(train=0.5, theta=0.5)
    assert followed(policy, [0.5, 0.502]) == pytest.approx(0.5 * 0.7**2)  # within a percent
    assert followed(policy, [0.51, 0.51]) == pytest.approx(0.5)
    assert followed(policy, [0.52]) == pytest.approx(0.35)


def test_a_stream_that_jumps_is_followed_at_once():
    assert followed(begun(train=0.5, theta=0.1), [0.74]) < 0.2
    assert followed(begun(train=0.5, theta=0.1), [0.76]) == 1.0
    assert followed(begun(train=0.5, theta=0.1), [0.4]) == pytest.approx(0.12)
    polished = begun(train=0.5, theta=0.1, polishing=True, gap=0.1, turn=0.9)
    assert followed(polished, [0.5]) == pytest.approx(0.07)
    assert (polished.polishing, polished.gap) == (False, 1.0)


# --- Hold-outs ----------------------------------------------------------------------------------


def test_the_policy_knows_whether_every_entry_is_known():
    for M, whole in ((np.ones((30, 40)), True), (np.where(np.eye(40), np.nan, 1.0), False)):
        policy = AutoPolicy()
        policy.hold_out(Observations.matrix(M), np.random.default_rng(0))
        assert policy.whole == whole
