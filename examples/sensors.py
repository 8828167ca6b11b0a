"""
Where are the sensors?
======================

Sensors in a square kilometre measure, by radio, how far all others within reach are, give or take
1%. Eight of them know where they are. Distances drawn from everywhere would be easy; these are all
short, so nothing says how far apart two ends of the field are, and steps from a random start fold
the field up. The fit sees that by ranges that it has held out, and starts again from the shortest
ways through the network, which are detours but have the right shape.

Where there are few neighbours that fails as well, though not for want of information: least squares
started at the true places stays within 2 m of them (median) down to a reach of 80 m. Without the
truth, the misfit of the ranges gives the failure away: it is far above their noise.

As a script::

    python examples/sensors.py [--out sensors.png]
"""

import argparse
import warnings

import matplotlib.pyplot as plt
import numpy as np
from scipy.sparse import csr_array
from scipy.spatial import KDTree

from scaledsgd import DistanceCompleter, UndeterminedWarning

SENSORS, ANCHORS, NOISE = 400, 8, 0.01
FIELD = 1000.0  # metres
REACHES, DRAWN = (80, 100, 120, 140, 170, 200, 300, 500), (200, 120, 80)  # metres

parser = argparse.ArgumentParser(description="Where are the sensors?")
parser.add_argument("--out", default="sensors.png", help="the picture")
out = parser.parse_args().out
warnings.simplefilter("ignore", UndeterminedWarning)  # which networks are too sparse is shown below

# %%
# A field
# -------

rng = np.random.default_rng(0)
truth = FIELD * rng.random((SENSORS, 2))
anchors = np.arange(ANCHORS)

# %%
# The shorter the reach, the fewer the neighbours
# -----------------------------------------------

plt.rcParams.update({"font.size": 11})
figure, axes = plt.subplots(2, 2, figsize=(12, 12), layout="constrained")
maps = dict(zip(DRAWN, axes.flat, strict=False))
medians = []
print("reach  neighbours  median error  worst error  misfit of the ranges")
for reach in REACHES:
    i, j = KDTree(truth).query_pairs(reach, output_type="ndarray").T
    distance = np.linalg.norm(truth[i] - truth[j], axis=1) * rng.normal(1, NOISE, len(i))
    squared = csr_array(((distance / FIELD) ** 2, (i, j)), shape=(SENSORS, SENSORS))
    neighbours = 2 * len(i) / SENSORS
    model = DistanceCompleter(rank=2, random_state=0).fit(squared)
    found = FIELD * model.align(anchors, truth[anchors] / FIELD)
    error = np.linalg.norm(found - truth, axis=1)
    medians.append(np.median(error))
    misfit = np.median(np.abs(FIELD * np.sqrt(model.predict((i, j))) / distance - 1))
    print(f"{reach:3} m {neighbours:11.0f} {np.median(error):11.1f} m {error.max():10.1f} m "
          f"{misfit:20.1%}")  # fmt: skip
    if axis := maps.get(reach):
        axis.plot(*np.stack([truth, found], 1).T, color="tab:red", lw=0.8)
        axis.scatter(*truth.T, s=30, facecolors="none", edgecolors="0.5", label="true place")
        axis.scatter(*found.T, s=9, color="tab:blue", label="place found")
        axis.scatter(*truth[anchors].T, marker="s", s=50, color="black", label="anchor")
        axis.set(xlim=(-150, 1150), ylim=(-150, 1250), xlabel="metres", ylabel="metres",
                 title=f"Reach {reach} m, {neighbours:.0f} neighbours: {medians[-1]:.1f} m off "
                 "in the median")  # fmt: skip
        axis.legend(loc="upper center", ncols=3)
curve = axes[1, 1]
curve.loglog(REACHES, medians, "o-")
curve.set(title="Median error", xlabel="radio reach, metres", ylabel="metres")
curve.set_xticks(REACHES, REACHES)
curve.minorticks_off()
curve.grid(color="0.9")
figure.savefig(out, dpi=100)
print(f"picture: {out}")
