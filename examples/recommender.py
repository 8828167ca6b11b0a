"""
A recommender from nothing but events
=====================================

A shop knows who bought what, and nothing else: no stars, no categories, no words about its goods.
That is enough to say what a customer may want next, and which goods belong together.

As a script::

    python examples/recommender.py [--out recommender.png]
"""

import argparse

import matplotlib.pyplot as plt
import numpy as np
from sklearn.manifold import TSNE

from scaledsgd import Recommender

KINDS = {
    "tea": "Assam Darjeeling Sencha Oolong Rooibos Matcha Chamomile Mint Earl-Grey Lapsang Chai",
    "coffee": "Espresso Filter Kenya Mocha Decaf Grinder Crema Moka-pot Arabica Cold-brew Beans",
    "baking": "Flour Yeast Rye Sugar Vanilla Cocoa Tin Whisk Rolling-pin Icing Marzipan",
    "cheese": "Brie Cheddar Gouda Feta Stilton Manchego Ricotta Comté Camembert Halloumi Pecorino",
    "garden": "Trowel Seeds Compost Hose Secateurs Pots Gloves Rake Bulbs Twine Watering-can",
    "bicycle": "Pump Chain Tyre Bell Lamp Saddle Helmet Pedal Brake Lock Spokes",
    "music": "Strings Plectrum Capo Reed Metronome Drumsticks Rosin Tuner Songbook Strap Cable",
    "drawing": "Charcoal Pastel Easel Canvas Gouache Ink Brush Sketchbook Eraser Fixative Palette",
}
CUSTOMERS, EVENTS, TOP = 1500, 20_000, 5

parser = argparse.ArgumentParser(description="A recommender from nothing but events.")
parser.add_argument("--out", default="recommender.png", help="the picture")
out = parser.parse_args().out

# %%
# The events
# ----------
# Customers like one or two kinds of goods and somewhat their neighbours in the list above, some
# goods sell better than others, and anything is bought now and then. The kinds are used to make the
# events, and to colour the picture: the model never hears of them.

goods = np.array([word for words in KINDS.values() for word in words.split()])
kind = np.repeat(np.arange(len(KINDS)), [len(words.split()) for words in KINDS.values()])
rng = np.random.default_rng(0)
tastes = rng.dirichlet(np.full(len(KINDS), 0.12), CUSTOMERS)
sells = rng.permutation(np.arange(1, len(goods) + 1)) ** -0.3
tastes = tastes + 0.15 * np.roll(tastes, 1, axis=1) + 0.15 * np.roll(tastes, -1, axis=1)
chances = (tastes[:, kind] + 0.02) * sells
chances /= chances.sum(axis=1, keepdims=True)
who = rng.integers(0, CUSTOMERS, EVENTS)
bought = (chances[who].cumsum(axis=1) > rng.random(EVENTS)[:, None]).argmax(axis=1)

events = {"customer": [f"c{c}" for c in who], "item": goods[bought]}
for customer, item in list(zip(*events.values(), strict=True))[:3]:
    print(f"{customer} bought {item}")

# %%
# Learn, and ask
# --------------
# The last purchase of every customer is set aside, to see whether it is found. There is nothing to
# tune: what there is to choose is found on purchases that the model holds out by itself.

last = np.zeros(EVENTS, bool)
last[EVENTS - 1 - np.unique(who[::-1], return_index=True)[1]] = True
train = {name: np.asarray(column)[~last] for name, column in events.items()}
model = Recommender(rank=10, random_state=0).fit(train, user="customer", item="item")

for item in ("Sencha", "Saddle", "Brie"):
    print(f"beside {item}: {', '.join(model.similar(item, k=4)[0])}")
asked = "c7"
history = train["item"][train["customer"] == asked]
shown = model.recommend(asked, k=TOP)[0]
print(f"{asked} had {', '.join(history)}: show {', '.join(shown)}")
print("because of", model.explain(asked, shown[0])[0][0])

# %%
# How good is that?
# -----------------
# Of the purchases that were set aside, and were of something new to the customer: how many are
# among the first few goods that are shown?

had = np.zeros((CUSTOMERS, len(goods)), bool)
had[who[~last], bought[~last]] = True
new = last & had.any(axis=1)[who] & ~had[who, bought]
customers, wanted = who[new], bought[new]
found = model.recommend([f"c{c}" for c in customers], k=TOP)[0]
seller = np.argsort(-np.bincount(bought[~last], minlength=len(goods)))
ideal = np.argsort(np.where(had, -1, chances), axis=1)[:, ::-1][:, :TOP]
popular = np.array([seller[~had[c, seller]][:TOP] for c in customers])
hits = {
    "best\nsellers": np.mean((popular == wanted[:, None]).any(axis=1)),
    "recommended": np.mean((found == goods[wanted][:, None]).any(axis=1)),
    "if tastes\nwere known": np.mean((ideal[customers] == wanted[:, None]).any(axis=1)),
}
for name, share in hits.items():
    words = name.replace("\n", " ")
    print(f"{words}: {share:.0%} of the next purchases are among {TOP} goods")

# %%
# The goods, as customers see them
# --------------------------------
# Each has a vector; near is alike. The axes of the map mean nothing.

vectors = model.factors.right[model.item_ids.rows(goods, "item")]
vectors = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
places = TSNE(perplexity=12, init="pca", method="exact", random_state=0).fit_transform(vectors)
places = 100 * (places - places.min(axis=0)) / np.ptp(places, axis=0)

# Names need room: those that overlap push each other aside.
size = np.stack([1.35 * np.array([len(good) for good in goods]) + 1.5, np.full(len(goods), 3.6)], 1)
for _ in range(400):
    apart = places[:, None] - places + 1e-3 * rng.standard_normal((len(goods), len(goods), 2))
    overlap = np.maximum((size[:, None] + size) / 2 - np.abs(apart), 0)
    both = (overlap.min(axis=2) > 0) & ~np.eye(len(goods), dtype=bool)
    push = np.sign(apart) * overlap * [0.15, 0.3]
    places += np.where(both[:, :, None], push, 0).sum(axis=1) / 2

plt.rcParams.update({"font.size": 11, "savefig.dpi": 120})
figure, (plan, bars) = plt.subplots(
    1, 2, figsize=(14, 8.4), width_ratios=(3.6, 1), layout="constrained"
)
colours = plt.get_cmap("Dark2").colors
for number, name in enumerate(KINDS):
    own = places[kind == number]
    for (x, y), good in zip(own, goods[kind == number], strict=True):
        plan.text(x, y, good.replace("-", " "), color=colours[number], ha="center", va="center",
                  fontsize=9.5, weight="bold")  # fmt: skip
    plan.text(*np.median(own, axis=0), name, fontsize=40, weight="bold", alpha=0.13,
              ha="center", va="center", color=colours[number], zorder=0)  # fmt: skip
plan.set(xticks=[], yticks=[])
plan.set_xlim(places[:, 0].min() - 7, places[:, 0].max() + 7)
plan.set_ylim(places[:, 1].min() - 4, places[:, 1].max() + 4)
plan.set_title("Goods that the same people buy lie together", weight="bold")
plan.spines[:].set_visible(False)
bars.bar(list(hits), list(hits.values()), color=["0.75", "#0b4f8a", "0.9"], width=0.7)
for x, share in enumerate(hits.values()):
    bars.text(x, share + 0.005, f"{share:.0%}", ha="center", weight="bold")
bars.set_title(f"The next purchase is\namong {TOP} goods shown", weight="bold")
bars.set(yticks=[])
bars.spines[["top", "right", "left"]].set_visible(False)
figure.savefig(out)
print(f"picture: {out}")
