"""
Ratings with uncertainty
========================

"Four stars" and "four stars, give or take one" are different answers. A fit of ratings knows how
noisy they are, and how well each person and each film is known: `predict(..., return_std=True)`
gives the standard deviation of a rating that has not been given yet. Are those honest?

As a script::

    python examples/uncertainty.py [--out uncertainty.png]
"""

import argparse

import matplotlib.pyplot as plt
import numpy as np
from scipy.stats import norm

from scaledsgd import MatrixCompleter

PEOPLE, FILMS, NOISE = 500, 300, 0.6

parser = argparse.ArgumentParser(description="Ratings with uncertainty.")
parser.add_argument("--out", default="uncertainty.png", help="the picture")
out = parser.parse_args().out

# %%
# Ratings
# -------
# Two things decide how somebody likes a film, beside its quality and the person's mood. Some people
# rate a lot, some films are rated by many; most are not.

rng = np.random.default_rng(3)
of_person, of_film = rng.standard_normal((PEOPLE, 2)), rng.standard_normal((FILMS, 2))
quality, mild = rng.normal(0, 0.5, FILMS), rng.normal(0, 0.3, PEOPLE)
truth = 3.2 + mild[:, None] + quality + 0.45 * of_person @ of_film.T
stars = truth + rng.normal(0, NOISE, truth.shape)
busy = rng.beta(0.7, 1.8, PEOPLE)[:, None] * rng.beta(0.8, 1.6, FILMS) * 1.3 + 0.025
rated = rng.random(truth.shape) < busy
test = ~rated & (rng.random(truth.shape) < 0.1)  # ratings that come in tomorrow
print(f"{rated.sum():,} ratings by {PEOPLE} people of {FILMS} films")

# %%
# A rating, and how sure it is
# ----------------------------

model = MatrixCompleter(rank=2, random_state=0).fit(np.where(rated, stars, np.nan))
i, j = np.nonzero(test)
guess, deviation = model.predict((i, j), return_std=True)
off = stars[test] - guess
print(f"error of tomorrow's ratings {np.sqrt(np.mean(off**2)):.2f} stars; noise alone is {NOISE}")
levels = np.array([0.5, 0.8, 0.9, 0.95])
inside = [np.mean(np.abs(off) < norm.ppf((1 + level) / 2) * deviation) for level in levels]
for level, share in zip(levels, inside, strict=True):
    print(f"within the {level:.0%} interval: {share:.0%}")

# Do those that are called unsure turn out to be?
order = np.argsort(deviation)
groups = np.array_split(order, 12)
called = [np.sqrt(np.mean(deviation[group] ** 2)) for group in groups]
happened = [np.sqrt(np.mean(off[group] ** 2)) for group in groups]
print(f"the surest twelfth is off by {happened[0]:.2f} stars, the least sure by {happened[-1]:.2f}")

# %%
# Two people, and all of them
# ---------------------------

BLUE, ORANGE = "#0b4f8a", "#e68a00"
plt.rcParams.update({"font.size": 12, "savefig.dpi": 120, "axes.titleweight": "bold",
                     "axes.spines.top": False, "axes.spines.right": False})  # fmt: skip
figure, parts = plt.subplot_mosaic(
    "aab;aac", figsize=(14, 8.6), layout="constrained", width_ratios=(1, 1, 1.35)
)
counts = rated.sum(axis=1)
much = int(np.argsort(counts)[-3])
little = int(np.argsort(counts)[25])
axis = parts["a"]
for person, colour, shift in ((little, ORANGE, 0.16), (much, BLUE, -0.16)):
    films = np.flatnonzero(~rated[person] & (rated.sum(axis=0) > 80))  # that are known well
    films = films[np.argsort(-truth[person, films])][:: max(1, len(films) // 14)][:14]
    z, s = model.predict((np.full(len(films), person), films), return_std=True)
    place = np.arange(len(films)) + shift
    axis.errorbar(z, place, xerr=1.645 * s, fmt="o", color=colour, ms=7, capsize=0, lw=2.2,
                  label=f"somebody with {counts[person]} ratings")  # fmt: skip
    axis.scatter(stars[person, films], place, marker="|", s=170, color="black", zorder=3, lw=1.8)
axis.scatter([], [], marker="|", s=170, color="black", lw=1.8, label="the rating that came")
axis.set(yticks=[], xlabel="stars", ylabel="films that many others have rated")
axis.set_title("Foretold, with intervals that should hold 90%")
axis.spines["left"].set_visible(False)
axis.legend(loc="upper center", bbox_to_anchor=(0.5, -0.09), ncols=3, frameon=False)

curve = parts["b"]
curve.plot([0, 1], [0, 1], color="0.7")
curve.plot(levels, inside, "o-", color=BLUE, ms=8, lw=2.2)
curve.set(xlim=(0.45, 1), ylim=(0.45, 1), xlabel="the interval says", ylabel="it holds")
curve.set_title("Intervals hold about what they say")
for side in (curve.xaxis, curve.yaxis):
    side.set_major_formatter(lambda share, _: f"{share:.0%}")

curve = parts["c"]
lim = 0.95 * min(called), 1.05 * max(called)
curve.plot(lim, lim, color="0.7")
curve.plot(called, happened, "o", color=BLUE, ms=8)
curve.axhline(NOISE, color=ORANGE, ls="--")
curve.text(lim[1], NOISE + 0.01, "noise alone", color=ORANGE, ha="right", weight="bold")
curve.set(xlabel="error foretold, stars", ylabel="error found, stars")
curve.set_title("What is called unsure, is")
figure.savefig(out)
print(f"picture: {out}")
