"""Start here: points from some of their distances."""

import matplotlib.pyplot as plt
import numpy as np

from scaledsgd import DistanceCompleter

rng = np.random.default_rng(1)
angle = np.linspace(0, 2 * np.pi, 120, endpoint=False)
truth = np.stack([np.sin(angle), np.sin(2 * angle) / 2], axis=1)  # an eight
D = ((truth[:, None] - truth) ** 2).sum(axis=2)
i, j = np.nonzero(np.triu(rng.random(D.shape) < 0.1, 1))
known = np.full_like(D, np.nan)
known[i, j] = D[i, j]
model = DistanceCompleter(rank=2, random_state=0).fit(known)
found = model.align([0, 30, 75], truth[[0, 30, 75]])
error = np.abs(found - truth).max()


def draw():
    figure, axes = plt.subplots(1, 2, figsize=(4.8, 2.3), layout="constrained", sharey=True)
    for a, b in zip(i, j, strict=True):
        axes[0].plot(*truth[[a, b]].T, color="tab:blue", lw=0.3, alpha=0.5)
    axes[0].set_title("some distances")
    axes[1].scatter(*truth.T, s=26, facecolors="none", edgecolors="tab:gray", label="true place")
    axes[1].scatter(*found.T, s=5, color="tab:red", label="place found")
    axes[1].set_title(f"the points, to {error:.0e}")
    axes[1].legend(
        loc="upper center", ncols=2, frameon=False, fontsize=8, columnspacing=1, handletextpad=0.1
    )
    for axis in axes:
        axis.set_aspect("equal")
        axis.set_ylim(-0.65, 0.85)
        axis.set_axis_off()
    return figure
