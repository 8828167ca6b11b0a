"""What the automatic policy is for, on small problems: each would fail without one of its parts."""

import numpy as np
import pytest

from scaledsgd import MatrixCompleter, Observations
from scaledsgd.training.auto_policy import AutoPolicy


def entries(shape, rank, count, *, noise=0.0, seed=0):
    """Entries of a product of Gaussian factors, and the product."""
    rng = np.random.default_rng(seed)
    L, R = (rng.standard_normal((rows, rank)) for rows in shape)
    at = rng.choice(shape[0] * shape[1], count, replace=False)
    i, j = np.divmod(at, shape[1])
    M = L @ R.T
    y = M[i, j] + noise * rng.standard_normal(count)
    return Observations.pairs(i, j, y, shape=shape), M


def product(model):
    return model.row_factors_ @ model.column_factors_.T


def test_held_out_entries_are_trained_on_in_the_end():
    """Five percent of noise: the floor is seen, and the last epochs see every sample."""
    seen, _ = entries((60, 50), 2, 1800, noise=0.5)
    model = MatrixCompleter(4, epochs=60, tol=0, random_state=0).fit(seen)
    samples = np.diff(model.history_["samples"], prepend=0)
    assert set(samples.tolist()) == {1740, 1800}
    assert samples[0] == 1740 and samples[-1] == 1800
    assert samples.tolist() == sorted(samples)
    assert model._trainer.policy.polishing


def test_a_whole_matrix_is_approximated_as_well_as_can_be():
    """With noise of full rank, the best approximation of rank 8 has eight directions of it."""
    rng = np.random.default_rng(0)
    A = rng.standard_normal((60, 3)) @ rng.standard_normal((3, 60)) + rng.standard_normal((60, 60))
    model = MatrixCompleter(8, tol=0, random_state=0).fit(A)
    best = np.sqrt((np.linalg.svd(A)[1][8:] ** 2).sum())
    assert np.linalg.norm(product(model) - A) < 1.01 * best


def fitted_with(monkeypatch, verdicts, **how):
    """A model whose policy says what it is told to after each epoch, and its products as they were
    when it said so."""
    seen, _ = entries((30, 30), 2, 700)
    products = []

    def review(self, factors, *_):
        self.samples, self.squares, self.epoch = 0, 0.0, self.epoch + 1
        products.append(factors.left @ factors.right.T)
        return verdicts[len(products) - 1]

    monkeypatch.setattr(AutoPolicy, "review", review)
    monkeypatch.setattr(AutoPolicy, "regrets", True)
    model = MatrixCompleter(2, epochs=len(verdicts), tol=0, random_state=0, **how).fit(seen)
    return model, products


def test_a_run_returns_to_its_best_state(monkeypatch):
    model, products = fitted_with(monkeypatch, ["", "best", "", ""])
    assert product(model) == pytest.approx(products[1])
    assert np.abs(products[3] - products[1]).max() > 1e-3


def test_polishing_begins_with_the_best_state(monkeypatch):
    began = []
    monkeypatch.setattr(
        AutoPolicy, "polish", lambda self, factors, _: began.append(factors.left @ factors.right.T)
    )
    _, products = fitted_with(monkeypatch, ["", "best", "", "polish"])
    assert began[0] == pytest.approx(products[1])


def test_what_is_taken_back_is_taken_back_as_a_whole(monkeypatch):
    """Factors, their spectrum and the number of directions in use."""
    states = []
    monkeypatch.setattr(AutoPolicy, "retreat", lambda self: True)
    real = AutoPolicy.review

    def spoil(self, factors, *rest):
        real(self, factors, *rest)
        if self.epoch < 3:
            states.append((factors.spectrum.copy(), self.columns, factors.left @ factors.right.T))
            return "best"
        factors.spectrum[:] = 7.0
        self.columns = 1
        return "bad"

    monkeypatch.setattr(AutoPolicy, "review", spoil)
    monkeypatch.setattr(AutoPolicy, "regrets", False)
    seen, _ = entries((30, 30), 2, 700)
    model = MatrixCompleter(2, epochs=3, tol=0, random_state=0).fit(seen)
    spectrum, columns, matrix = states[-1]
    assert model._trainer.policy.columns == columns == 2
    assert np.array_equal(model.factors.spectrum, spectrum)
    assert product(model) == pytest.approx(matrix)


def test_directions_are_found_in_a_basis_of_the_present(monkeypatch):
    """Held-out errors by rank mean something only where the Gram is diagonal."""
    monkeypatch.setattr("scaledsgd.core.factors._ENOUGH", 0)  # where a glance is enough,
    monkeypatch.setattr("scaledsgd.core.factors.CALM", 1e9)  # always
    real = AutoPolicy.review

    def look(self, factors, *rest):
        for side in factors.sides:
            assert np.abs(side.T @ side - np.diag(factors.spectrum)).max() < 1e-9
        return real(self, factors, *rest)

    monkeypatch.setattr(AutoPolicy, "review", look)
    seen, _ = entries((60, 50), 2, 1800, noise=0.3)
    assert MatrixCompleter(3, epochs=12, tol=0, random_state=0).fit(seen).history_.refreshes > 12


def test_a_cap_is_in_units_of_the_curvature():
    """A slope that bends a quarter as much may be followed four times as far."""
    from scaledsgd.engines.cpu.engine import CpuEngine

    caps = {}

    class Told(CpuEngine):
        def run(self, factors, P, rates, loss, samples, cap=np.inf):
            caps[loss.name] = float(cap)
            return super().run(factors, P, rates, loss, samples, cap)

    M = np.random.default_rng(0).random((9, 9))
    for loss in ("squared", "logistic"):
        MatrixCompleter(2, loss=loss, epochs=1, engine=Told()).fit(M)
    assert caps == pytest.approx({"squared": 1.7, "logistic": 6.8})
