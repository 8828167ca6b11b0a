"""Ratings that tests of the recommender share."""

from __future__ import annotations

import numpy as np

NAMES = {"user": "who", "item": "what", "value": "stars"}


def two_kinds(seed: int = 0, users: int = 60, kind: int = 12) -> dict[str, np.ndarray]:
    """Users who like red items or blue ones, and now and then try another."""
    rng = np.random.default_rng(seed)
    who = np.repeat(np.arange(users), 10)
    likes = who % 2
    strays = rng.random(len(who)) < 0.1
    what = rng.integers(kind, size=len(who)) + kind * np.where(strays, 1 - likes, likes)
    stars = np.where(strays, 1.0, rng.integers(3, 6, len(who)))
    names = np.array([f"{('red', 'blue')[n // kind]}{n % kind}" for n in range(2 * kind)], object)
    return {"who": np.array([f"u{n}" for n in who], object), "what": names[what], "stars": stars}
