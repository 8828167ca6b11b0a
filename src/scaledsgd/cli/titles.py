"""Items by their ids or their titles, as people type them."""

from __future__ import annotations

from difflib import get_close_matches
from pathlib import Path

from ..estimators.base import Learner
from ..io.ids import typed_id
from ..io.readers import open_file
from ..io.tables import InputError, Source, Table
from ..io.text_format import USUAL, TextFormat

_SHOWN = 5  # titles in an error message


class Titles:
    """Titles from the first two columns of a file, ids and titles, for the items of a model.

    >>> import tempfile
    >>> from scaledsgd import ItemRanker
    >>> model = ItemRanker(rank=1, epochs=1).fit({"u": [1, 1, 2, 2], "v": [7, 8, 8, 9]}, user="u",
    ...     item="v")
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = Path(folder, "films.csv")
    ...     _ = path.write_text("id,title\\n7,Heat (1995)\\n8,Alien (1979)\\n")
    ...     titles = Titles(model, path)
    >>> titles.find("alien"), titles.find("9"), titles.of(7)
    (8, 9, 'Heat (1995)')
    """

    def __init__(self, model: Learner, path: Path | None = None, text: TextFormat = USUAL):
        self._model, self._titles = model, {}
        if path is not None:
            source = _opened(path, text, model)
            names = source.first(2)
            table = source.table(names, [])
            ids, titles = (table[name].tolist() for name in names)
            self._titles = dict(zip(ids, map(str, titles), strict=True))

    @property
    def given(self) -> bool:
        return bool(self._titles)

    @property
    def by_item(self) -> dict:
        """All of them, by what the file has in its first column."""
        return self._titles

    def of(self, item) -> str:
        """The title of an item, or nothing."""
        return self._titles.get(item, self._titles.get(str(item), ""))

    def find(self, text: str) -> int | str:
        """The item with this id, this title, or the one title that begins so."""
        item = _item(text, self._model)
        if item is not None:
            return item
        word = text.casefold()
        folded = {item: title.casefold() for item, title in self._titles.items()}
        found = [item for item, title in folded.items() if title == word]
        found = found or [item for item, title in folded.items() if title.startswith(word)]
        if len(found) == 1:
            item = _item(str(found[0]), self._model)
            if item is None:
                told = f"{text!r} is item {found[0]}, which was never seen in training"
                raise InputError(told)
            return item
        if found:
            raise InputError(f"{text!r} may be any of {len(found)} items: {self._listed(found)}")
        near = [item for item, title in folded.items() if word in title]
        near += [
            next(item for item, other in folded.items() if other == title)
            for title in get_close_matches(word, list(folded.values()), _SHOWN)
        ]
        hint = f"; there are {self._listed(list(dict.fromkeys(near)))}" if near else ""
        what = "id or title" if self._titles else "id"
        raise InputError(f"{text!r} is no {what} of an item that was seen in training{hint}")

    def _listed(self, items: list) -> str:
        shown = ", ".join(f"{self._titles[item]} ({item})" for item in items[:_SHOWN])
        return shown + (", ..." if len(items) > _SHOWN else "")


def items_in(
    path: Path, model: Learner, text: TextFormat = USUAL, *, skip_unknown: bool = False
) -> list:
    """The items in the first column of a file, each once, which the model must know."""
    source = _opened(path, text, model)
    (name,) = source.first(1)
    table: Table = source.table([name], [])
    found = {}
    for row, text_of in enumerate(map(str, table[name].tolist())):
        item = _item(text_of, model)
        if item is not None:
            found[item] = True
        elif not skip_unknown:
            raise table.refused(row, name, f"item {text_of!r} was never seen in training")
    if not found:
        raise InputError(f"{path}: no items in it")
    return list(found)


def _item(text: str, model: Learner) -> int | str | None:
    """The item of that id, if the model knows it."""
    ids = model.ids[1] if model.ids else None
    return typed_id(text, ids, model.factors.shape[1])


def _opened(path: Path, text: TextFormat, model: Learner) -> Source:
    """A file whose first column holds items. One that begins with an item has no header."""
    source = open_file(path, text)
    if text.header is None and source.names and _item(source.names[0], model) is not None:
        return open_file(path, text._replace(header=False))
    return source
