"""
A map of films, drawn from nothing but stars
============================================

Who gave how many stars to what is enough to tell which films are alike.

With the folder of a MovieLens data set (`scaledsgd data movielens-small` fetches one) the films
have names; without it, ratings of the same kind are made up.

As a script::

    python examples/movies.py [ml-latest-small] [--out movies.png]
"""

import argparse
import re
import textwrap

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.transforms import Bbox
from sklearn.manifold import TSNE

from scaledsgd import ItemRanker
from scaledsgd.research import movielens, synthetic

WELL_KNOWN = ("Toy Story (1995)", "Alien (1979)", "Lion King, The (1994)", "Titanic (1997)",
              "Lord of the Rings: The Two Towers, The (2002)")  # fmt: skip
MADE_UP = (600, 1500, 45_000)  # users, films, ratings
SIDES = ((0, 7), "center"), ((0, -15), "center"), ((8, -3), "left"), ((-8, -3), "right")  # of a dot
SHOWN = 120  # films on the map: what more people rated is known better, and by more readers

parser = argparse.ArgumentParser(description="A map of films, drawn from nothing but stars.")
parser.add_argument("folder", nargs="?", help="with ratings.csv and movies.csv of MovieLens")
parser.add_argument("--out", default="movies.png", help="the picture")
options = parser.parse_args()

if options.folder:
    table, users, films = movielens.load(options.folder)
    titles = movielens.titles(options.folder)
else:
    table = synthetic.ratings(MADE_UP, seed=0)
    users, films = np.arange(table.shape[0]), np.arange(table.shape[1])
    titles = {film: f"film {film}" for film in films.tolist()}

# %%
# Learn from ratings
# ------------------
# A table like any other: three columns, best known film first.

table = table.tocsc()
counts = np.diff(table.indptr)
order = np.argsort(-counts, kind="stable")
films, counts, table = films[order], counts[order], table[:, order]
column, row = table.T.nonzero()
frame = {"userId": users[row], "movieId": films[column], "rating": table.data}

model = ItemRanker(rank=16, random_state=0)
model.fit(frame, user="userId", item="movieId", value="rating")
print(f"{len(users):,} people gave {table.nnz:,} ratings to {len(films):,} films")
print(f"test AUC {model.test_auc_:.3f}: the share of held-out comparisons that come out right")
numbers = {title: film for film, title in titles.items()}
for title in [t for t in WELL_KNOWN if t in numbers] or [titles[f] for f in films[:5].tolist()]:
    alike, _ = model.similar(numbers[title], k=5)
    print(f"{title}: {'; '.join(titles[film] for film in alike.tolist())}")

# %%
# The map
# -------
# It keeps neighbours together; its axes mean nothing.

vectors = model.vectors(films[:SHOWN])
vectors = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
places = TSNE(perplexity=12, init="pca", method="exact", random_state=0).fit_transform(vectors)
shown = [titles[film] for film in films[:SHOWN].tolist()]
if options.folder:
    colour, meaning = [int(title.strip()[-5:-1]) for title in shown], "year"
else:
    colour, meaning = (table.sum(axis=0) / counts)[:SHOWN], "stars on average"

plt.rcParams.update({"font.size": 11})
figure, axis = plt.subplots(figsize=(15, 11), layout="constrained")
dots = axis.scatter(*places.T, s=counts[:SHOWN] * 150 / counts[0], c=colour, cmap="cividis")
figure.colorbar(dots, label=meaning, shrink=0.5, aspect=30, pad=0.01)
axis.set_title(f"The {SHOWN} films with the most ratings: near is alike, large is often rated")
axis.set(xticks=[], yticks=[])
axis.margins(0.12, 0.05)
figure.canvas.draw()
# No label lies on a dot (8 pixels wide) or another label; one without room is left out.
taken = [Bbox.from_bounds(x - 4, y - 4, 8, 8) for x, y in axis.transData.transform(places)]
for title, place in zip(shown, places, strict=True):
    name = re.sub(r"(.*), (The|A)$", r"\2 \1", title.split(" (")[0])  # the colour tells the year
    name = textwrap.shorten(name, 42, placeholder=" ...")
    for shift, side in SIDES:
        label = axis.annotate(name, place, shift, textcoords="offset points", ha=side, fontsize=9)
        box = label.get_window_extent()
        inside = axis.bbox.x0 < box.x0 and box.x1 < axis.bbox.x1
        if inside and not any(box.overlaps(other) for other in taken):
            taken.append(box)
            break
        label.remove()
figure.savefig(options.out, dpi=100)
print(f"picture: {options.out}")
