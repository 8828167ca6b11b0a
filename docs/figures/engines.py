"""How it works: what P may lag behind without loss, on the paper's first matrix."""

import matplotlib.pyplot as plt

from scaledsgd import MatrixCompleter
from scaledsgd.research.synthetic import psd_matrix

M, _ = psd_matrix(30, (10.0, 0.1, 0.001), seed=0)
WAYS = [
    ("P after every sample (the paper)", "sample", True, "tab:gray", 5),
    ("P by rounds (here)", "round", True, "tab:red", 1.8),
    ("no P: SGD", "round", False, "tab:blue", 1.8),
]


def fitted(refresh: str, scaled: bool):
    return MatrixCompleter(
        rank=3, symmetric=True, scaled=scaled, refresh=refresh, learning_rate=0.3, damping=0.0,
        epochs=60, random_state=0,
    ).fit(M).history_  # fmt: skip


curves = {name: fitted(refresh, scaled) for name, refresh, scaled, *_ in WAYS}


def draw():
    figure, axis = plt.subplots(figsize=(6.4, 3.4), layout="constrained")
    for name, _, _, colour, width in WAYS:
        history = curves[name]
        axis.semilogy(history["epoch"], history["loss"], color=colour, lw=width, label=name)
    axis.set(xlabel="epochs", ylabel="mean loss", title="the same curve, at a fraction of the cost")
    axis.grid(axis="y")
    axis.legend(frameon=False)
    return figure
