"""What a fit does where steps alone are not enough. Each test fails without its part of that."""

import numpy as np
import pytest

from scaledsgd import DistanceCompleter, MatrixCompleter, Observations, load
from scaledsgd.research.synthetic import completion_problem
from scaledsgd.training import completion, gauss_newton
from scaledsgd.training.history import UndeterminedWarning
from scaledsgd.training.metrics import recovery_error
from scaledsgd.training.ridge import Biases


def problem(d=120, r=3, kappa=1.0, c=2.0, seed=0, symmetric=False):
    """Entries of a matrix of rank r, c for each number that it is told by."""
    numbers = r * (d - (r - 1) / 2) if symmetric else r * (2 * d - r)
    index, y, L, R = completion_problem((d, d), r, kappa, round(c * numbers), seed, symmetric)
    return index, y, L, R


def fitted(index, y, shape, rank, *, symmetric=False, **how):
    seen = Observations.pairs(*index.T, y, shape=shape, symmetric=symmetric)
    return MatrixCompleter(rank, symmetric=symmetric, random_state=0, **how).fit(seen)


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


def test_mirror_images_are_not_held_out_alone():
    """Twice the rank, both (i, j) and (j, i): the hold-out sees what is a direction too many."""
    index, y, L, R = problem(d=300, symmetric=True, c=3.0)
    both = np.concatenate([index, index[:, ::-1]]), np.append(y, y)
    model = fitted(*both, (300, 300), 6, symmetric=True)
    assert model.effective_rank_ == 3 and error(model, L, R) < 1e-6


def test_rows_that_are_not_determined_are_named():
    index, y, _, _ = problem(c=4.0)
    kept = (index[:, 0] != 7) | (np.cumsum(index[:, 0] == 7) <= 2)  # two entries for three numbers
    with pytest.warns(UndeterminedWarning, match=r"1 row\(s\) \(7\)"):
        model = fitted(index[kept], y[kept], (120, 120), 3)
    assert model.history_.stopped == "undetermined"
    names = {"who": [f"u{i}" for i in index[kept, 0]], "what": index[kept, 1], "y": y[kept]}
    with pytest.warns(UndeterminedWarning, match=r"\(u7\)"):
        MatrixCompleter(3, random_state=0).fit(names, row="who", column="what", value="y")


def test_fewer_samples_than_numbers_are_not_silently_fitted():
    index, y, _, _ = problem(c=0.9)
    with pytest.warns(UndeterminedWarning):
        fitted(index, y, (120, 120), 3)


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


# --- Noise --------------------------------------------------------------------------------------


def test_ratings_get_biases_and_a_ridge():
    (i, j, y), (ti, tj, ty) = rated()
    seen = Observations.pairs(i, j, y, shape=(150, 120))
    model = MatrixCompleter("auto", random_state=0).fit(seen)
    assert model.history_.stopped == "ridge" and model._trainer.ridge > 0
    assert model.intercept_ == pytest.approx(3.5, abs=0.2)

    def rmse(model):
        return np.sqrt(np.mean((model.predict((ti, tj)) - ty) ** 2))

    plain = MatrixCompleter("auto", random_state=0, center=False, regularization=0).fit(seen)
    biases = Biases.fit(seen[:], (150, 120)).of(np.stack([ti, tj], axis=1))
    assert rmse(model) < 0.995 * np.sqrt(np.mean((biases - ty) ** 2))
    assert rmse(model) < 0.995 * rmse(plain)


def test_intervals_hold_what_they_promise():
    (i, j, y), (ti, tj, ty) = rated(seed=1)
    model = MatrixCompleter("auto", random_state=0).fit(
        Observations.pairs(i, j, y, shape=(150, 120))
    )
    z, std = model.predict((ti, tj), return_std=True)
    assert 0.85 < np.mean(np.abs(z - ty) < 1.645 * std) < 0.95
    few, many = np.argsort(np.bincount(i))[[0, -1]]
    assert (
        model.predict(([few], [0]), return_std=True)[1]
        > model.predict(([many], [0]), return_std=True)[1]
    )


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


def test_attempts_leave_the_input_alone():
    index, y, _, _ = problem(c=2.0)
    seen = Observations.pairs(*index.T, y, shape=(120, 120))
    before = seen.index.copy(), seen.targets.copy()
    MatrixCompleter(3, random_state=0).fit(seen)
    assert np.array_equal(seen.index, before[0]) and np.array_equal(seen.targets, before[1])
    assert completion._SLOW > 3
