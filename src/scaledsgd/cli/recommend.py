"""The commands that ask a ranking: what is similar, what to recommend, and why."""

from __future__ import annotations

import csv
import inspect
from collections.abc import Callable
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..io.progress_bar import progress_bar
from .options import (
    Encoding,
    Json,
    Model,
    NoHeader,
    Quiet,
    Separator,
    Skip,
    TitlesFile,
    choice,
    file,
    flag,
)
from .screen import show_rows

if TYPE_CHECKING:
    from ..estimators.ranker import ItemRanker
    from ..estimators.recommender import Recommender
    from ..io.text_format import TextFormat
    from .titles import Titles

    Ranking = ItemRanker | Recommender

_COUNT = 10  # answers, if there are as many


By = StrEnum("By", "angle score")
_Count = Annotated[int | None, typer.Option("-k", "--count", help="How many (10).", metavar="N")]
_Item = Annotated[str, typer.Argument(help="An id or, with --titles, a title.", metavar="ITEM")]


def register(app: typer.Typer) -> None:
    """Add the commands."""
    for command in (similar, recommend, explain):
        app.command()(command)


def similar(
    model: Model,
    item: _Item,
    titles: TitlesFile = None,
    count: _Count = None,
    by: Annotated[
        By | None, choice("angle, or score (item-item): what is well known comes first.")
    ] = None,
    separator: Separator = None,
    encoding: Encoding = None,
    no_header: NoHeader = False,
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """List the items that are most similar to one."""
    ranking, names = _opened(model, titles, _format(separator, encoding, no_header))
    asked = names.find(item)
    wanted = _number(count, ranking)
    found = _ask(ranking.similar, asked, wanted, by=str(by) if by else None)
    show_rows(f"Similar to {names.of(asked) or asked}", _rows(names, *found), as_json)


def recommend(
    model: Model,
    user: Annotated[str | None, typer.Argument(help="A user's id.", metavar="USER")] = None,
    items: Annotated[
        str | None,
        typer.Option(help='Items that somebody likes: 1,2 or "Alien (1979)",2.', metavar="LIST"),
    ] = None,
    candidates: Annotated[
        Path | None, file("File whose first column holds the items to choose from.")
    ] = None,
    exclude: Annotated[
        Path | None, file("File whose first column holds items to leave out.")
    ] = None,
    titles: TitlesFile = None,
    count: _Count = None,
    seen: Annotated[bool, flag("--seen", "Do not leave out what the user had.")] = False,
    skip_unknown: Skip = False,
    separator: Separator = None,
    encoding: Encoding = None,
    no_header: NoHeader = False,
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """List the items that suit a user, or whoever likes some items."""
    from ..io.tables import InputError
    from .titles import items_in

    if (user is None) == (items is None):
        raise InputError("recommend needs a user or --items, and not both")
    text = _format(separator, encoding, no_header)
    ranking, names = _opened(model, titles, text)
    if items is not None:
        try:
            words = next(csv.reader([items], skipinitialspace=True), [])
        except csv.Error as why:
            raise InputError(f"--items: not a list of items ({why})") from None
        liked = [names.find(word.strip()) for word in words]
        whom: dict[str, Any] = {"items": liked}
        told = "whoever likes " + ", ".join(names.of(one) or str(one) for one in liked)
    else:
        whom, told = {"user": _user(ranking, str(user))}, f"user {user}"
    lists = {
        name: items_in(path, ranking, text, skip_unknown=skip_unknown)
        for name, path in (("candidates", candidates), ("exclude", exclude))
        if path is not None
    }
    found = _ask(
        ranking.recommend, **whom, **lists, k=_number(count, ranking, **lists),
        exclude_seen=False if seen else None,
    )  # fmt: skip
    show_rows(f"For {told}", _rows(names, *found), as_json)


def explain(
    model: Model,
    user: Annotated[str, typer.Argument(help="A user's id.", metavar="USER")],
    item: _Item,
    titles: TitlesFile = None,
    count: _Count = None,
    separator: Separator = None,
    encoding: Encoding = None,
    no_header: NoHeader = False,
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """List which of a user's items speak for an item, with their shares of its score."""
    from ..io.tables import InputError

    ranking, names = _opened(model, titles, _format(separator, encoding, no_header))
    if count is not None and count < 1:
        raise InputError(f"k={count} is not a whole number from 1 up")
    asked = names.find(item)
    chosen, shares = _ask(ranking.explain, _user(ranking, user), asked)
    found = chosen[: count or _COUNT], shares[: count or _COUNT]
    show_rows(
        f"What speaks for {names.of(asked) or asked}, user {user}",
        _rows(names, *found, what="share"), as_json,
    )  # fmt: skip


def _opened(path: Path, titles: Path | None, text: TextFormat) -> tuple[Ranking, Titles]:
    from .. import load
    from ..estimators.ranker import ItemRanker
    from ..estimators.recommender import Recommender
    from ..io.tables import InputError
    from .titles import Titles

    with progress_bar(f"loading {path.name}", None):
        model = load(path)
    if not isinstance(model, ItemRanker | Recommender):
        raise InputError(f"{path}: {type(model).__name__} ranks no items")
    return model, Titles(model, titles, text)


def _format(separator: str | None, encoding: str | None, no_header: bool) -> TextFormat:
    from ..io.text_format import text_format

    return text_format(separator, encoding, no_header)


def _user(ranking: Ranking, text: str) -> int | str:
    from ..io.ids import typed_id
    from ..io.tables import InputError

    count = 0 if ranking.is_symmetric else ranking.factors.shape[0]
    found = typed_id(text, ranking.user_ids, count)
    if found is None:
        raise InputError(f"user {text!r} was never seen in training")
    return found


def _number(count: int | None, ranking: Ranking, candidates=None, exclude=()) -> int:
    """How many answers are wanted: ten, if nobody says, or as many as there can be."""
    if count is not None:
        return count
    there = ranking.factors.shape[1] if candidates is None else len(candidates)
    left = there - len(exclude) if candidates is None else len(set(candidates) - set(exclude))
    return max(1, min(_COUNT, left))


# What the two models call the same.
_CALLED = {"exclude_seen": "filter_seen"}


def _ask(method: Callable, *asked, **given) -> Any:
    """An answer, by the options that were given, which this model must have."""
    from ..io.tables import InputError

    known = inspect.signature(method).parameters
    options = {}
    for name, value in given.items():
        if value is None:
            continue
        name = name if name in known else _CALLED.get(name, name)
        if name not in known:
            model = type(method.__self__).__name__  # type: ignore[attr-defined]
            raise InputError(f"--{name}: this model, of kind {model}, has no such option")
        options[name] = value
    with progress_bar("searching", None):
        return method(*asked, **options)


def _rows(names: Titles, ids, scores, what: str = "score") -> list[dict]:
    return [
        {"item": item, **({"title": names.of(item)} if names.given else {}), what: score}
        for item, score in zip(ids.tolist(), scores.tolist(), strict=True)
    ]
