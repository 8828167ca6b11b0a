"""Small worlds to play with: a library and its readers, and a map of Europe. Nothing is downloaded.

The books and the cities are real. The readers are made up: each has a taste for a few shelves, and
takes what suits it, well-known books more often than others.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from importlib import resources

import numpy as np

from ..estimators.base import Learner
from ..estimators.completers import DistanceCompleter, MatrixCompleter
from ..estimators.ranker import ItemRanker
from ..estimators.recommender import Recommender
from .answers import Known
from .event_log import EventLog

# Degrees north and east.
CITIES = {
    "Lisbon": (38.7, -9.1), "Porto": (41.1, -8.6), "Madrid": (40.4, -3.7), "Seville": (37.4, -6.0),
    "Barcelona": (41.4, 2.2), "Valencia": (39.5, -0.4), "Bilbao": (43.3, -2.9),
    "Toulouse": (43.6, 1.4), "Marseille": (43.3, 5.4), "Lyon": (45.8, 4.8), "Paris": (48.9, 2.4),
    "Brest": (48.4, -4.5), "Nantes": (47.2, -1.6), "Lille": (50.6, 3.1), "Brussels": (50.9, 4.4),
    "Amsterdam": (52.4, 4.9), "London": (51.5, -0.1), "Cardiff": (51.5, -3.2),
    "Manchester": (53.5, -2.2), "Edinburgh": (56.0, -3.2), "Aberdeen": (57.1, -2.1),
    "Dublin": (53.3, -6.3), "Cork": (51.9, -8.5), "Belfast": (54.6, -5.9), "Cologne": (50.9, 7.0),
    "Hamburg": (53.6, 10.0), "Berlin": (52.5, 13.4), "Munich": (48.1, 11.6),
    "Frankfurt": (50.1, 8.7), "Zurich": (47.4, 8.5), "Geneva": (46.2, 6.1), "Milan": (45.5, 9.2),
    "Turin": (45.1, 7.7), "Genoa": (44.4, 8.9), "Venice": (45.4, 12.3), "Florence": (43.8, 11.3),
    "Rome": (41.9, 12.5), "Naples": (40.9, 14.3), "Bari": (41.1, 16.9), "Palermo": (38.1, 13.4),
    "Cagliari": (39.2, 9.1), "Vienna": (48.2, 16.4), "Prague": (50.1, 14.4), "Graz": (47.1, 15.4),
    "Ljubljana": (46.1, 14.5), "Zagreb": (45.8, 16.0), "Split": (43.5, 16.4),
    "Sarajevo": (43.9, 18.4), "Belgrade": (44.8, 20.5), "Budapest": (47.5, 19.0),
    "Bratislava": (48.1, 17.1), "Warsaw": (52.2, 21.0), "Krakow": (50.1, 19.9),
    "Gdansk": (54.4, 18.6), "Vilnius": (54.7, 25.3), "Riga": (56.9, 24.1), "Tallinn": (59.4, 24.8),
    "Helsinki": (60.2, 24.9), "Oulu": (65.0, 25.5), "Stockholm": (59.3, 18.1), "Umea": (63.8, 20.3),
    "Gothenburg": (57.7, 12.0), "Malmo": (55.6, 13.0), "Copenhagen": (55.7, 12.6),
    "Aarhus": (56.2, 10.2), "Oslo": (59.9, 10.8), "Bergen": (60.4, 5.3), "Trondheim": (63.4, 10.4),
    "Athens": (38.0, 23.7), "Thessaloniki": (40.6, 22.9), "Sofia": (42.7, 23.3),
    "Skopje": (42.0, 21.4), "Tirana": (41.3, 19.8), "Bucharest": (44.4, 26.1), "Iasi": (47.2, 27.6),
    "Chisinau": (47.0, 28.9), "Odesa": (46.5, 30.7), "Kyiv": (50.5, 30.5), "Lviv": (49.8, 24.0),
    "Minsk": (53.9, 27.6), "Istanbul": (41.0, 29.0),
}  # fmt: skip

_ANCHORS = ("Lisbon", "Dublin", "Bergen", "Athens", "Kyiv")
_KNOWN = 0.3  # share of the distances that are known
_READERS, _BOOKS_READ = 900, 14
_A_SECOND = 40  # events of those who go on reading
_EVERY = 0.25  # seconds between their requests


@dataclass
class World:
    """A model, and what there is to show beside it."""

    model: Learner
    note: str
    next_events: Callable[[int], list[dict]]  # so many of what happens next
    titles: dict = field(default_factory=dict)
    known: Known | None = None
    anchors: tuple[list, np.ndarray] | None = None


class Readers:
    """Who reads what. A shelf is a line of books.txt, its best-known books first."""

    def __init__(self, seed: int = 0):
        self.rng = np.random.default_rng(seed)
        lines = resources.files("scaledsgd.serving").joinpath("books.txt").read_text().splitlines()
        shelves = [line.partition(": ")[2].split(" | ") for line in lines]
        self.titles = [title for shelf in shelves for title in shelf]
        self.shelf = np.repeat(np.arange(len(shelves)), [len(shelf) for shelf in shelves])
        self.fame = np.concatenate([1 / np.arange(1, len(shelf) + 1) ** 0.7 for shelf in shelves])
        self._tastes = len(shelves)

    def reader(self, number: int) -> np.ndarray:
        """How much a reader likes each shelf: a few of them much."""
        taste = np.random.default_rng([7, number]).gamma(0.25, size=self._tastes) + 0.004
        return taste / taste.sum()

    def chances(self, number: int) -> np.ndarray:
        chance = self.reader(number)[self.shelf] * self.fame
        return chance / chance.sum()

    def reads(self, number: int, count: int) -> np.ndarray:
        return self.rng.choice(len(self.titles), count, replace=False, p=self.chances(number))

    def stars(self, number: int, book: int) -> float:
        liking = self.reader(number)[self.shelf[book]] / self.reader(number).max()
        return float(np.clip(1 + 3.2 * np.sqrt(liking) + self.fame[book], 1, 5))

    def name(self, number: int) -> str:
        return f"reader {number}"


def library(kind: str) -> World:
    """Books and readers, for a recommender, a ranking or a matrix of ratings."""
    told = Readers()
    pairs = [
        (number, book)
        for number in range(_READERS)
        for book in told.reads(number, max(3, int(told.rng.poisson(_BOOKS_READ)))).tolist()
    ]
    told.rng.shuffle(pairs)
    users, items = [told.name(n) for n, _ in pairs], [told.titles[b] for _, b in pairs]

    def choice(count: int) -> list[dict]:
        found = []
        for number in told.rng.integers(0, int(1.1 * _READERS), count).tolist():
            book = int(told.rng.choice(len(told.titles), p=told.chances(number)))
            found.append({"user": told.name(number), "item": told.titles[book]})
        return found

    if kind == "matrix":
        stars = [told.stars(n, b) + 0.2 * told.rng.standard_normal() for n, b in pairs]
        split = len(pairs) // 10
        table = {"row": users[split:], "column": items[split:], "value": stars[split:]}
        model = MatrixCompleter(rank=6, random_state=0, epochs=60)
        model.fit(table, row="row", column="column", value="value")

        def rating(count: int) -> list[dict]:
            events = []
            for one in choice(count):
                number = int(one["user"].split()[1])
                value = told.stars(number, told.titles.index(one["item"]))
                value += 0.2 * told.rng.standard_normal()
                events.append({"row": one["user"], "column": one["item"], "value": value})
            return events

        known = Known(
            np.array(users[:split], object), np.array(items[:split], object),
            np.array(stars[:split]),
        )  # fmt: skip
        return World(model, "144 books as 900 readers rate them, from 1 to 5", rating, {}, known)
    table = {"user": users, "item": items}
    if kind == "ranking":
        model = ItemRanker(rank=12, epochs=4, random_state=0).fit(table, user="user", item="item")
        return World(
            model, "144 books, near to each other where the same readers like them", choice
        )
    model = Recommender(rank=16, loss="squared", random_state=0)
    model.fit(table, user="user", item="item")
    return World(model, "144 books and 900 readers who go on reading", choice)


def europe() -> World:
    """Cities from some of their distances."""
    rng = np.random.default_rng(0)
    names = list(CITIES)
    north, east = np.array(list(CITIES.values())).T
    # Kilometres on a plane that touches the globe at 50 north, 10 east: good to some percent.
    x = 111.2 * (east - 10) * np.cos(np.radians(north))
    y = 111.2 * (north - 50)
    places = np.stack([x, y], 1)
    D = ((places[:, None] - places) ** 2).sum(axis=2)
    i, j = np.triu_indices(len(names), 1)
    kept = rng.random(len(i)) < _KNOWN
    i, j = i[kept], j[kept]
    told = D[i, j] * (1 + 0.01 * rng.standard_normal(len(i)))
    table = {"row": [names[n] for n in i], "column": [names[n] for n in j], "value": told}
    model = DistanceCompleter(rank=2, epochs=200, random_state=0)
    model.fit(table, row="row", column="column", value="value")

    def measured(count: int) -> list[dict]:
        found = []
        for _ in range(count):
            a, b = rng.choice(len(names), 2, replace=False).tolist()
            value = float(D[a, b] * (1 + 0.01 * rng.standard_normal()))
            found.append({"row": names[a], "column": names[b], "value": value})
        return found

    known = Known(np.array(table["row"], object), np.array(table["column"], object), np.array(told))
    at = np.array([places[names.index(name)] for name in _ANCHORS])
    note = f"{len(names)} cities from {_KNOWN:.0%} of their distances, in square kilometres"
    return World(model, note, measured, {}, known, (list(_ANCHORS), at))


WORLDS: dict[str, Callable[[], World]] = {
    "recommender": lambda: library("recommender"),
    "ranking": lambda: library("ranking"),
    "matrix": lambda: library("matrix"),
    "distance": europe,
}


def go_on(world: World, log: EventLog, stopped: threading.Event) -> threading.Thread:
    """Let things happen, a few a second, until somebody says stop."""

    def happen() -> None:
        while not stopped.wait(_EVERY):
            log.append(world.next_events(int(_A_SECOND * _EVERY)), "", lambda why: None)

    thread = threading.Thread(target=happen, name="readers", daemon=True)
    thread.start()
    return thread
