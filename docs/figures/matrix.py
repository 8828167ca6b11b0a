"""Start here: a matrix from a fifth of its entries."""

import matplotlib.pyplot as plt
import numpy as np

from scaledsgd import MatrixCompleter

rng = np.random.default_rng(3)
time = np.linspace(0, 1, 120)
waves = np.stack([np.sin(2 * np.pi * (k + 1) * time) / (k + 1) ** 2 for k in range(4)])
M = rng.standard_normal((90, 4)) @ waves  # 90 sensors, each a mixture of four waves
seen = np.where(rng.random(M.shape) < 0.2, M, np.nan)
model = MatrixCompleter(rank=4, random_state=0).fit(seen)
filled = model.row_factors_ @ model.column_factors_.T
error = np.linalg.norm(filled - M) / np.linalg.norm(M)


def draw():
    figure, axes = plt.subplots(1, 2, figsize=(4.8, 2.5), layout="constrained", sharey=True)
    colours = plt.get_cmap("viridis").with_extremes(bad=plt.rcParams["grid.color"])
    panels = [(seen, "a fifth of a matrix"), (filled, f"completed, to {error:.0e}")]
    for axis, (table, title) in zip(axes, panels, strict=True):
        axis.imshow(table, cmap=colours, vmin=M.min(), vmax=M.max(), aspect="auto",
                    interpolation="nearest")  # fmt: skip
        axis.set_title(title)
        axis.set(xlabel="time", xticks=[], yticks=[])
    axes[0].set_ylabel("90 sensors")
    return figure
