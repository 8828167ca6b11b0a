"""What tests of the command line share."""

from __future__ import annotations

import csv

import numpy as np

from scaledsgd.cli.main import main

FAST = ("--rank", "1", "--epochs", "60", "--seed", "0")


def runner(capsys):
    """Runs a command: exit code, stdout, stderr."""

    def call(*arguments: str) -> tuple[int, str, str]:
        capsys.readouterr()
        code = main(list(arguments))
        return (code, *capsys.readouterr())

    return call


def write(rows, header=("user", "film", "stars"), name="a.csv") -> str:
    with open(name, "w", newline="") as file:
        csv.writer(file).writerows([header, *rows])
    return name


def ratings(words: bool = True) -> list[tuple]:
    """All entries of a rank-1 matrix but a few."""
    u, v = np.arange(1, 9), np.arange(1, 7)
    named = (lambda i: f"u{i}") if words else int
    return [(named(i), j, float(u[i] * v[j])) for i in range(8) for j in range(6) if (i + j) % 5]
