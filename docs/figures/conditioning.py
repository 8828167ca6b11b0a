"""How it works: the same steps down a round bowl and down a long valley."""

import matplotlib.pyplot as plt
import numpy as np

from scaledsgd import MatrixCompleter
from scaledsgd.research.synthetic import psd_matrix

KAPPAS = 10.0 ** np.arange(0, 7)
EPOCHS = 300


def epochs_needed(kappa: float, scaled: bool) -> float:
    """Passes until the smallest direction is known to a hundredth; NaN for more than 300."""
    M, _ = psd_matrix(30, (2.0, 2 * kappa**-0.5, 2 / kappa), seed=0)
    model = MatrixCompleter(
        rank=3, symmetric=True, scaled=scaled, learning_rate=0.3, damping=0.0,
        epochs=EPOCHS, tol=1e-300, random_state=0,
    )  # fmt: skip
    loss = model.fit(M).history_["loss"]
    good = np.flatnonzero(2 * 900 * loss < (0.02 / kappa) ** 2)
    return model.history_["epoch"][good[0]] if len(good) else np.nan


needed = {scaled: [epochs_needed(kappa, scaled) for kappa in KAPPAS] for scaled in (True, False)}


def descend(scaled: bool) -> np.ndarray:
    """Gradient descent on a quadratic bowl 25 times as long as wide."""
    curve, step = np.array([1.0, 25.0]), 0.3 if scaled else 1.85 / 25
    way = [np.array([-4.0, 0.8])]
    for _ in range(14):
        slope = curve * way[-1]
        way.append(way[-1] - step * (slope / curve if scaled else slope))
    return np.array(way)


ways = {scaled: descend(scaled) for scaled in (True, False)}
NAMES = {True: ("ScaledSGD", "tab:red", "o"), False: ("SGD", "tab:blue", "s")}


def draw():
    figure, (valley, curves) = plt.subplots(1, 2, figsize=(7.4, 3.4), layout="constrained")
    x, y = np.meshgrid(np.linspace(-4.6, 1.2, 200), np.linspace(-1.1, 1.1, 200))
    valley.contour(x, y, x**2 + 25 * y**2, levels=np.geomspace(0.3, 25, 8),
                   colors=plt.rcParams["grid.color"], linewidths=1)  # fmt: skip
    for scaled, (name, colour, mark) in NAMES.items():
        valley.plot(*ways[scaled].T, "-", marker=mark, ms=4, lw=1.4, color=colour, label=name)
        curves.semilogx(KAPPAS, needed[scaled], "-", marker=mark, color=colour, label=name)
    never = KAPPAS[np.isnan(needed[False])]
    curves.plot(never, np.full(len(never), EPOCHS - 8), "^", mfc="none", color="tab:blue",
                label=f"SGD: more than {EPOCHS}")  # fmt: skip
    valley.plot(0, 0, "*", ms=14, color=plt.rcParams["text.color"])
    valley.set(title="down a long valley", xticks=[], yticks=[])
    valley.legend(loc="lower right", frameon=False)
    curves.set(title="epochs needed", xlabel="condition number of M",
               ylabel="epochs", ylim=(0, EPOCHS))  # fmt: skip
    curves.grid(axis="y")
    curves.legend(loc="center right", frameon=False)
    return figure
