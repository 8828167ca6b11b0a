"""Benchmarks: matrices recovered, from the table of recovery.md."""

import matplotlib.pyplot as plt
import numpy as np
from figures._tables import OTHERS, OURS, table


def draw():
    figure, axis = plt.subplots(figsize=(6, 3.2), layout="constrained")
    header, *rows = table("recovery.md", "| shape | method |")
    for n, name in enumerate(["auto", "ALS", "ScaledSGD, the paper's", "SGD"]):
        solved = np.sum([[int(cell) for cell in row[2:]] for row in rows if row[1] == name], axis=0)
        colour = OTHERS[n - 1] if n else OURS
        axis.plot(solved / 72 * 100, "-o", color=colour, label=name if n else "ours")
    axis.set_xticks(range(len(header) - 2), [cell.split()[-1] for cell in header[2:]])
    axis.set(title="matrices recovered, %", xlabel="samples for each unknown number", ylim=(0, 105))
    axis.legend(frameon=False, fontsize=9, loc="center right", bbox_to_anchor=(1, 0.7))
    return figure
