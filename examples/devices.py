"""
The same model on CPU, GPU and cluster
======================================

A fit is a loop of rounds, and inside a round every sample is a step of its own: who runs them, a
thread, sixteen of them, a graphics card or the workers of a cluster, is one word in the settings.
This page runs one and the same fit wherever it can, and says what is missing on this machine.

As a script::

    python examples/devices.py [--out devices.png] [--without cluster]
"""

import argparse
import os
import time
from importlib.util import find_spec

import matplotlib.pyplot as plt
import numpy as np

from scaledsgd import MatrixCompleter, Observations, RayEngine
from scaledsgd.engines.base import describe

ROWS, COLUMNS, RANK, SAMPLES, EPOCHS = 3000, 2000, 8, 400_000, 12

parser = argparse.ArgumentParser(description="The same model on CPU, GPU and cluster.")
parser.add_argument("--out", default="devices.png", help="the picture")
parser.add_argument("--without", default="", help="what is left out: gpu, cluster")
given = parser.parse_args()

# %%
# A matrix, ill-conditioned
# -------------------------
# Its largest singular value is a hundred times its smallest.

rng = np.random.default_rng(0)
L, R = (rng.standard_normal((n, RANK)) for n in (ROWS, COLUMNS))
L = L * np.geomspace(1, 0.01, RANK)
i, j = rng.integers(0, ROWS, SAMPLES), rng.integers(0, COLUMNS, SAMPLES)
y = np.einsum("tr,tr->t", L[i], R[j])
test = rng.integers(0, ROWS, 20_000), rng.integers(0, COLUMNS, 20_000)
truth = np.einsum("tr,tr->t", L[test[0]], R[test[1]])

# %%
# Who can run it here?
# --------------------

ways = {"one thread": {}}
cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
if cores > 1:
    ways[f"{cores} threads"] = {"n_jobs": cores}
else:
    print("threads: this machine has one core")
if "gpu" in given.without or not describe("auto").startswith("cuda"):
    print(f"GPU: left out ({describe('auto')}); pip install 'scaledsgd[gpu]' on a machine with one")
else:
    ways["GPU"] = {"device": "cuda"}
if "cluster" in given.without or find_spec("ray") is None:
    print("cluster: left out; pip install 'scaledsgd[ray]'")
else:
    os.environ.setdefault("RAY_DEDUP_LOGS", "0")
    ways["cluster, 2 workers"] = {"engine": RayEngine("local", workers=2)}

# %%
# The same fit
# ------------
# Its history has the error on what is learned after every epoch; entries that nobody has seen judge
# the end.

curves = {}
for name, how in ways.items():
    seen, clock = Observations.pairs(i, j, y, shape=(ROWS, COLUMNS)), time.perf_counter()
    model = MatrixCompleter(RANK, epochs=EPOCHS, tol=0, random_state=0, **how).fit(seen)
    took = time.perf_counter() - clock
    off = np.sqrt(np.mean((model.predict(test) - truth) ** 2) / np.mean(truth**2))
    curves[name] = np.sqrt(2 * model.history_["loss"] / np.mean(y**2))
    print(f"{name}: error {off:.1e} after {took:.1f} s, with what had to be started and compiled")

# %%
# One curve, whoever runs it
# --------------------------
# The order of the samples differs, and a cluster's rounds are longer: it is a little behind, on its
# way to the same place.

plt.rcParams.update({"font.size": 13, "savefig.dpi": 120, "axes.titleweight": "bold"})
figure, axis = plt.subplots(figsize=(11, 8), layout="constrained")
colours = ["#0b4f8a", "#e68a00", "#2a9d5c", "#b23a6f"]
for number, (name, errors) in enumerate(curves.items()):
    axis.semilogy(np.arange(1, len(errors) + 1), errors, lw=7 - 2 * number, color=colours[number],
                  marker="os^D"[number], ms=11 - 2 * number, label=name,
                  ls=("-", "-", "--", ":")[number])  # fmt: skip
axis.set(xlabel="epoch", ylabel="error, of the size of the entries")
axis.set_title("The same model, whoever runs its samples")
axis.legend(frameon=False)
axis.grid(color="0.92")
axis.spines[["top", "right"]].set_visible(False)
figure.savefig(given.out)
print(f"picture: {given.out}")
