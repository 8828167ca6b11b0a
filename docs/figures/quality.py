"""Benchmarks: recommendations, from the table of recommender.md."""

import re

import matplotlib.pyplot as plt
import numpy as np
from figures._tables import OTHERS, OURS, table


def draw():
    figure, axis = plt.subplots(figsize=(6, 3.6), layout="constrained")
    _, *rows = table("recommender.md", "| | Last.fm |")
    rows = [row for row in rows if row[1] and row[2] and "squared" not in row[0]]
    names = [row[0].replace("`", "") for row in rows][::-1]
    for n in range(2):  # Last.fm and MovieLens-Small
        ndcg = [float(re.search(r"/(\.\d+)", row[n + 1])[1]) for row in rows][::-1]
        colours = [OURS if name == "Recommender()" else OTHERS[0] for name in names]
        places = np.arange(len(names)) + 0.2 - 0.4 * n
        axis.barh(places, ndcg, 0.36, color=colours, alpha=1 - 0.4 * n)
    axis.set_yticks(np.arange(len(names)), names)
    axis.set(title="NDCG@20 of recommendations", xlabel="Last.fm above, MovieLens-Small below")
    return figure
