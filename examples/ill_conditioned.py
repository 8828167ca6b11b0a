"""
Why ScaledSGD: an ill-conditioned matrix, step by step
======================================================

A matrix is a sum of patterns, some strong and some weak. Plain SGD learns the strong ones and then
crawls: the weaker a pattern, the slower it is learned. ScaledSGD steps with a small preconditioner,
which makes every pattern as easy as the strongest. Both see the same entries in the same order,
from the same start, with the same step.

As a script::

    python examples/ill_conditioned.py [--out ill_conditioned.gif]
"""

import argparse

import matplotlib.pyplot as plt
import numpy as np
from PIL import Image

from scaledsgd import MatrixCompleter

SIZE, STRENGTHS, EPOCHS = 48, (10.0, 0.3, 0.01), 45
STEP = 0.2

parser = argparse.ArgumentParser(description="An ill-conditioned matrix, step by step.")
parser.add_argument("--out", default="ill_conditioned.gif", help="the animation")
out = parser.parse_args().out

# %%
# A matrix of three patterns
# --------------------------
# A broad one, waves a thirtieth as strong, and a fine weave a thousandth as strong.

t = np.linspace(0, 1, SIZE)
patterns = np.stack([np.cos(np.pi * (t - 0.5)), np.sin(6 * np.pi * t), np.cos(17 * np.pi * t)], 1)
patterns, _ = np.linalg.qr(patterns)
truth = (patterns * STRENGTHS) @ patterns.T
print(f"{SIZE} x {SIZE}, singular values {', '.join(f'{s:g}' for s in STRENGTHS)}: "
      f"condition number {STRENGTHS[0] / STRENGTHS[-1]:.0f}")  # fmt: skip

# %%
# Two ways to step
# ----------------
# A callback keeps what each has learned after every epoch.

films = {}
for name, scaled in (("SGD", False), ("ScaledSGD", True)):
    states = []
    MatrixCompleter(
        rank=3, symmetric=True, scaled=scaled, learning_rate=STEP, epochs=EPOCHS, tol=0,
        random_state=1, callbacks=[lambda now, to=states: to.append(now.factors.X.copy())],
    ).fit(truth)  # fmt: skip
    films[name] = [X @ X.T for X in states]
    left = [np.linalg.norm(patterns.T @ (truth - films[name][-1]) @ patterns[:, k])
            for k in range(3)]  # fmt: skip
    wrong = ", ".join(f"{e / s:.1%}" for e, s in zip(left, STRENGTHS, strict=True))
    print(f"{name}: after {EPOCHS} epochs the three patterns are wrong by {wrong}")

# %%
# What they see
# -------------
# Above, what is known so far, each pattern drawn as strongly as every other: as it is, the eye
# would see the first alone. Below, the error of the whole.

frames = min(map(len, films.values()))
BLUE, ORANGE = "#0b4f8a", "#e68a00"
plt.rcParams.update({"font.size": 11, "axes.titleweight": "bold"})
figure, parts = plt.subplot_mosaic(
    "tsp;ccc", figsize=(10, 7.2), dpi=80, height_ratios=(1.3, 1), layout="constrained"
)
even = patterns / np.sqrt(STRENGTHS)


def drawn(M: np.ndarray) -> np.ndarray:
    """The patterns in M, in units of their strengths."""
    return patterns @ (even.T @ M @ even) @ patterns.T


most = 0.8 * np.abs(drawn(truth)).max()
look = {"cmap": "RdBu_r", "vmin": -most, "vmax": most}
parts["t"].imshow(drawn(truth), **look)
parts["t"].set_title("The matrix")
images = {}
for key, (name, film) in zip("sp", films.items(), strict=True):
    images[name] = parts[key].imshow(drawn(film[0]), **look)
    parts[key].set_title(f"{name} so far", color=ORANGE if name == "SGD" else BLUE)
for key in "tsp":
    parts[key].set(xticks=[], yticks=[])
curve = parts["c"]
error = {name: [np.linalg.norm(M - truth) / np.linalg.norm(truth) for M in film]
         for name, film in films.items()}  # fmt: skip
for strength in STRENGTHS[1:]:
    curve.axhline(strength / np.linalg.norm(STRENGTHS), color="0.85", lw=1)
    curve.text(frames - 1, strength / np.linalg.norm(STRENGTHS) / 1.3, va="top",
               s=f"without what has strength {strength:g}", color="0.45", ha="right")  # fmt: skip
lines, dots = {}, {}
for name, colour, style in (("SGD", ORANGE, "--"), ("ScaledSGD", BLUE, "-")):
    (lines[name],) = curve.semilogy([], [], style, color=colour, lw=2.4, label=name)
    (dots[name],) = curve.plot([], [], "o", color=colour, ms=8)
curve.set(xlim=(0, frames - 1), ylim=(min(error["ScaledSGD"]) / 3, 10), xlabel="epoch",
          ylabel="error of the matrix")  # fmt: skip
curve.set_yticks([1, 1e-2, 1e-4, 1e-6], ["1", "0.01", "0.0001", "0.000001"])
curve.minorticks_off()
curve.legend(loc="lower left", frameon=False)
curve.grid(color="0.94")
curve.spines[["top", "right"]].set_visible(False)


def draw(frame: int) -> Image.Image:
    for name in films:
        images[name].set_data(drawn(films[name][frame]))
        lines[name].set_data(range(frame + 1), error[name][: frame + 1])
        dots[name].set_data([frame], [error[name][frame]])
    figure.canvas.draw()
    figure.set_layout_engine("none")  # once drawn, all parts have their places
    return Image.fromarray(np.asarray(figure.canvas.buffer_rgba())[..., :3])


first, *others = [draw(frame) for frame in range(0, frames, 2)]
first.save(out, save_all=True, append_images=others, duration=250, loop=0)
print(f"picture: {out}")
