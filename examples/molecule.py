"""
A molecule from short distances
===============================

Nuclear magnetic resonance tells which atoms of a protein are near each other, and about how near:
nothing beyond some ångström, and nothing exact. Along the chain, distances are known from
chemistry. Is that enough for the shape of the whole?

As a script::

    python examples/molecule.py [--out molecule.png]
"""

import argparse
from itertools import pairwise

import matplotlib.pyplot as plt
import numpy as np
from scipy.interpolate import CubicSpline
from scipy.sparse import coo_array
from scipy.spatial.distance import pdist, squareform

from scaledsgd import DistanceCompleter

REACH, NOISE, SEEN = 12.0, 0.05, 0.6  # ångström; of a distance; of the pairs within reach

parser = argparse.ArgumentParser(description="A molecule from short distances.")
parser.add_argument("--out", default="molecule.png", help="the picture")
out = parser.parse_args().out

# %%
# A chain
# -------
# Four helices side by side, up and down, joined by loops: a fold that many proteins have. Every
# point is one residue, 3.8 ångström from the next.


def bundle(length: int = 22, gap: float = 9.5) -> np.ndarray:
    """Residues of four helices at the corners of a square, and of the loops between them."""
    parts, turn = [], np.radians(100)
    for number, corner in enumerate([(0, 0), (gap, 0), (gap, gap), (0, gap)]):
        n = np.arange(length)
        up = n if number % 2 == 0 else n[::-1]
        helix = [2.3 * np.cos(turn * n + number) + corner[0], 2.3 * np.sin(turn * n + number)]
        parts.append(np.stack([helix[0], helix[1] + corner[1], 1.5 * up], axis=1))
    chain = [parts[0]]
    for before, after in pairwise(parts):
        way = np.linspace(before[-1], after[0], 6)[1:-1]
        bulge = np.sin(np.linspace(0, np.pi, 6))[1:-1]
        way[:, 2] += 4.5 * bulge * (1 if before[-1, 2] > 10 else -1)
        chain += [way, after]
    return np.concatenate(chain)


truth = bundle()[:, [2, 0, 1]]  # lying down
count = len(truth)
along = np.linalg.norm(np.diff(truth, axis=0), axis=1)
distance = squareform(pdist(truth))
print(f"{count} residues, {along.mean():.1f} ångström apart along the chain")

# %%
# What is measured
# ----------------
# Most of the pairs within reach, to about 5%; and the neighbours along the chain, well.

rng = np.random.default_rng(0)
i, j = np.triu_indices(count, 1)
near = (distance[i, j] < REACH) & (rng.random(len(i)) < SEEN)
chain = j - i <= 2
i, j, chain = i[near | chain], j[near | chain], chain[near | chain]
measured = distance[i, j] * (1 + np.where(chain, 0.005, NOISE) * rng.standard_normal(len(i)))
print(f"{len(i)} distances of {count * (count - 1) // 2} are known, none above {REACH:.0f} "
      f"ångström in a molecule that is {distance.max():.0f} ångström long")  # fmt: skip

# %%
# The shape
# ---------
# Distances in, places out. A mirror image has the same distances: which of both it is, chemistry
# knows; here, the one that fits is taken when the shape is laid over the true one.

model = DistanceCompleter(rank=3, random_state=0)
model.fit(coo_array((measured**2, (i, j)), shape=(count, count)))
found = model.align(range(count), truth)
off = np.linalg.norm(found - truth, axis=1)
print(f"residues are off by {np.sqrt(np.mean(off**2)):.2f} ångström, at most {off.max():.2f}")

# %%
# Over each other
# ---------------

plt.rcParams.update({"font.size": 12, "savefig.dpi": 120, "axes.titleweight": "bold"})
figure = plt.figure(figsize=(14, 6.9), layout="constrained")
left, right = figure.subfigures(1, 2, width_ratios=(1.3, 1))
space = left.add_subplot(projection="3d", computed_zorder=False)
colours = plt.get_cmap("turbo")(np.linspace(0.05, 0.95, count))


def smooth(points: np.ndarray, fine: int = 8) -> np.ndarray:
    """A curve through the points."""
    at = np.arange(len(points))
    return CubicSpline(at, points)(np.linspace(0, len(points) - 1, fine * len(points)))


space.plot(*smooth(truth).T, color="0.78", lw=7, solid_capstyle="round", zorder=1)
curve = smooth(found)
for k in range(len(curve) - 1):
    space.plot(*curve[k : k + 2].T, color=colours[k * count // len(curve)], lw=2.6, zorder=2)
space.scatter(*found.T, c=colours, s=16, depthshade=False, zorder=3)
space.plot([], [], color="0.78", lw=7, label="the molecule")
space.plot([], [], color=colours[count // 2], lw=2.6, label="found, by place in the chain")
space.set_box_aspect(np.ptp(truth, axis=0), zoom=1.12)
space.view_init(elev=32, azim=-78)
space.set_axis_off()
space.legend(loc="lower center", frameon=False, ncols=2, bbox_to_anchor=(0.5, -0.02))
space.set_title(f"A molecule, found to {np.sqrt(np.mean(off**2)):.1f} ångström", y=0.98)

axis = right.add_subplot()
both = np.full((count, count), np.nan)
both[i, j] = measured
both[np.tril_indices(count)] = squareform(pdist(found))[np.tril_indices(count)]
shown = plt.get_cmap("viridis_r").with_extremes(bad="0.96")
image = axis.imshow(both, cmap=shown, vmin=0, vmax=distance.max(), interpolation="nearest")
axis.text(0.97, 0.97, "measured", transform=axis.transAxes, ha="right", va="top", weight="bold")
axis.text(0.03, 0.03, "found", transform=axis.transAxes, weight="bold", color="white")
axis.set(xlabel="residue", ylabel="residue", title="Distances: known, and found")
right.colorbar(image, label="ångström", shrink=0.7)
figure.savefig(out)
print(f"picture: {out}")
