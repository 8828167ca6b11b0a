"""What a fit does where steps alone are not enough. Each test fails without its part of that."""

import warnings

import numpy as np
import pytest
import scipy.sparse as sp

from scaledsgd import DistanceCompleter, MatrixCompleter, Observations, load
from scaledsgd.core.losses import sigmoid
from scaledsgd.engines.cpu import normal_kernels
from scaledsgd.engines.cpu.crew import Crew
from scaledsgd.engines.cpu.engine import CpuEngine
from scaledsgd.research.synthetic import completion_problem
from scaledsgd.training import completion, gauss_newton, ridge
from scaledsgd.training.history import UndeterminedWarning
from scaledsgd.training.metrics import recovery_error
from scaledsgd.training.ridge import Biases


def problem(d=120, r=3, kappa=1.0, c=2.0, seed=0, symmetric=False):
    """Entries of a matrix of rank r, c for each number that it is told by."""
    numbers = r * (d - (r - 1) / 2) if symmetric else r * (2 * d - r)
    index, y, L, R = completion_problem((d, d), r, kappa, round(c * numbers), seed, symmetric)
    return index, y, L, R


def fitted(index, y, shape, rank, *, symmetric=False, sample_weight=None, **how):
    loss = how.get("loss", "squared")
    seen = Observations.pairs(*index.T, y, shape=shape, symmetric=symmetric, loss=loss)
    model = MatrixCompleter(rank, symmetric=symmetric, random_state=0, **how)
    return model.fit(seen, sample_weight=sample_weight)


def error(model, L, R):
    return recovery_error(model.row_factors_, model.column_factors_, L, R)


def rated(m=150, n=120, count=6000, seed=0):
    """Ratings from 1 to 5 with a mean, biases, six weak directions and much noise; and as many more
    to be predicted."""
    rng = np.random.default_rng(seed)
    at = rng.choice(m * n, 2 * count, replace=False)
    i, j = np.divmod(at, n)
    L, R = rng.standard_normal((m, 6)), rng.standard_normal((n, 6))
    truth = 3.5 + 0.4 * rng.standard_normal(m)[i] + 0.5 * rng.standard_normal(n)[j]
    y = truth + 0.15 * (L[i] * R[j]).sum(axis=1) + 0.8 * rng.standard_normal(len(at))
    return (i[:count], j[:count], y[:count]), (i[count:], j[count:], y[count:])


# --- Few samples --------------------------------------------------------------------------------


@pytest.mark.parametrize("rank", [3, 6, "auto"])
@pytest.mark.parametrize("symmetric", [False, True])
def test_twice_as_many_samples_as_numbers_are_enough(rank, symmetric):
    index, y, L, R = problem(symmetric=symmetric, c=2.2, seed=3)
    model = fitted(index, y, (120, 120), rank, symmetric=symmetric)
    seen = np.bincount(index.ravel() if symmetric else index[:, 0], minlength=120)
    assert error(model, L, R) < 1e-6 or seen.min() < 3
    assert model.effective_rank_ == 3


@pytest.mark.parametrize("symmetric", [False, True])
def test_the_smallest_of_five_orders_is_found_in_few_samples(symmetric):
    """A ridge on all directions alike would bias the large ones by as much as the small ones are
    large."""
    index, y, L, R = problem(d=200, r=5, kappa=1e5, c=1.6, seed=2, symmetric=symmetric)
    fewest = np.bincount(index.ravel() if symmetric else index[:, 0], minlength=200).min()
    assert fewest >= 5 and (symmetric or np.bincount(index[:, 1], minlength=200).min() >= 5)
    model = fitted(index, y, (200, 200), "auto", symmetric=symmetric)
    assert error(model, L, R) < 1e-10 and model.history_.stopped == "solved"


def test_mirror_images_are_not_held_out_alone():
    """Twice the rank, both (i, j) and (j, i): the hold-out sees what is a direction too many."""
    index, y, L, R = problem(d=300, symmetric=True, c=3.0)
    both = np.concatenate([index, index[:, ::-1]]), np.append(y, y)
    model = fitted(*both, (300, 300), 6, symmetric=True)
    assert model.effective_rank_ == 3 and error(model, L, R) < 1e-6
    assert model.history_.stopped != "undetermined"


def test_rows_that_are_not_determined_are_named():
    index, y, _, _ = problem(c=4.0)
    kept = (index[:, 0] != 7) | (np.cumsum(index[:, 0] == 7) <= 2)  # two entries for three numbers
    with pytest.warns(UndeterminedWarning, match=r"1 row\(s\) \(7\)"):
        model = fitted(index[kept], y[kept], (120, 120), 3)
    assert model.history_.stopped == "undetermined"
    names = {"who": [f"u{i}" for i in index[kept, 0]], "what": index[kept, 1], "y": y[kept]}
    with pytest.warns(UndeterminedWarning, match=r"\(u7\)") as told:
        MatrixCompleter(3, random_state=0).fit(names, row="who", column="what", value="y")
    assert [one.filename for one in told] == [__file__]  # the user's line, not one of ours


def test_one_column_that_is_not_determined_is_not_all_rows():
    index, y, _, _ = problem(c=2.4)
    kept = (index[:, 1] != 7) | (np.cumsum(index[:, 1] == 7) <= 2)
    with pytest.warns(UndeterminedWarning, match=r"1 column\(s\) \(7\) have") as told:
        fitted(index[kept], y[kept], (120, 120), 3)
    assert "row(s)" not in str(told[0].message)


@pytest.mark.parametrize("noise", [0.0, 0.1])
def test_groups_that_few_entries_tie_together_are_named(noise):
    """Each group is told by itself; of what one is to the other, nine numbers, by five entries."""
    rng = np.random.default_rng(0)
    i, j = np.indices((100, 100)).reshape(2, -1)
    inside = np.flatnonzero((i < 40) == (j < 40))
    between = np.setdiff1d(np.arange(10_000), inside)
    at = np.append(rng.choice(inside, 3600, replace=False), rng.choice(between, 5, replace=False))
    L, R = rng.standard_normal((2, 100, 3))
    y = (L[i[at]] * R[j[at]]).sum(axis=1) + noise * rng.standard_normal(len(at))
    with pytest.warns(UndeterminedWarning, match=r"40 row\(s\) \(0, 1, 2, ...\)"):
        fitted(np.stack([i, j], axis=1)[at], y, (100, 100), 3)


def test_a_mean_is_not_noise():
    """What a ridge beside biases explains well, steps may explain to the last digit."""
    rng = np.random.default_rng(0)
    L, R = rng.standard_normal((120, 2)) * [1.0, 0.1], rng.standard_normal((100, 2))
    i, j = np.divmod(rng.choice(12_000, 4000, replace=False), 100)
    y = 8 + (L[i] * R[j]).sum(axis=1)
    model = fitted(np.stack([i, j], axis=1), y, (120, 100), "auto")
    assert np.abs(model.predict((i, j)) - y).max() < 1e-4


def test_fewer_samples_than_numbers_are_not_silently_fitted():
    index, y, _, _ = problem(c=0.9)
    with pytest.warns(UndeterminedWarning):
        fitted(index, y, (120, 120), 3)


def test_a_fit_of_all_entries_but_those_held_out_is_an_accident():
    rng = np.random.default_rng(0)
    L, R = rng.standard_normal((2, 70, 5))  # 675 numbers
    i, j = np.divmod(rng.choice(70 * 70, 660, replace=False), 70)
    y = (L[i] * R[j]).sum(axis=1)
    with pytest.warns(UndeterminedWarning, match="held-out entries"):
        fitted(np.stack([i, j], axis=1), y, (70, 70), 5)


def test_gauss_newton_takes_the_step_of_least_squares():
    """From near, its first step is that of the dense system."""
    rng = np.random.default_rng(0)
    X = rng.standard_normal((12, 2))
    index = np.stack(np.divmod(rng.choice(66, 50, replace=False), 6), axis=1)
    index[:, 1] += 6
    index = index[index[:, 0] < 6]
    Z = X + 1e-4 * rng.standard_normal(X.shape)

    def scores(X):
        return (X[index[:, 0]] * X[index[:, 1]]).sum(axis=1)

    y = scores(Z)
    found, fit = gauss_newton.descend(X, index, y, scores)
    assert fit < 1e-12
    J = np.zeros((len(y), 12, 2))
    J[np.arange(len(y)), index[:, 0]] += X[index[:, 1]]
    J[np.arange(len(y)), index[:, 1]] += X[index[:, 0]]
    dense = np.linalg.lstsq(J.reshape(len(y), -1), y - scores(X), rcond=None)[0].reshape(X.shape)
    assert scores(X + dense) == pytest.approx(scores(found), abs=1e-6)


@pytest.mark.parametrize("begin", [0, 40])
def test_threads_change_nothing(monkeypatch, begin):
    """Of two sides one is eliminated; of one, all are solved for at once: it is the same step."""
    index, y, L, R = problem(d=40, c=3.0)
    index[:, 1] += 40
    X = np.concatenate([L, R]) + 0.01 * np.random.default_rng(0).standard_normal((80, 3))

    def descended(jobs):
        def scores(X):
            return (X[index[:, 0]] * X[index[:, 1]]).sum(axis=1)

        return gauss_newton.descend(X.copy(), index, y, scores, begin=begin, crew=Crew(jobs))

    alone, fit = descended(1)
    monkeypatch.setattr(normal_kernels, "_WOKEN", 1)
    assert fit < 1e-12 and np.array_equal(alone, descended(3)[0])


# --- Noise --------------------------------------------------------------------------------------


def test_ratings_get_biases_and_a_ridge():
    shape = 300, 200
    (i, j, y), (ti, tj, ty) = rated(*shape, 20_000)
    seen = Observations.pairs(i, j, y, shape=shape)
    model = MatrixCompleter("auto", random_state=0).fit(seen)
    assert model.history_.stopped == "ridge" and model._trainer.ridge > 0
    assert model.intercept_ == pytest.approx(3.5, abs=0.2)

    def rmse(model):
        return np.sqrt(np.mean((model.predict((ti, tj)) - ty) ** 2))

    plain = MatrixCompleter("auto", random_state=0, center=False, regularization=0).fit(seen)
    biases = Biases.fit(seen[:], shape).of(np.stack([ti, tj], axis=1))
    assert rmse(model) < 0.995 * np.sqrt(np.mean((biases - ty) ** 2))
    assert rmse(model) < 0.995 * rmse(plain)


def test_a_strong_signal_among_ratings_is_learned():
    """As well as with any ridge that is given."""
    rng = np.random.default_rng(0)
    i, j = np.divmod(rng.choice(60_000, 20_000, replace=False), 150)
    L, R = rng.standard_normal((400, 12)), rng.standard_normal((150, 12))
    y = 3 + rng.standard_normal(400)[i] + 0.3 * (L[i] * R[j]).sum(axis=1)
    y += 0.6 * rng.standard_normal(len(y))
    seen = Observations.pairs(i[2000:], j[2000:], y[2000:], shape=(400, 150))

    def rmse(regularization):
        model = MatrixCompleter("auto", random_state=0, regularization=regularization).fit(seen)
        return np.sqrt(np.mean((model.predict((i[:2000], j[:2000])) - y[:2000]) ** 2))

    assert rmse("auto") < 1.005 * min(map(rmse, (0.2, 0.35, 0.5)))


def test_calm_steps_need_no_cap_unless_a_row_stands_out(monkeypatch):
    """Without it an epoch takes less, and the result is the same but for rounding."""
    (i, j, y), _ = rated()
    seen, caps = Observations.pairs(i, j, y, shape=(150, 120)), []
    run = CpuEngine.run

    def told(self, factors, P, rates, loss, portion, cap=np.inf):
        caps.append(cap)
        return run(self, factors, P, rates, loss, portion, cap)

    monkeypatch.setattr(CpuEngine, "run", told)

    def learned():
        caps.clear()
        return MatrixCompleter("auto", random_state=0, regularization=0.5).fit(seen).row_factors_

    free = learned()
    assert caps.count(np.inf) > len(caps) / 3 and np.inf not in caps[:6]
    monkeypatch.setattr(ridge, "_CALM_CAP", 0.0)
    np.testing.assert_allclose(learned(), free, rtol=1e-3, atol=1e-5)
    assert np.inf not in caps


def test_intervals_hold_what_they_promise():
    (i, j, y), (ti, tj, ty) = rated(seed=1)
    model = MatrixCompleter("auto", random_state=0).fit(
        Observations.pairs(i, j, y, shape=(150, 120))
    )
    z, std = model.predict((ti, tj), return_std=True)
    assert 0.85 < np.mean(np.abs(z - ty) < 1.645 * std) < 0.95
    few, many = np.argsort(np.bincount(i))[[0, -1]]
    alone = [float(model.predict(([row], [0]), return_std=True)[1][0]) for row in (few, many)]
    assert alone[0] > alone[1]
    assert model.predict(([few, many], [0, 0]), return_std=True)[1] == pytest.approx(alone)


def test_a_model_with_biases_comes_back_and_fills_rows_in(tmp_path):
    (i, j, y), _ = rated()
    model = MatrixCompleter("auto", random_state=0).fit(
        Observations.pairs(i, j, y, shape=(150, 120))
    )
    model.save(tmp_path / "model")
    again = load(tmp_path / "model")
    for one, other in zip(model.predict((i, j), True), again.predict((i, j), True), strict=True):
        assert np.array_equal(one, other)
    rows = np.full((150, 120), np.nan)
    rows[i, j] = y
    assert np.corrcoef(again.predict(rows)[i, j], model.predict((i, j)))[0, 1] > 0.95
    again.partial_fit(rows)
    assert np.sqrt(np.mean((again.predict((i, j)) - y) ** 2)) < 1.0


@pytest.mark.slow
def test_noise_alone_has_no_directions():
    rng = np.random.default_rng(0)
    i, j = np.divmod(rng.choice(200 * 150, 5000, replace=False), 150)
    for rank in (3, "auto"):
        model = fitted(np.stack([i, j], axis=1), rng.standard_normal(5000), (200, 150), rank)
        assert model.effective_rank_ == 0
        assert np.abs(model.predict((i, j))).max() < 1e-3


@pytest.mark.parametrize("how", [{"center": True}, {"regularization": 0.5}])
def test_settings_that_are_for_ratings_are_refused_elsewhere(how):
    M = np.random.default_rng(0).random((30, 30))
    for other in ({"symmetric": True}, {"loss": "logistic"}, {"learning_rate": 0.1}):
        with pytest.raises(ValueError, match="center and regularization"):
            MatrixCompleter(2, **how, **other).fit(M @ M.T / 30)


def test_biases_are_those_of_a_two_way_table():
    rng = np.random.default_rng(0)
    b, c = rng.standard_normal(40), rng.standard_normal(30)
    table = 2.0 + b[:, None] + c
    seen = Observations.matrix(table)
    assert np.std(Biases.fit(seen, (40, 30)).of(seen.index) - seen.targets) < 0.25 * table.std()


# --- Weights ------------------------------------------------------------------------------------


def noisy(noise=0.3, c=8.0):
    """Entries of rank 3 and size 1 with noise."""
    index, y, *_ = problem(c=c)
    y = y / np.sqrt(np.mean(y**2))
    return index, y + noise * np.random.default_rng(1).standard_normal(len(y))


def test_a_weight_is_that_many_mentions():
    index, y = noisy()
    times = np.random.default_rng(2).integers(0, 4, len(y))
    weighed = fitted(index, y, (120, 120), 3, sample_weight=0.7 * times)
    twice = np.repeat(np.arange(len(y)), times)
    repeated = fitted(index[twice], y[twice], (120, 120), 3)
    plain = fitted(index, y, (120, 120), 3)
    at = tuple(np.indices((120, 120)).reshape(2, -1))

    def apart(one, other):
        return np.sqrt(np.mean((one.predict(at) - other.predict(at)) ** 2))

    assert apart(weighed, repeated) < 0.3 * apart(plain, repeated)


def test_the_weighed_loss_is_at_its_least():
    """Of all that was tried from where the fit ended, by exact steps on all rows."""
    index, y = noisy()
    w = np.random.default_rng(2).exponential(size=len(y))
    model = fitted(index, y, (120, 120), 3, sample_weight=w)
    at = np.array([0, 120])

    def scores(X):
        return (X[index[:, 0]] * X[index[:, 1] + 120]).sum(axis=1)

    X = model.factors.X.astype(np.float64)
    before = np.sqrt(w @ (scores(X) - y) ** 2 / (w @ y**2))
    _, fit = gauss_newton.descend(X.copy(), index + at, y + 1j * w, scores)
    assert fit <= before < 1.02 * fit
    _, plain = gauss_newton.descend(X.copy(), index + at, y, scores)
    assert plain < 0.97 * np.sqrt(np.sum((scores(X) - y) ** 2) / (y @ y))


@pytest.mark.parametrize("rank", [3, "auto"])
def test_what_has_hardly_a_weight_does_not_matter(rank):
    index, y, L, R = problem(c=6.0)
    rng = np.random.default_rng(0)
    wrong = rng.random(len(y)) < 0.2
    bad = np.where(wrong, 10 * y.std() * rng.standard_normal(len(y)), y)
    model = fitted(index, bad, (120, 120), rank, sample_weight=np.where(wrong, 1e-14, 1.0))
    assert error(model, L, R) < 1e-4 and model.effective_rank_ == 3


def test_weights_of_ratings_and_of_few_samples():
    (i, j, y), (ti, tj, ty) = rated()
    w = np.where(np.random.default_rng(0).random(len(y)) < 0.5, 0.01, 1.0)
    noise = np.where(w < 1, 3 * np.random.default_rng(1).standard_normal(len(y)), 0)
    seen = np.stack([i, j], axis=1)

    def rmse(**how):
        model = fitted(seen, y + noise, (150, 120), "auto", center=True, regularization=0.6, **how)
        return np.sqrt(np.mean((model.predict((ti, tj)) - ty) ** 2))

    assert rmse(sample_weight=w) < 0.97 * rmse()
    index, y, L, R = problem(c=2.2, seed=3)
    model = fitted(index, y, (120, 120), 3, sample_weight=1 + np.arange(len(y)) % 5)
    assert error(model, L, R) < 1e-6


def test_weights_by_any_name(tmp_path):
    M = np.random.default_rng(0).standard_normal((20, 2)) @ np.ones((2, 15))
    M[::3, ::4] = np.nan
    w = np.random.default_rng(1).random(M.shape)
    i, j = np.nonzero(~np.isnan(M))
    table = {"i": i, "j": j, "y": M[i, j], "w": w[i, j]}

    def predicted(*data, **how):
        model = MatrixCompleter(2, random_state=0).fit(*data, **how)
        return model.predict((i, j))

    of_matrix = predicted(M, sample_weight=sp.csr_array(w))
    seen = Observations.matrix(M)
    assert np.array_equal(of_matrix, predicted(seen, sample_weight=w[i, j]))
    of_rows = predicted(M, sample_weight=w[:, 0])
    assert np.array_equal(of_rows, predicted(seen, sample_weight=w[i, 0]))
    by_name = predicted(table, row="i", column="j", value="y", sample_weight="w")
    assert by_name == pytest.approx(of_matrix, abs=1e-6)
    v = w[:, 0]
    for wrong, why in (
        (v[1:], "weights for"),
        (-v, "negative"),
        (0 * v, "all weights are zero"),
        (v * np.nan, "finite"),
        (sp.csr_array(w.T), "shape"),
        (w, "list"),
    ):
        with pytest.raises(ValueError, match=why):
            predicted(M, sample_weight=wrong)
    model = MatrixCompleter(2, random_state=0).partial_fit(M, sample_weight=v)
    assert np.isfinite(model.predict((i, j))).all()


# --- Outliers -----------------------------------------------------------------------------------


def spiked(y, share, seed=0):
    """The targets, a share of them wrong by ten times their size."""
    rng = np.random.default_rng(seed)
    size = np.sqrt(np.mean(y**2))
    return np.where(rng.random(len(y)) < share, y + 10 * size * rng.standard_normal(len(y)), y)


@pytest.mark.parametrize(("share", "rank", "symmetric"), [(0.01, 6, False), (0.05, 3, True)])
def test_outliers_do_not_matter_to_hubers_loss(share, rank, symmetric):
    index, y, L, R = problem(c=9.0, kappa=100.0, symmetric=symmetric)
    bad = spiked(y, share)
    model = fitted(index, bad, (120, 120), rank, symmetric=symmetric, loss="huber")
    assert error(model, L, R) < 1e-6 and model.effective_rank_ == 3
    assert error(fitted(index, bad, (120, 120), rank, symmetric=symmetric), L, R) > 0.05


def test_outliers_in_noise_hardly_matter():
    index, y, L, R = problem(c=9.0)
    rng, size = np.random.default_rng(1), np.sqrt(np.mean(y**2))
    y = y + 0.1 * size * rng.standard_normal(len(y))
    best = error(fitted(index, y, (120, 120), 3), L, R)
    robust = {
        share: fitted(index, spiked(y, share), (120, 120), 3, loss="huber", n_jobs=2)
        for share in (0.0, 0.03)
    }
    assert error(robust[0.0], L, R) < 1.1 * best and error(robust[0.03], L, R) < 1.2 * best
    assert robust[0.03]._trainer.policy.threshold == pytest.approx(0.1 * size * 1.345, rel=0.2)
    losses = robust[0.03].history_["loss"]  # in units of the targets, whatever the threshold
    assert losses[-1] < 0.2 * losses[0]


def test_a_robust_model_goes_on(tmp_path):
    index, y, L, R = problem(c=9.0)
    model = fitted(index, spiked(y, 0.03), (120, 120), 3, loss="huber")
    model.save(tmp_path / "model")
    again = load(tmp_path / "model")
    rows = np.full((120, 120), np.nan)
    rows[tuple(index.T)] = spiked(y, 0.03, seed=1)
    again.partial_fit(rows)
    assert error(again, L, R) < 1e-3
    filled = again.predict(rows[:20])  # by a fit that its own outliers do not lead astray
    assert np.median(np.abs(filled - (L @ R.T)[:20])) < 1e-3 * np.abs(L @ R.T).max()


def test_a_row_whose_outlier_cannot_be_told_is_named():
    index, y, *_ = problem(c=9.0)
    kept = (index[:, 0] != 7) | (np.cumsum(index[:, 0] == 7) <= 4)  # three numbers, one is wrong
    index, y = index[kept], spiked(y[kept], 0.01)
    y[np.flatnonzero(index[:, 0] == 7)[0]] = 50 * y.std()
    with pytest.warns(UndeterminedWarning, match=r"1 row\(s\) \(7\)"):
        fitted(index, y, (120, 120), 3, loss="huber")


@pytest.mark.parametrize("how", [{"learning_rate": 0.1}, {"refresh": "sample"}, {"scaled": False}])
def test_hubers_loss_needs_its_own_steps(how):
    index, y, *_ = problem()
    with pytest.raises(ValueError, match="huber"):
        fitted(index, y, (120, 120), 3, loss="huber", **how)


# --- Bits ---------------------------------------------------------------------------------------


def test_bits_of_a_weak_signal_are_not_overfitted():
    rng = np.random.default_rng(0)
    left, right = rng.standard_normal((2, 200, 2))
    chances = sigmoid(left @ right.T / np.sqrt(2))
    i, j = np.nonzero(rng.random((200, 200)) < 0.12)
    bits = (rng.random(len(i)) < chances[i, j]).astype(float)
    index = np.stack([i, j], axis=1)

    def wrong(rank="auto", **how):
        model = fitted(index, bits, (200, 200), rank, loss="logistic", **how)
        assert rank in ("auto", model.factors.rank)
        assert np.isfinite(model.factors.X).all()
        z = model.row_factors_ @ model.column_factors_.T
        return np.sqrt(np.mean((sigmoid(z) - chances) ** 2))

    assert wrong() < 0.95 * chances.std() < 0.95 * wrong(regularization=0)
    assert wrong(2) < 1.01 * wrong()
    # Of probabilities nothing is chance, and there is no ridge.
    exact = fitted(index, chances[i, j], (200, 200), 2, loss="logistic")
    assert exact.history_.stopped != "ridge"


# --- What is not said ---------------------------------------------------------------------------


def test_an_exact_fit_that_is_not_the_only_one_is_not_silent():
    """A row of three entries, one of them in a column that is known by no other."""
    index, y, *_ = problem(c=2.4, seed=3)
    lonely = np.flatnonzero(index[:, 1] == 5)[3:]
    index, y = np.delete(index, lonely, axis=0), np.delete(y, lonely)
    row = index[index[:, 1] == 5][0, 0]
    others = np.flatnonzero((index[:, 0] == row) & (index[:, 1] != 5))[2:]
    index, y = np.delete(index, others, axis=0), np.delete(y, others)
    with pytest.warns(UndeterminedWarning, match="too few"):
        model = fitted(index, y, (120, 120), 3)
    assert row in model._trainer.undetermined[0] and 5 in model._trainer.undetermined[1]


def test_noise_that_few_entries_amplify_is_not_silent():
    index, y = noisy(noise=0.1, c=3.0)
    kept = (index[:, 0] >= 10) | (np.arange(len(y)) % 5 < 1)  # ten rows of a few entries each
    with pytest.warns(UndeterminedWarning, match="too few"):
        model = fitted(index[kept], y[kept], (120, 120), 3)
    assert (index[kept, 0] == 0).sum() == 3 and 0 in model._trainer.undetermined[0]


# --- Units --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("unit", "dtype"), [(1e-300, "float64"), (1e-30, "float32"), (1e90, "float64")]
)
def test_targets_of_any_size_are_learned(unit, dtype):
    index, y, L, R = problem(c=5.0)
    size = np.sqrt(np.mean(y**2))
    model = fitted(index, y / size * unit, (120, 120), 3, dtype=dtype)
    z = model.predict((index[:, 0], index[:, 1])).astype(float) / unit
    assert z == pytest.approx(y / size, abs=1e-5)
    assert model.singular_values_[0] / unit == pytest.approx(
        np.linalg.norm(L @ R.T, 2) / size, rel=1e-4
    )


@pytest.mark.parametrize("power", [1.0, 1.5])
def test_rows_that_fall_by_a_power_law_are_all_found(power):
    index, _, L, R = problem(d=300, c=5.0)
    L = L * (1.0 + np.random.default_rng(1).permutation(300))[:, None] ** -power
    y = (L[index[:, 0]] * R[index[:, 1]]).sum(axis=1)
    model = fitted(index, y, (300, 300), 3)
    assert error(model, L, R) < 1e-6
    small = np.argmin(np.abs(L).sum(axis=1))
    row = model.row_factors_[small] @ model.column_factors_.T
    assert row == pytest.approx(L[small] @ R.T, abs=1e-4 * np.abs(L[small] @ R.T).max())


def test_the_smallest_of_ten_orders_of_magnitude_is_known():
    index, y, *_ = problem(d=200, r=5, kappa=1e10, c=8.0)
    values = fitted(index, y, (200, 200), 5).singular_values_
    assert values[4] / values[0] == pytest.approx(1e-10, rel=1e-2)


# --- Distances ----------------------------------------------------------------------------------


def test_distances_of_neighbours_do_not_fold_up():
    points = np.random.default_rng(0).random((250, 2))
    i, j = np.triu_indices(250, 1)
    squared = ((points[i] - points[j]) ** 2).sum(axis=1)
    near = np.argsort(squared)[: len(squared) // 12]
    seen = Observations.pairs(i[near], j[near], squared[near], shape=(250, 250), loss="distance")
    model = DistanceCompleter(2, random_state=0).fit(seen)
    assert np.abs(model.align(range(250), points) - points).max() < 1e-6


def test_few_distances_do_not_fold_up_in_silence():
    found = 0
    for seed in range(11):
        rng = np.random.default_rng(seed)
        points, (i, j) = rng.random((30, 2)), np.triu_indices(30, 1)
        far = np.sum((points[i] - points[j]) ** 2, axis=1)
        known = rng.random(len(i)) < 0.3
        seen = Observations.pairs(
            i[known], j[known], far[known], shape=(30, 30), loss="distance", symmetric=True
        )
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UndeterminedWarning)
            model = DistanceCompleter(2, random_state=0).fit(seen)
        right = np.allclose(model.predict((i, j)), far, atol=1e-6)
        assert right or model.history_.stopped == "undetermined"
        found += right
    assert found >= 7


def test_a_point_and_its_mirror_image_are_not_told_apart():
    rng = np.random.default_rng(0)
    points, (i, j) = rng.random((12, 2)), np.triu_indices(12, 1)
    known = (i != 0) | (j < 3)  # of the first, two distances
    far = np.sum((points[i] - points[j]) ** 2, axis=1)
    X = np.full((12, 12), np.nan)
    X[i[known], j[known]] = far[known]
    with pytest.warns(UndeterminedWarning, match=r"1 row\(s\) \(0\)"):
        DistanceCompleter(2, random_state=0).fit(X)


def test_attempts_leave_the_input_alone():
    index, y, _, _ = problem(c=2.0)
    seen = Observations.pairs(*index.T, y, shape=(120, 120))
    before = seen.index.copy(), seen.targets.copy()
    MatrixCompleter(3, random_state=0).fit(seen)
    assert np.array_equal(seen.index, before[0]) and np.array_equal(seen.targets, before[1])
    assert completion._SLOW > 3
