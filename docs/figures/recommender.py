"""Start here: who bought what, and what else would suit them."""

import matplotlib.pyplot as plt
import numpy as np

from scaledsgd import Recommender

rng = np.random.default_rng(0)
KINDS = ["teas", "coffees", "breads", "jams"]
taste = rng.integers(4, size=240)  # the kind that a customer mostly buys
items = np.where(rng.random((240, 6)) < 0.85, taste[:, None], rng.integers(4, size=(240, 6)))
items = 8 * items + rng.integers(8, size=items.shape)  # eight things of each kind
users = np.repeat(np.arange(240), 6)
model = Recommender(rank=8, random_state=0).fit(
    {"user": users, "item": items.ravel()}, user="user", item="item"
)
bought = np.zeros((240, 32))
bought[users, items.ravel()] = 1
found = np.zeros((240, 32))
for user in range(240):
    ids, scores = model.recommend(user, k=5)
    found[user, ids] = 1
order = np.argsort(taste, kind="stable")[::6]


def draw():
    figure, axes = plt.subplots(1, 2, figsize=(4.8, 2.7), layout="constrained", sharey=True)
    panels = [(bought, "what is bought", "tab:gray"), (found, "what is recommended", "tab:red")]
    for axis, (table, title, colour) in zip(axes, panels, strict=True):
        y, x = np.nonzero(table[order])
        axis.scatter(x, y, s=5, marker="s", color=colour)
        axis.set_title(title)
        axis.set_xticks(np.arange(4) * 8 + 3.5, KINDS, size=8)
        axis.set_yticks([])
        axis.tick_params(length=0)
        for edge in (7.5, 15.5, 23.5):
            axis.axvline(edge, color=plt.rcParams["grid.color"], lw=1)
    axes[0].set_ylabel("40 customers")
    return figure
