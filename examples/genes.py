"""
Gene expression with gaps, in a scikit-learn pipeline
=====================================================

Tables of measurements have gaps, and their columns are of different kinds: a gene that is read
thousands of times stands beside one that is read ten times. `MatrixCompleter(center="columns")` is
an imputer for such tables: every column has a mean, a size and a noise of its own. It fills the
gaps of rows that it has never seen, and so fits into pipelines, searches and cross-validation.

As a script::

    python examples/genes.py [--out genes.png]
"""

import argparse

import matplotlib.pyplot as plt
import numpy as np
from sklearn.impute import KNNImputer, SimpleImputer
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from scaledsgd import MatrixCompleter

SAMPLES, GENES, TYPES, PATHWAYS, GONE = 240, 160, 3, 5, 0.3

parser = argparse.ArgumentParser(description="Gene expression with gaps, in a pipeline.")
parser.add_argument("--out", default="genes.png", help="the picture")
out = parser.parse_args().out

# %%
# A table
# -------
# 240 samples of three types of tissue. Genes belong to pathways, which are more or less active in a
# sample, by its type and by chance; and they are read in numbers that differ a hundredfold.

rng = np.random.default_rng(0)
tissue = np.sort(np.arange(SAMPLES) % TYPES)
pathway = np.sort(np.arange(GENES) % PATHWAYS)
usual = rng.normal(0, 0.55, (TYPES, PATHWAYS))
activity = usual[tissue] + 0.8 * rng.standard_normal((SAMPLES, PATHWAYS))
role = rng.choice([-1.0, 1.0], GENES, p=[0.3, 0.7]) * rng.uniform(0.5, 1.2, GENES)
signal = activity[:, pathway] * role + 0.45 * rng.standard_normal((SAMPLES, GENES))
level = 10 ** rng.uniform(1, 3, GENES)
truth = level * (3 + signal)
seen = np.where(rng.random(truth.shape) < GONE, np.nan, truth)
print(f"{SAMPLES} samples, {GENES} genes read {level.min():.0f} to {level.max():.0f} times, "
      f"{np.isnan(seen).mean():.0%} of the table missing")  # fmt: skip

# %%
# New rows, filled
# ----------------
# Imputers learn from half of the samples and fill the gaps of the others. Errors are in standard
# deviations of each gene.

shuffled = rng.permutation(SAMPLES)
old, new = shuffled[: SAMPLES // 2], shuffled[SAMPLES // 2 :]
gaps = np.isnan(seen[new])
fill = MatrixCompleter("auto", center="columns", random_state=0)
scale = StandardScaler().fit(seen[old])
near = KNNImputer().fit(scale.transform(seen[old])).transform(scale.transform(seen[new]))
filled = {
    "the mean": SimpleImputer().fit(seen[old]).transform(seen[new]),
    "5 neighbours": scale.inverse_transform(near),
    "MatrixCompleter": fill.fit(seen[old]).transform(seen[new]),
}
errors = {
    name: np.sqrt(np.mean(((table - truth[new]) / truth.std(axis=0))[gaps] ** 2))
    for name, table in filled.items()
}
for name, error in errors.items():
    print(f"{name}: off by {error:.2f} standard deviations")

# %%
# In a pipeline
# -------------
# The type of tissue from a table with gaps. Cross-validation fits the imputer anew to every part,
# and a search may choose its rank like any other setting.

pipe = make_pipeline(fill, StandardScaler(), LogisticRegression(max_iter=2000, C=0.05))
score = cross_val_score(pipe, seen, tissue, cv=4).mean()
search = GridSearchCV(pipe, {"matrixcompleter__rank": [1, 2, 5, 10]}, cv=4).fit(seen, tissue)
rank = search.best_params_["matrixcompleter__rank"]
print(f"tissue told from a table with gaps: {score:.0%} right; the best rank of a search is {rank}")

# %%
# Before and after
# ----------------

plt.rcParams.update({"font.size": 12, "savefig.dpi": 120, "axes.titleweight": "bold"})
figure, axes = plt.subplots(
    1, 4, figsize=(14.5, 7), width_ratios=(1, 1, 1, 0.85), layout="constrained"
)
order = np.argsort(tissue[new], kind="stable")
genes = np.lexsort((role, pathway))
shown = plt.get_cmap("RdBu_r").with_extremes(bad="0.8")
tables = {"With gaps": seen[new], "Filled": filled["MatrixCompleter"], "The truth": truth[new]}
for axis, (title, table) in zip(axes, tables.items(), strict=False):
    z = ((table - truth.mean(axis=0)) / truth.std(axis=0))[order][:, genes]
    image = axis.imshow(z, cmap=shown, vmin=-2.2, vmax=2.2, aspect="auto", interpolation="nearest")
    axis.set(title=title, xticks=[], yticks=[])
    for border in np.flatnonzero(np.diff(tissue[new][order])):
        axis.axhline(border + 0.5, color="black", lw=1.5)
    for border in np.flatnonzero(np.diff(pathway)):
        axis.axvline(border + 0.5, color="black", lw=0.7)
    axis.set_xlabel("genes, by pathway")
axes[0].set_ylabel("samples, by tissue")
figure.colorbar(image, ax=axes[:3], location="bottom", shrink=0.4, aspect=40, pad=0.02,
                label="standard deviations from the gene's mean")  # fmt: skip
bars = axes[3].bar(list(errors), list(errors.values()), color=["0.8", "#e68a00", "#0b4f8a"])
axes[3].bar_label(bars, fmt="%.2f", weight="bold", padding=3)
axes[3].set(title="Error in the gaps", yticks=[], ylim=(0, 1.1))
axes[3].set_xlabel("in standard deviations of a gene", labelpad=12)
axes[3].tick_params(axis="x", labelsize=10)
axes[3].set_xticks(range(3), ["the mean", "5 neighbours", "Matrix-\nCompleter"])
axes[3].spines[["top", "right", "left"]].set_visible(False)
figure.savefig(out)
print(f"picture: {out}")
