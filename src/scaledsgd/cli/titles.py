"""Items by their ids or their titles, as people type them."""

from __future__ import annotations

from difflib import get_close_matches
from pathlib import Path

from ..estimators.ranker import ItemRanker
from ..io.ids import typed_id
from ..io.readers import open_file
from ..io.tables import InputError

_SHOWN = 5  # titles in an error message


class Titles:
    """Titles from the first two columns of a file, ids and titles, for the items of a model.

    >>> import numpy as np, tempfile
    >>> model = ItemRanker(rank=1, epochs=1).fit({"u": [1, 1, 2, 2], "v": [7, 8, 8, 9]}, user="u",
    ...     item="v")
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = Path(folder, "films.csv")
    ...     _ = path.write_text("id,title\\n7,Heat (1995)\\n8,Alien (1979)\\n")
    ...     titles = Titles(model, path)
    >>> titles.find("alien"), titles.find("9"), titles.of(7)
    (8, 9, 'Heat (1995)')
    """

    def __init__(self, model: ItemRanker, path: Path | None = None):
        self._model, self._titles = model, {}
        if path is not None:
            source = open_file(path)
            names = source.first(2)
            table = source.table(names, [])
            ids, titles = (table[name].tolist() for name in names)
            self._titles = dict(zip(ids, map(str, titles), strict=True))

    @property
    def given(self) -> bool:
        return bool(self._titles)

    def of(self, item) -> str:
        """The title of an item, or nothing."""
        return self._titles.get(item, self._titles.get(str(item), ""))

    def find(self, text: str) -> int | str:
        """The item with this id, this title, or the one title that begins so."""
        ids = self._model.ids[1] if self._model.ids else None
        item = typed_id(text, ids, self._model.factors.shape[1])
        if item is not None:
            return item
        word = text.casefold()
        folded = {item: title.casefold() for item, title in self._titles.items()}
        found = [item for item, title in folded.items() if title == word]
        found = found or [item for item, title in folded.items() if title.startswith(word)]
        if len(found) == 1:
            item = typed_id(str(found[0]), ids, self._model.factors.shape[1])
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
