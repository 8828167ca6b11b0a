"""Fits the rational sigmoid of engines/cpu/step_kernels.py and compares the kernels' coefficients.

    python benchmarks/fit_sigmoid.py

sigmoid(z) - 1/2 is odd: it is fitted by z p(z^2) / q(z^2) with q(0) = 1, by Remez' exchange. The
largest error is smallest where the error takes on that size, by turns above and below, at one point
more than there are coefficients. So solve for the coefficients and a size E such that the error is
E, -E, E ... at some points, move the points to where the error is largest in fact, and repeat.

The kernels' coefficients are those of an earlier fit. They are the same to six digits, and stay as
they are because the last digits decide about the bits of every float32 fit.
"""

from __future__ import annotations

import numpy as np
from numpy.polynomial.polynomial import polyval

END = 17.5  # beyond it a float32 cannot tell the sigmoid from 1
DEGREE = 4  # of p and q
GRID = np.linspace(0.0, END, 400_001)[1:]
_EXCHANGES = 6  # the points stay where they are after four


def centred(z: np.ndarray) -> np.ndarray:
    """sigmoid(z) - 1/2, without the rounding of a difference."""
    return np.tanh(z / 2) / 2


def error(p, q, z: np.ndarray) -> np.ndarray:
    """How far the fraction is above the sigmoid."""
    return z * polyval(z * z, p) / polyval(z * z, q) - centred(z)


def even_powers(z: np.ndarray) -> np.ndarray:
    """Even powers of z / END, which are all of one size."""
    return (z / END)[:, None] ** (2 * np.arange(DEGREE + 1))


def unscaled(both: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """p and q, in powers of z^2, from p's and the rest of q's coefficients of even powers."""
    scale = END ** (-2.0 * np.arange(DEGREE + 1))
    return both[: DEGREE + 1] * scale, np.r_[1.0, both[DEGREE + 1 :]] * scale


def begin() -> tuple[np.ndarray, np.ndarray]:
    """p and q by least squares of z p - f q on Chebyshev's nodes. Divided by the q of the time
    before, it is the error of the fraction that counts."""
    z = END * np.cos(np.pi * (np.arange(400) + 0.5) / 800)
    f, powers, q = centred(z), even_powers(z), np.eye(1, DEGREE + 1)[0]
    for _ in range(20):
        weight = 1 / polyval(z * z, q)
        system = np.c_[z[:, None] * powers, -f[:, None] * powers[:, 1:]]
        p, q = unscaled(np.linalg.lstsq(system * weight[:, None], f * weight)[0])
    return p, q


def solve(z: np.ndarray, q: np.ndarray) -> tuple[np.ndarray, np.ndarray, float]:
    """p, q and E such that the error at the points is E, -E, E ...: z p - f q = sign E q, which is
    linear with the q of the time before on the right."""
    f, powers, sign = centred(z), even_powers(z), (-1.0) ** np.arange(len(z))
    for _ in range(20):
        right = sign * polyval(z * z, q)
        system = np.c_[z[:, None] * powers, -f[:, None] * powers[:, 1:], -right]
        *both, E = np.linalg.solve(system, f)
        p, q = unscaled(np.array(both))
    return p, q, abs(E)


def largest(p: np.ndarray, q: np.ndarray) -> np.ndarray:
    """Where the error is largest between its zeros."""
    e = error(p, q, GRID)
    parts = np.split(np.arange(len(GRID)), np.flatnonzero(np.diff(np.sign(e))) + 1)
    return GRID[[part[np.argmax(np.abs(e[part]))] for part in parts]]


def fit() -> tuple[np.ndarray, np.ndarray, float]:
    """The coefficients of p and q from the lowest power on, and the largest error."""
    (p, q), E = begin(), np.inf
    for _ in range(_EXCHANGES):
        p, q, E = solve(largest(p, q), q)
    return p, q, E


def main() -> None:
    from scaledsgd.engines.cpu.step_kernels import SIGMOID

    p, q, E = fit()
    for name, fitted, used in zip("pq", (p, q), SIGMOID, strict=True):
        print(f"{name}:", ", ".join(f"{c:.9g}" for c in fitted))
        print("   used:", ", ".join(f"{c:.9g}" for c in used))
    print(f"largest error {E:.3g}, of those used {np.abs(error(*SIGMOID, GRID)).max():.3g}")


if __name__ == "__main__":
    main()
