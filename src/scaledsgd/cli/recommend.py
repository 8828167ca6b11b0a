"""The commands that ask a ranking: what is similar, and what to recommend."""

from __future__ import annotations

import csv
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from .options import Json, Model, choice, flag
from .screen import show_rows

if TYPE_CHECKING:
    from ..estimators.ranker import ItemRanker
    from .titles import Titles


class By(StrEnum):
    angle = "angle"
    score = "score"


_TITLES = Annotated[
    Path | None, typer.Option(help="File with ids and titles in its first columns.", metavar="FILE")
]
_Count = Annotated[int, typer.Option("-k", "--count", help="How many.", metavar="N")]


def register(app: typer.Typer) -> None:
    """Add the commands."""
    app.command()(similar)
    app.command()(recommend)


def similar(
    model: Model,
    item: Annotated[str, typer.Argument(help="An id or, with --titles, a title.", metavar="ITEM")],
    titles: _TITLES = None,
    count: _Count = 10,
    by: Annotated[By, choice("angle, or score: what is well known comes first.")] = By.angle,
    as_json: Json = False,
) -> None:
    """List the items that are most similar to one."""
    ranker, names = _opened(model, titles)
    asked = names.find(item)
    found = ranker.similar(asked, count, by=by.value)
    show_rows(f"Similar to {names.of(asked) or asked}", _rows(names, *found), as_json)


def recommend(
    model: Model,
    user: Annotated[str | None, typer.Argument(help="A user's id.", metavar="USER")] = None,
    items: Annotated[
        str | None,
        typer.Option(help='Items that somebody likes: 1,2 or "Alien (1979)",2.', metavar="LIST"),
    ] = None,
    titles: _TITLES = None,
    count: _Count = 10,
    seen: Annotated[bool, flag("--seen", "Do not leave out what the user had.")] = False,
    as_json: Json = False,
) -> None:
    """List the items that suit a user, or whoever likes some items."""
    from ..io.ids import typed_id
    from ..io.tables import InputError

    if (user is None) == (items is None):
        raise InputError("recommend needs a user or --items, and not both")
    ranker, names = _opened(model, titles)
    if items is not None:
        words = next(csv.reader([items], skipinitialspace=True))
        liked = [names.find(word.strip()) for word in words]
        found = ranker.recommend(items=liked, k=count, exclude_seen=not seen)
        told = "whoever likes " + ", ".join(names.of(one) or str(one) for one in liked)
    else:
        people = ranker.user_ids
        whom = typed_id(str(user), people, 0 if ranker.is_symmetric else ranker.factors.shape[0])
        if whom is None:
            raise InputError(f"user {user!r} was never seen in training")
        found = ranker.recommend(user=whom, k=count, exclude_seen=not seen)
        told = f"user {user}"
    show_rows(f"For {told}", _rows(names, *found), as_json)


def _opened(path: Path, titles: Path | None) -> tuple[ItemRanker, Titles]:
    from .. import load
    from ..estimators.ranker import ItemRanker
    from ..io.tables import InputError
    from .titles import Titles

    model = load(path)
    if not isinstance(model, ItemRanker):
        raise InputError(f"{path}: a {type(model).__name__} ranks no items")
    return model, Titles(model, titles)


def _rows(names: Titles, ids, scores) -> list[dict]:
    return [
        {"item": item, **({"title": names.of(item)} if names.given else {}), "score": score}
        for item, score in zip(ids.tolist(), scores.tolist(), strict=True)
    ]
