"""How it works: in the right basis P is a diagonal, and rounds keep it so."""

import matplotlib.pyplot as plt
import numpy as np

rng = np.random.default_rng(2)
turn = np.array([[np.cos(0.6), -np.sin(0.6)], [np.sin(0.6), np.cos(0.6)]])
X = rng.standard_normal((150, 2)) * [2.2, 0.6] @ turn.T
values, Q = np.linalg.eigh(X.T @ X)
Q = Q[:, ::-1]
Q = Q * np.sign(Q[0])


def ellipse(G: np.ndarray) -> np.ndarray:
    """Where x^T G^-1 x is 4 / rows: two standard deviations."""
    angle = np.linspace(0, 2 * np.pi, 200)
    return 2 * np.linalg.cholesky(G / len(X)) @ np.array([np.cos(angle), np.sin(angle)])


def draw():
    figure = plt.figure(figsize=(7.4, 4), layout="constrained")
    grid = figure.add_gridspec(2, 4, height_ratios=(1.9, 1), width_ratios=(1.7, 1, 1.7, 1))
    for column, (rows, name) in enumerate([(X, "X"), (X @ Q, "X Q")]):
        G = rows.T @ rows
        axis = figure.add_subplot(grid[0, 2 * column])
        axis.scatter(*rows.T, s=9, color="tab:blue", alpha=0.7)
        axis.plot(*ellipse(G), color="tab:red", lw=1.6)
        axis.set(title=f"rows of {name}", xlim=(-6, 6), ylim=(-5, 5), aspect="equal", xticks=[],
                 yticks=[])  # fmt: skip
        P = np.linalg.inv(G)
        small = figure.add_subplot(grid[0, 2 * column + 1])
        small.imshow(np.abs(P), cmap="Reds", vmin=0, vmax=np.abs(P).max() * 1.6)
        for (i, k), value in np.ndenumerate(P):
            told = f"{len(X) * value:.1f}" if abs(value) > 1e-9 else "0"
            small.text(k, i, told, ha="center", va="center", color="black")
        small.set(title="P, times d", xticks=[], yticks=[])
    line = figure.add_subplot(grid[1, :])
    line.set(xlim=(0, 12.3), ylim=(0, 1.75))
    line.set_axis_off()
    for n in range(3):
        left = 4 * n + 0.1
        line.add_patch(plt.Rectangle((left, 0.5), 1.25, 0.7, color="tab:red", alpha=0.85))
        line.add_patch(plt.Rectangle((left + 1.25, 0.5), 2.6, 0.7, color="tab:blue", alpha=0.3))
        line.text(left + 0.62, 0.85, "refresh", ha="center", va="center", color="white", size=9)
        told = "d samples\nor more, P stays"
        line.text(left + 2.55, 0.85, told, ha="center", va="center", size=9)
        line.text(left + 2.0, 1.4, f"round {n + 1}", ha="center", va="center", weight="bold")
    line.text(0.1, 0.2, "refresh: the Gram, its Q, X becomes X Q", va="center", size=9,
              color="tab:red")  # fmt: skip
    line.text(12.2, 0.2, "samples: threads, GPU or cluster", va="center", ha="right", size=9)
    return figure
