"""
Cold start: somebody who came in a minute ago
=============================================

A customer of whom nothing is known gets what everybody buys. After one purchase there is something
better to show, and after a dozen it is as good as for those who have been coming for years: vectors
of new people are fitted to what they did, without training the model again.

As a script::

    python examples/cold_start.py [--out cold_start.png]
"""

import argparse

import matplotlib.pyplot as plt
import numpy as np

from scaledsgd import Recommender

CUSTOMERS, NEW, GOODS, TASTES = 1500, 2000, 300, 10
SEEN = [0, 1, 2, 3, 4, 6, 8, 12]  # purchases that are known of somebody new
TOP = 10

parser = argparse.ArgumentParser(description="Cold start: somebody who came in a minute ago.")
parser.add_argument("--out", default="cold_start.png", help="the picture")
out = parser.parse_args().out

# %%
# A shop
# ------
# Its goods are of ten kinds, its customers like few of them, and buy twenty things each.

rng = np.random.default_rng(1)
kind = np.sort(np.arange(GOODS) % TASTES)
tastes = rng.dirichlet(np.full(TASTES, 0.2), CUSTOMERS + NEW) + 0.003
sells = rng.permutation(np.arange(1, GOODS + 1)) ** -0.5
chances = tastes[:, kind] * sells
chances /= chances.sum(axis=1, keepdims=True)
# The Gumbel trick: the twenty largest of these are twenty draws, none of them twice.
bought = np.argsort(np.log(chances) + rng.gumbel(size=chances.shape), axis=1)[:, ::-1][:, :20]

known = {"customer": np.repeat(np.arange(CUSTOMERS), 19), "item": bought[:CUSTOMERS, :-1].ravel()}
model = Recommender(rank=12, random_state=0).fit(known, user="customer", item="item")

# %%
# New people
# ----------
# 2,000 others come in. After each of their first purchases, ten goods are shown: is the one that
# they buy next among them? Those who have been here for long are asked the same: the model has
# learned all but the last of their purchases.

best = np.argsort(-np.bincount(known["item"], minlength=GOODS))
curve = []
for count in SEEN:
    before, after = bought[CUSTOMERS:, :count], bought[CUSTOMERS:, count]
    if count == 0:
        shown = np.tile(best[:TOP], (NEW, 1))
    else:
        shown = model.recommend(items=before.tolist(), k=TOP)[0]
    curve.append(np.mean((shown == after[:, None]).any(axis=1)))
    print(f"{count:2} purchases known: the next is among {TOP} shown for {curve[-1]:.0%}")

shown = model.recommend(np.arange(CUSTOMERS), k=TOP)[0]
regular = np.mean((shown == bought[:CUSTOMERS, -1:]).any(axis=1))
print(f"of those who have been here for long, with 19 known: {regular:.0%}")

# %%
# One of them, step by step
# -------------------------
# What is shown to one newcomer, by kind of goods, as purchases become known.

changes = (np.diff(kind[bought[CUSTOMERS:, :8]], axis=1) != 0).sum(axis=1)
mixed = -np.sort(-tastes[CUSTOMERS:], axis=1)[:, 1] > 0.3  # somebody with two tastes
someone = CUSTOMERS + int(np.argmax(np.where(mixed, changes, 0)))
steps = [np.bincount(kind[best[:TOP]], minlength=TASTES)]
for count in range(1, 9):
    shown = model.recommend(items=bought[someone, :count].tolist(), k=TOP)[0]
    steps.append(np.bincount(kind[shown.astype(int)], minlength=TASTES))

BLUE, ORANGE = "#0b4f8a", "#e68a00"
plt.rcParams.update({"font.size": 12, "savefig.dpi": 120})
figure, (left, right) = plt.subplots(1, 2, figsize=(14, 7.6), layout="constrained")
left.axhline(regular, color=ORANGE, ls="--", lw=2)
left.text(0, regular + 0.004, "customers of long standing", color=ORANGE, weight="bold")
left.plot(SEEN, curve, "o-", color=BLUE, lw=2.5, ms=8)
left.annotate("best sellers, the same\nfor everybody", (0, curve[0]), (0.9, curve[0] - 0.003),
              color="0.35", va="center")  # fmt: skip
left.set(xlabel="purchases known of somebody new", ylim=(0, regular + 0.03), xticks=SEEN)
left.set_ylabel("share of next purchases that were shown")
left.set_title("Every purchase says more about a newcomer", weight="bold", pad=14)
left.yaxis.set_major_formatter(lambda share, _: f"{share:.0%}")
left.grid(color="0.92")
left.spines[["top", "right"]].set_visible(False)

picture = right.imshow(np.array(steps), cmap="Blues", vmin=0, vmax=TOP, aspect="auto")
for row, shares in enumerate(steps):
    for column, number in enumerate(shares):
        if number:
            right.text(column, row, number, ha="center", va="center",
                       color="white" if number > 5 else "0.2")  # fmt: skip
for row in range(1, len(steps)):
    x = kind[bought[someone, row - 1]]
    right.plot(x, row - 0.5, "v", color=ORANGE, ms=11, mec="white")
right.plot([], [], "v", color=ORANGE, ms=11, label="a purchase, by its kind")
likes = tastes[someone] / tastes[someone].sum()
right.set_xticks(range(TASTES), [f"{share:.0%}" for share in likes])
right.set_yticks(range(len(steps)), ["nothing", *map(str, range(1, len(steps)))])
right.set(xlabel="kinds of goods: how much the newcomer likes each", ylabel="purchases known")
right.set_title(f"One newcomer: kinds of the {TOP} goods shown", weight="bold", pad=14)
right.legend(loc="upper center", bbox_to_anchor=(0.5, -0.1), frameon=False)
right.spines[:].set_visible(False)
figure.savefig(out)
print(f"picture: {out}")
