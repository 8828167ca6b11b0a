"""The rational sigmoid of the float32 kernels, and the script that fits it."""

import runpy
from pathlib import Path

import numba
import numpy as np
import pytest

from scaledsgd.core.losses import sigmoid
from scaledsgd.engines.cpu import step_kernels

FIT = Path(__file__).parents[2] / "benchmarks" / "fit_sigmoid.py"
END = float(step_kernels._END)


@pytest.fixture(scope="module")
def script():
    return runpy.run_path(str(FIT))


@numba.njit
def compiled(z):
    out = np.empty_like(z)
    for t in range(len(z)):
        out[t] = sigmoid(z[t])
    return out


def test_the_script_finds_the_coefficients(script):
    p, q, largest = script["fit"]()
    assert script["END"] == END
    assert largest < 7.04e-9
    for fitted, used in zip((p, q), step_kernels.SIGMOID, strict=True):
        assert used == pytest.approx(fitted, rel=1e-6)


def test_the_coefficients_keep_their_promise(script):
    """8e-9 in exact arithmetic, on both sides of zero."""
    z = np.linspace(-END, END, 1_000_001)
    assert np.abs(script["error"](*step_kernels.SIGMOID, z)).max() < 8e-9


def test_compiled_for_float32_it_is_right_to_the_last_places():
    """The clamp holds it within [0, 1] where the fraction itself would leave it."""
    z = np.r_[np.linspace(-20, 20, 400_001), -np.geomspace(17, 3e38, 500), np.geomspace(17, 3e38)]
    z = np.r_[z, np.inf, -np.inf].astype(np.float32)
    found = compiled(z)
    assert found.dtype == np.float32
    assert np.abs(found - sigmoid(z.astype(np.float64))).max() < 2e-7
    beyond = np.abs(z) >= END
    assert np.unique(found[beyond & (z > 0)]).size == np.unique(found[beyond & (z < 0)]).size == 1
