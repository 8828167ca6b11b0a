"""
Probabilities from yes or no
============================

People were asked whether they agree with statements, each person some of the statements, once. The
answer is a coin that falls on "yes" with a probability nobody saw. What are the probabilities,
also where nobody was asked?

As a script::

    python examples/one_bit.py [--out one_bit.png]
"""

import argparse

import matplotlib.pyplot as plt
import numpy as np

from scaledsgd import MatrixCompleter

PEOPLE, STATEMENTS, ASKED = 800, 600, 0.3

parser = argparse.ArgumentParser(description="Probabilities from yes or no.")
parser.add_argument("--out", default="one_bit.png", help="the picture")
out = parser.parse_args().out

# %%
# Opinions
# --------
# They lie on a circle, the nearer a statement is to a person the likelier the yes, and some
# statements please everybody. As log odds that is a matrix of rank 3.

rng = np.random.default_rng(0)
person = np.sort(rng.uniform(0, 2 * np.pi, PEOPLE))
statement = np.sort(rng.uniform(0, 2 * np.pi, STATEMENTS))
log_odds = 3 * np.cos(person[:, None] - statement) + rng.normal(0, 0.7, STATEMENTS)
truth = 1 / (1 + np.exp(-log_odds))

# What is known: 1 for yes, 0 for no, NaN where nobody asked.
asked = rng.random(truth.shape) < ASKED
answers = np.where(asked, rng.random(truth.shape) < truth, np.nan)

# %%
# Learn from answers
# ------------------
# The rank is not given: the completer keeps the directions that help on answers it holds out.

model = MatrixCompleter(rank="auto", loss="logistic", random_state=0).fit(answers)
everywhere = np.indices(truth.shape).reshape(2, -1)
learned = model.predict_proba(tuple(everywhere)).reshape(truth.shape)

# %%
# How good is that?
# -----------------
# Judged only where nobody was asked. Fresh coins there give the accuracy that a perfect model has.

new = ~asked
coins = rng.random(new.sum()) < truth[new]
accuracy = np.mean((learned[new] > 0.5) == coins)
best = np.mean((truth[new] > 0.5) == coins)
error = np.abs(learned - truth)[new].mean()
print(f"{PEOPLE} people, {STATEMENTS} statements, {asked.sum():,} answers ({ASKED:.0%})")
print(f"rank found: {model.effective_rank_}")
print(f"mean error of the probabilities {error:.3f} (saying 0.5 everywhere: "
      f"{np.abs(0.5 - truth)[new].mean():.3f})")  # fmt: skip
print(f"new answers guessed right {accuracy:.3f} (with the true probabilities: {best:.3f})")

# Calibration: of all entries called about 0.8, are 0.8 yes? A line flatter than the diagonal is
# a model too sure of itself, which one without a penalty on large factors always is a little.
edges = np.linspace(0, 1, 11)
part = np.digitize(learned[new], edges[1:-1])
called = [learned[new][part == b].mean() for b in range(10)]
happened = [coins[part == b].mean() for b in range(10)]
print(f"calibration off by at most {np.abs(np.subtract(called, happened)).max():.3f}")

# %%
# Before and after
# ----------------

plt.rcParams.update({"font.size": 11})
figure, axes = plt.subplots(2, 2, figsize=(12, 9.5), layout="constrained")
shown = plt.get_cmap("cividis").with_extremes(bad="0.55")
pictures = {
    "The true probabilities, never seen": truth,
    f"What was seen: {ASKED:.0%} of the answers (grey: not asked)": answers,
    f"What was learned from that (rank {model.effective_rank_})": learned,
}
for axis, (title, matrix) in zip(axes.flat, pictures.items(), strict=False):
    image = axis.imshow(matrix, cmap=shown, vmin=0, vmax=1, aspect="auto", interpolation="nearest")
    axis.set(title=title, xlabel="statement", ylabel="person")
figure.colorbar(image, ax=axes[0, 0], label="probability of a yes")
figure.colorbar(image, ax=axes[1, 0], label="probability of a yes")
curve = axes[1, 1]
curve.plot([0, 1], [0, 1], color="0.6", label="a perfect model")
curve.plot(called, happened, "o-", color="tab:blue", label="this one, where nobody had asked")
curve.bar(edges[:-1] + 0.05, np.bincount(part, minlength=10) / len(part), width=0.09, color="0.85",
          label="share of the entries")  # fmt: skip
curve.set(title="Calibration: when it says 0.8, is it 0.8?", xlabel="probability learned",
          ylabel="share of yes", aspect="equal")  # fmt: skip
curve.legend(loc="upper left")
figure.savefig(out, dpi=100)
print(f"picture: {out}")
