"""
A stream that follows a changing taste
======================================

What people like changes: in the thirtieth week of this year everybody moves on to other genres. A
model that learns from every rating as it comes in notices and follows, without being told and
without being trained again. One that was trained in spring and left alone stays wrong.

As a script::

    python examples/changing_taste.py [--out changing_taste.png]
"""

import argparse

import matplotlib.pyplot as plt
import numpy as np

from scaledsgd import MatrixCompleter

PEOPLE, FILMS, NOISE = 400, 160, 0.5
GENRES = ["western", "comedy", "horror", "romance", "sci-fi", "drama", "crime", "musical"]
WEEKS, PER_WEEK, TRAINED, CHANGE = 52, 3000, 8, 30

parser = argparse.ArgumentParser(description="A stream that follows a changing taste.")
parser.add_argument("--out", default="changing_taste.png", help="the picture")
out = parser.parse_args().out

# %%
# A year of ratings
# -----------------
# How somebody likes a film is a matter of its genre, of the film, and of chance. From week 30 on,
# everybody likes the genre three places further down the list as they liked this one before.

rng = np.random.default_rng(0)
genre = np.arange(FILMS) % len(GENRES)
spring = 0.8 * rng.standard_normal((PEOPLE, len(GENRES)))
autumn = np.roll(spring, 3, axis=1)
quality = rng.normal(0, 0.3, FILMS)


def ratings(week: int) -> dict:
    likes = spring if week < CHANGE else autumn
    who, film = rng.integers(0, PEOPLE, PER_WEEK), rng.integers(0, FILMS, PER_WEEK)
    stars = 3 + quality[film] + likes[who, genre[film]] + rng.normal(0, NOISE, PER_WEEK)
    return {"who": who, "film": film, "stars": stars}


# %%
# Learn while it happens
# ----------------------
# Both models learn from the first eight weeks. One is then left alone; the other goes on with
# `partial_fit`, which passes over each week's ratings once, and forgets them. Every week is a test
# before it is learned.

names = {"row": "who", "column": "film", "value": "stars"}
first = [ratings(week) for week in range(TRAINED)]
first = {name: np.concatenate([part[name] for part in first]) for name in first[0]}
follows, alone = (MatrixCompleter(9, random_state=0).fit(first, **names) for _ in range(2))
errors, thought = {"follows": [], "left alone": []}, []
fans = np.argsort(-spring[:, 1])[:40]  # those who liked comedies best, in spring
everything = np.repeat(fans, FILMS), np.tile(np.arange(FILMS), len(fans))
for week in range(TRAINED, WEEKS):
    coming = ratings(week)
    for name, model in (("follows", follows), ("left alone", alone)):
        off = model.predict((coming["who"], coming["film"])) - coming["stars"]
        errors[name].append(np.sqrt(np.mean(off**2)))
    of_films = follows.predict(everything).reshape(len(fans), FILMS).mean(axis=0)
    thought.append([of_films[genre == g].mean() for g in range(len(GENRES))])
    follows.partial_fit(coming, **names)

for name, found in errors.items():
    before, _, after = np.split(np.array(found), [CHANGE - TRAINED, -6])
    print(f"{name}: off by {before.mean():.2f} stars before the change, {found[len(before)]:.2f} "
          f"in the week of it, {after.mean():.2f} in the end")  # fmt: skip

# %%
# The model changes its mind
# --------------------------
# Below, what it believes about those who liked comedies best in spring.

BLUE, ORANGE = "#0b4f8a", "#e68a00"
plt.rcParams.update({"font.size": 12, "savefig.dpi": 120, "axes.titleweight": "bold"})
figure, (top, bottom) = plt.subplots(2, 1, figsize=(12.5, 9.2), sharex=True, layout="constrained")
weeks = np.arange(TRAINED, WEEKS) + 1
top.axhline(NOISE, color="0.6", ls=":", lw=2)
top.text(WEEKS, NOISE - 0.02, "the least: chance itself", color="0.4", ha="right", va="top")
top.plot(weeks, errors["left alone"], "--", color=ORANGE, lw=2.5)
top.plot(weeks, errors["follows"], color=BLUE, lw=2.8)
top.text(14, errors["left alone"][5] + 0.05, "left alone since week 8", color=ORANGE, weight="bold")
top.text(WEEKS, 0.93, "learns from every rating", color=BLUE, weight="bold",
         ha="right")  # fmt: skip
top.set(ylim=(0, 1.35), ylabel="error of the week's ratings, stars")
top.set_title("Tastes change in week 30: one model notices")
top.grid(color="0.92")
top.spines[["top", "right"]].set_visible(False)

spread = (TRAINED + 0.5, WEEKS + 0.5, len(GENRES) - 0.5, -0.5)
image = bottom.imshow(np.array(thought).T, cmap="RdBu", vmin=1.2, vmax=4.8, aspect="auto",
                      extent=spread)  # fmt: skip
bottom.set_yticks(range(len(GENRES)), GENRES)
bottom.set(xlabel="week")
bottom.set_title("How the friends of comedies like each genre, as the model sees it")
figure.colorbar(image, ax=bottom, label="stars", pad=0.01)
for axis in (top, bottom):
    axis.axvline(CHANGE + 0.5, color="black", lw=1.2)
top.set_xlim(TRAINED + 0.5, WEEKS + 0.5)
figure.savefig(out)
print(f"picture: {out}")
