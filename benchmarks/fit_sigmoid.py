"""Fits the rational sigmoid of engines/cpu/step_kernels.py and prints its coefficients.

    python benchmarks/fit_sigmoid.py

Remez' exchange for f(z) = sigmoid(z) - 1/2, which is odd, by z p(z^2) / q(z^2) with q(0) = 1. Of
all such fractions the one has the smallest largest error whose error takes on its largest size, by
turns above and below, at as many points as there are unknowns and one more. So: solve for the
coefficients and the size E such that the error is +E, -E, +E ... at given points, move the points
to where the error is largest in fact, and repeat.
"""

from __future__ import annotations

import numpy as np

END = 17.5  # beyond it a float32 cannot tell the sigmoid from 1
DEGREE = 4  # of p and q
UNKNOWN = 2 * DEGREE + 1  # coefficients, without q(0)
GRID = np.linspace(0.0, END, 400_001)


def error(p: np.ndarray, q: np.ndarray, z: np.ndarray) -> np.ndarray:
    """z p(z^2) / q(z^2) + 1/2 - sigmoid(z)."""
    value = np.polynomial.polynomial.polyval
    return z * value(z * z, p) / value(z * z, q) - np.tanh(z / 2) / 2


def solve(points: np.ndarray) -> tuple[np.ndarray, np.ndarray, float]:
    """p, q and E such that the error at the points is E, -E, E ...: (f + sign E) q - z p = 0, where
    E times q is linear once one of them is that of the time before."""
    f, sign = np.tanh(points / 2) / 2, (-1.0) ** np.arange(len(points))
    powers = (points / END)[:, None] ** (2 * np.arange(DEGREE + 1))  # scaled, for the condition
    q, E = np.eye(DEGREE + 1)[0], 0.0
    for _ in range(50):
        target = (f + sign * E)[:, None] * powers[:, 1:]
        system = np.c_[points[:, None] * powers, -target, -sign * (powers[:, 0])]
        solution = np.linalg.solve(system, f)
        p, q, E = solution[: DEGREE + 1], np.r_[1.0, solution[DEGREE + 1 : -1]], solution[-1]
    scale = END ** (-2.0 * np.arange(DEGREE + 1))
    return p * scale, q * scale, abs(E)


def largest(p: np.ndarray, q: np.ndarray) -> np.ndarray:
    """Where the error is largest between two of its zeros."""
    e = error(p, q, GRID)
    cuts = np.flatnonzero(np.diff(np.sign(e[1:]))) + 2
    parts = np.split(np.arange(len(GRID)), cuts)
    return GRID[[part[np.argmax(np.abs(e[part]))] for part in parts]]


def fit() -> tuple[np.ndarray, np.ndarray, float]:
    """The coefficients of p and q from the lowest power on, and the largest error."""
    points = END * np.sin(np.linspace(0, np.pi / 2, UNKNOWN + 2)[1:]) ** 2
    for _ in range(30):
        p, q, E = solve(points)
        found = largest(p, q)
        print(len(found), E, np.abs(error(p,q,found)).max())
        if len(found) != UNKNOWN + 1: break
        points = found
    return p, q, E


if __name__ == "__main__":
    p, q, E = fit()
    print("p =", ", ".join(f"{c:.9g}" for c in p))
    print("q =", ", ".join(f"{c:.9g}" for c in q))
    print(f"largest error {E:.3g}")
