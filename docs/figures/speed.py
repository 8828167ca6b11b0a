"""Benchmarks: samples a second, from the table of performance.md."""

import matplotlib.pyplot as plt
import numpy as np
from figures._tables import OTHERS, OURS, table


def draw():
    figure, axis = plt.subplots(figsize=(6, 3.2), layout="constrained")
    _, *rows = table("performance.md", "| squared | ours |")
    ranks = [row[0].split()[-1] for row in rows]
    for n, (name, column) in enumerate([("ours", 1), ("cornac", 4), ("libmf", 2)]):
        axis.bar(np.arange(len(ranks)) + 0.28 * (n - 1), [float(row[column]) for row in rows], 0.26,
                 color=OURS if not n else OTHERS[n - 1], label=name)  # fmt: skip
    axis.set_xticks(np.arange(len(ranks)), ranks)
    axis.set(title="million samples a second", xlabel="rank; two threads")
    axis.legend(frameon=False, fontsize=9)
    return figure
