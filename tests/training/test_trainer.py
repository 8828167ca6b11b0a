import numpy as np
import pytest

from scaledsgd import DivergenceError, MatrixCompleter, Observations
from scaledsgd.core.factors import Factors
from scaledsgd.core.losses import LOSSES
from scaledsgd.engines.cpu.engine import CpuEngine
from scaledsgd.training.auto_policy import AutoPolicy
from scaledsgd.training.metrics import recovery_error
from scaledsgd.training.policy import Policy


def matrix(d=30, rank=3, seed=0):
    Z = np.random.default_rng(seed).standard_normal((d, rank))
    return Z @ Z.T


def test_evaluations_are_spread_over_the_epoch():
    told = []
    model = MatrixCompleter(
        rank=3, symmetric=True, epochs=2, evaluations=4, callbacks=[told.append], random_state=0
    ).fit(matrix())
    quarters = np.arange(1, 9) / 4
    assert [p.epoch for p in told] == pytest.approx(quarters, abs=2e-3)  # whole samples
    assert model.history_["epoch"] == pytest.approx([p.epoch for p in told])
    assert model.history_["samples"][-1] == 2 * 787  # 60 of 900 entries, and their mirror images


def test_the_loss_in_the_history_is_the_mean_loss():
    M = matrix()
    model = MatrixCompleter(rank=3, symmetric=True, random_state=0).partial_fit(M)
    X = model.factors_
    assert model.history_["loss"][-1] == pytest.approx(np.mean((X @ X.T - M) ** 2) / 2)


def test_one_epoch_holds_out_like_any_other_fit_and_a_stream_does_not():
    model = MatrixCompleter(rank=3, symmetric=True, epochs=1, random_state=0).fit(matrix())
    assert model.history_["samples"][-1] == 787
    assert model.partial_fit(matrix()).history_["samples"][-1] == 787 + 900


def test_a_run_stops_at_tol_or_when_a_callback_says_so():
    model = MatrixCompleter(rank=3, symmetric=True, epochs=500, tol=1e-6, random_state=0)
    model.fit(matrix())
    assert model.history_.stopped == "tol"
    assert model.history_["loss"][-1] <= 1e-6 < model.history_["loss"][-2]
    model.set_params(callbacks=[lambda p: p.epoch >= 3]).fit(matrix())
    assert model.history_.stopped == "callback"
    assert len(model.history_) == 3


def test_tol_is_a_share_of_what_there_is_to_learn():
    epochs = [
        len(MatrixCompleter(3, symmetric=True, tol=1e-6, random_state=0).fit(M).history_)
        for M in (matrix(), 1e3 * matrix())
    ]
    assert epochs[0] == epochs[1]


def test_every_callback_hears_of_every_evaluation():
    told = []
    callbacks = [lambda p: p.epoch >= 2, told.append]
    model = MatrixCompleter(3, symmetric=True, callbacks=callbacks, random_state=0).fit(matrix())
    assert (model.history_.stopped, len(told)) == ("callback", 2)


def test_factors_that_are_not_finite_end_a_run(monkeypatch):
    """Also where the residuals were: a row may blow up in its last step."""
    monkeypatch.setattr(CpuEngine, "finite", lambda *_: False)
    with pytest.raises(DivergenceError):
        MatrixCompleter(3, symmetric=True, learning_rate=0.1, random_state=0).fit(matrix())


def test_many_new_rows_begin_a_round():
    model = MatrixCompleter(3, symmetric=True, epochs=2, random_state=0).fit(matrix(100))
    trainer = model._trainer
    trainer.left, trainer.began = 7, 100
    trainer.grow((105, 105))
    assert trainer.left == 7
    trainer.grow((120, 120))
    assert trainer.left == 0


def test_a_stream_is_looked_back_on_after_eight_samples_a_row():
    rng, model = np.random.default_rng(0), MatrixCompleter(2, random_state=0)
    for batch, reviews in ((700, 0), (200, 1), (700, 1), (200, 2)):
        i, j = rng.integers(0, 50, (2, batch))
        model.partial_fit(Observations.pairs(i, j, np.sin(i + j), shape=(50, 50)))
        assert model._trainer.policy.epoch == reviews


def test_rounds_are_short_while_damping_falls():
    """P grows as its damping falls, whether or not the factors have moved."""
    trainer = MatrixCompleter(3, epochs=2, random_state=0).fit(matrix())._trainer
    policy = trainer.policy
    for rms, stretch in ((1.0, 2), (1.0, 4), (0.8, 2), (1e-3, 1)):
        policy.rms = rms
        policy.stretch = 1 if stretch == 2 and rms == 1 else policy.stretch
        trainer._begin_round(0.0)
        assert policy.stretch == stretch


def test_rounds_stretch_while_p_rests_and_shrink_when_it_moves():
    policy, factors = Policy(), Factors(np.eye(10, 2))
    for expected in (2, 4, 8, 16, 32, 32):
        policy.refreshed(moved=0.01, longest=32)
        assert policy.round_length(factors) == expected * 10
    policy.refreshed(moved=0.3, longest=32)
    assert policy.round_length(factors) == 160
    policy.refreshed(moved=0.9, longest=32)
    assert policy.round_length(factors) == 10


def test_an_automatic_run_that_blows_up_is_taken_back_and_goes_on(monkeypatch):
    monkeypatch.setattr(AutoPolicy, "cap", np.inf)
    start = AutoPolicy.starting_scale

    def too_bold(self, *args):
        self.theta = 40.0
        return start(self, *args)

    monkeypatch.setattr(AutoPolicy, "starting_scale", too_bold)
    model = MatrixCompleter(rank=3, symmetric=True, random_state=0).fit(matrix())
    assert model.history_.rollbacks > 0
    assert model.history_["loss"][-1] < 1e-6


def test_a_run_that_only_ever_gets_worse_settles_where_it_was_best(monkeypatch):
    monkeypatch.setattr(AutoPolicy, "review", lambda self, *_: "bad")
    model = MatrixCompleter(rank=3, symmetric=True, random_state=0).fit(matrix())
    assert (model.history_.stopped, model.history_.rollbacks) == ("settled", 6)


def test_steps_are_the_same_share_of_every_side():
    factors = Factors(np.zeros((14, 2)), rows=4, spectrum=np.zeros(2))
    left, right = AutoPolicy().rates(factors, LOSSES["squared"])
    assert left / right == pytest.approx(10 / 4)
    j, k, i = AutoPolicy().rates(factors, LOSSES["bpr"])
    assert j == k
    assert i / j == pytest.approx(10 / 4)


def test_damping_is_in_units_of_the_spectrum():
    policy = Policy(learning_rate=0.3, damping=2.0)
    policy.expects(0.5)
    factors = Factors(np.zeros((16, 1)))
    assert policy.eta(factors, LOSSES["squared"]) == pytest.approx(2 * 16 * 0.5)
    assert MatrixCompleter(learning_rate=0.3)._policy().damping == 0


@pytest.mark.parametrize(("turning", "bound"), [(0.0, 1e-9), (0.02, 0.1)])
def test_a_stream_is_followed_where_it_goes(turning, bound):
    """Five samples a row, then the truth turns a little: the step never falls asleep."""
    rng = np.random.default_rng(0)
    A, B, C = rng.standard_normal((3, 300, 3))
    model = MatrixCompleter(rank=3, random_state=0, evaluations=0)
    for batch in range(150):
        L = np.cos(turning * batch) * A + np.sin(turning * batch) * B
        i, j = rng.integers(0, 300, (2, 1500))
        model.partial_fit(Observations.pairs(i, j, (L[i] * C[j]).sum(axis=1), shape=(300, 300)))
    assert recovery_error(model.row_factors_, model.column_factors_, L, C) < bound


@pytest.mark.parametrize("rate", ["auto", 0.1])
def test_a_fit_that_is_never_looked_at_ends_like_any_other(rate):
    rng = np.random.default_rng(0)
    model = MatrixCompleter(rank=2, learning_rate=rate, evaluations=0, epochs=3, random_state=0)
    model.fit(rng.standard_normal((30, 2)) @ rng.standard_normal((2, 20)))
    assert model.history_.stopped and np.isfinite(model.factors.X).all()
