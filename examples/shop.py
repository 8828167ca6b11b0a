"""A shop that learns while it sells: customers with hidden tastes buy, the server learns from every
purchase, and what it recommends gets better.

    scaledsgd serve --playground          # in another terminal, or let this script start a server
    python examples/shop.py [--url URL --token TOKEN]

Without --url it trains a model on one evening's purchases, serves it, and sends it a week of them.
Draws how often one of ten recommendations is what the customer buys next.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np

from scaledsgd import Client, Recommender

CUSTOMERS, GOODS, TASTES = 400, 240, 12
FIRST, PER_DAY, DAYS = 300, 1500, 7  # purchases


class Shop:
    """Customers who like a few kinds of goods each, and a few goods of a kind more than others."""

    def __init__(self, seed: int = 0):
        self.rng = np.random.default_rng(seed)
        kinds = np.arange(GOODS) % TASTES
        fame = self.rng.permutation(np.arange(1, GOODS + 1)) ** -0.4
        likes = self.rng.dirichlet(np.full(TASTES, 0.15), CUSTOMERS) + 0.005
        chances = likes[:, kinds] * fame
        self.chances = chances / chances.sum(axis=1, keepdims=True)

    def purchases(self, count: int) -> list[dict]:
        who = self.rng.integers(0, CUSTOMERS, count)
        what = [int(self.rng.choice(GOODS, p=self.chances[c])) for c in who]
        return [{"user": f"c{c}", "item": f"g{g}"} for c, g in zip(who, what, strict=True)]


def hits(client: Client, coming: list[dict]) -> float:
    """How often the next purchase is among ten recommendations made before it."""
    found, asked = 0, 0
    for one in coming:
        try:
            items, _ = client.recommend(one["user"], k=10, filter_seen=False)
        except ValueError:  # a customer who was never here
            continue
        found, asked = found + (one["item"] in items), asked + 1
    return found / max(1, asked)


def week(client: Client, shop: Shop) -> list[float]:
    """Before each day, what is recommended; then the day, and the wait until it is learned."""
    shares = []
    for day in range(DAYS + 1):
        shares.append(hits(client, shop.purchases(300)))
        print(
            f"after {FIRST + day * PER_DAY:6,} purchases: {shares[-1]:.0%} of the next were shown"
        )
        bought = shop.purchases(PER_DAY)
        for start in range(0, PER_DAY, 100):
            client.send(bought[start : start + 100])
        for state in client.live():
            if state["behind"] == 0:
                break
    return shares


def draw(shares: list[float], shop: Shop, out: Path) -> None:
    best = np.sort(shop.chances, axis=1)[:, -10:].sum(axis=1).mean()
    known = np.sort(shop.chances.mean(axis=0))[-10:].sum()
    figure, axes = plt.subplots(figsize=(8, 5))
    axes.plot(FIRST + PER_DAY * np.arange(len(shares)), shares, "o-", lw=2, label="recommended")
    axes.axhline(best, color="0.35", ls="--", label="if every taste were known")
    axes.axhline(known, color="0.6", ls=":", label="the ten best-sellers")
    axes.set(
        title="What customers buy next, among ten recommendations", ylim=(0, None),
        xlabel="purchases learned", ylabel="share of purchases",
    )  # fmt: skip
    axes.legend(frameon=False)
    axes.grid(alpha=0.25)
    figure.savefig(out, dpi=200, bbox_inches="tight")


def main() -> None:
    parser = argparse.ArgumentParser(description="A shop that learns while it sells.")
    parser.add_argument("--url", help="of a server that learns; else one is started")
    parser.add_argument("--token", default="")
    parser.add_argument("--out", type=Path, default=Path("shop.png"))
    given = parser.parse_args()
    shop = Shop()
    if given.url:
        draw(week(Client(given.url, given.token), shop), shop, given.out)
        return
    with tempfile.TemporaryDirectory() as folder:
        model, evening = Path(folder, "shop.model"), shop.purchases(FIRST)
        table = {name: [one[name] for one in evening] for name in ("user", "item")}
        Recommender(rank=TASTES, loss="squared", random_state=0).partial_fit(
            table, user="user", item="item"
        ).save(model)
        command = [sys.executable, "-m", "scaledsgd", "serve", str(model), "--learn", "--json"]
        server = subprocess.Popen(
            [*command, "--port", "0"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )
        try:
            told = json.loads(server.stdout.readline())  # type: ignore[union-attr]
            print(f"the page: {told['page']}", flush=True)
            draw(week(Client(told["url"], told["token"]), shop), shop, given.out)
        finally:
            server.terminate()
            server.wait()


if __name__ == "__main__":
    main()
