import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scaledsgd.core.losses import LOSSES


@pytest.mark.parametrize("loss", LOSSES.values(), ids=LOSSES)
@given(z=st.floats(-30, 30), share=st.floats(0, 1))
def test_the_slope_is_the_derivative_of_the_value(loss, z, share):
    low, high = (max(bound, -5) if bound < 0 else min(bound, 5) for bound in loss.bounds)
    y = low + share * (high - low)
    h = 1e-5
    difference = (loss.value(z + h, y) - loss.value(z - h, y)) / (2 * h)
    assert loss.slope(z, y) == pytest.approx(difference, rel=1e-6, abs=1e-7)
    bend = (loss.slope(z + h, y) - loss.slope(z - h, y)) / (2 * h)
    assert bend <= loss.curvature * (1 + 1e-6)


@pytest.mark.parametrize("loss", LOSSES.values(), ids=LOSSES)
def test_losses_stay_finite_far_out(loss):
    z = np.array([-1e4, 1e4], dtype=np.float32)
    with np.errstate(all="raise", under="ignore"):
        assert np.isfinite(loss.slope(z, np.float32(1))).all()
        assert np.isfinite(loss.value(z, np.float32(1))).all()


@pytest.mark.parametrize("loss", LOSSES.values(), ids=LOSSES)
def test_the_curvature_is_the_largest_there_is(loss):
    """Steps are capped by it: a bound that is too high would let them be too long."""
    z = np.linspace(-3, 3, 601)
    bend = np.diff(loss.slope(z, 0.5)) / np.diff(z)
    assert bend.max() == pytest.approx(loss.curvature, rel=1e-3)


@pytest.mark.parametrize("name", ["squared", "distance"])
def test_the_gain_is_how_much_further_a_step_moves_z(name):
    """Averaged over all pairs of rows, in units of the squared loss."""
    X = np.linalg.qr(np.random.default_rng(0).standard_normal((200, 4))).Q
    i, j = np.nonzero(~np.eye(200, dtype=bool))

    def moved(loss):
        rows = X[i], X[j]
        u = sum(a * x for a, x in zip(loss.a, rows, strict=True))
        v = sum(b * x for b, x in zip(loss.b, rows, strict=True))
        steps = [a * v + b * u for a, b in zip(loss.a, loss.b, strict=True)]
        return loss.curvature * np.mean(sum((step**2).sum(axis=1) for step in steps))

    assert moved(LOSSES[name]) / moved(LOSSES["squared"]) == pytest.approx(
        LOSSES[name].gain, rel=0.02
    )
