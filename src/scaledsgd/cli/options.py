"""What the commands are told on the command line."""

from __future__ import annotations

import re
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

Kind = StrEnum("Kind", "matrix distance ranking recommender")
Loss = StrEnum("Loss", "squared huber logistic softmax bpr")
Mode = StrEnum("Mode", {"item_item": "item-item", "user_item": "user-item"})
Similarity = StrEnum("Similarity", "cosine adjusted jaccard shrunk")
Refresh = StrEnum("Refresh", "round sample")
Dtype = StrEnum("Dtype", "float32 float64")


def _parsed(kind: type, what: str):
    """A parser whose error names the value."""

    def parse(text: str):
        if text == "auto" and what.startswith("auto"):
            return text
        try:
            if "_" in str(text) or not str(text).isascii():  # which Python takes, and nobody else
                raise ValueError
            return kind(text)
        except ValueError:
            raise typer.BadParameter(f"{text!r} is not {what}") from None

    return parse


def whole(text: str) -> Any:
    return typer.Option(help=text, parser=_parsed(int, "a whole number"), metavar="N")


def job_count(text: str) -> Any:
    """How many to run at once: -1 is as many as there are cores that may be used."""
    what = "a whole number from 1 up, or -1 for all cores"

    def parse(text: str) -> int:
        from ..core.memory import cores

        count: Any = _parsed(int, what)(text)
        if count == -1:
            return cores()
        if count < 1:
            raise typer.BadParameter(f"{text} is not {what}")
        return count

    return typer.Option(help=f"{text}; -1 for all cores.", parser=parse, metavar="N")


def whole_or_auto(text: str) -> Any:
    return typer.Option(help=text, parser=_parsed(int, "auto or a whole number"), metavar="N")


def number(text: str) -> Any:
    return typer.Option(help=text, parser=_parsed(float, "auto or a number"), metavar="X")


def time_span(text: str) -> Any:
    """A number, or a number with its unit, which whoever takes it checks."""

    def parse(text: str):
        try:
            return float(text)
        except ValueError:
            return text

    return typer.Option(help=text, parser=parse, metavar="TIME")


def choice(text: str) -> Any:
    return typer.Option(help=text, metavar="WORD")


def flag(name: str, text: str) -> Any:
    return typer.Option(name, help=text, metavar="")


def name(text: str) -> Any:
    return typer.Option(help=text, metavar="NAME")


def file(text: str) -> Any:
    return typer.Option(help=text, metavar="FILE")


def folder(text: str) -> Any:
    return typer.Option(help=text, metavar="DIR")


def _silence(quiet: bool) -> bool:
    from ..io.progress_bar import silence

    silence(quiet)
    return quiet


def _limited(text: str | None) -> str | None:
    """Bytes, as in 500M or 4G."""
    from ..core.memory import limit_memory

    limit_memory(None)
    if text is None:
        return None
    found = re.fullmatch(r"(\d+\.?\d*)([kMGT]?)B?", text, re.ASCII)
    if not found:
        raise typer.BadParameter(f"{text!r} is not a size, as 500M or 4G are")
    limit_memory(float(found[1]) * 1000.0 ** " kMGT".index(found[2] or " "))
    return text


Json = Annotated[bool, flag("--json", "Print JSON.")]
Quiet = Annotated[
    bool, typer.Option("--quiet", help="No progress on stderr.", metavar="", callback=_silence)
]
MaxMemory = Annotated[
    str | None,
    typer.Option(help="To take at a time (else most of it).", metavar="SIZE", callback=_limited),
]
Page = Annotated[Path, folder("Folder for the page.")]
TitlesFile = Annotated[Path | None, file("File with ids and titles in its first columns.")]
Skip = Annotated[bool, flag("--skip-unknown", "Leave out ids that were not trained on.")]
Clip = Annotated[
    tuple[float, float] | None,
    typer.Option("--clip", metavar="LOW HIGH", help="Hold predictions within a scale, as 1 5."),
]

# Columns that are not named are taken in this order from the file.
Row = Annotated[str | None, name("Column with the rows (else the first).")]
Column = Annotated[str | None, name("Column with the columns (else the second).")]
Value = Annotated[str | None, name("Column with the values (else the third).")]
First = Annotated[str | None, name("Ranking: column with i, nearer to j than to k.")]
Second = Annotated[str | None, name("Ranking: column with j.")]
Third = Annotated[str | None, name("Ranking: column with k.")]
ThirdOrCount = Annotated[str | None, name("Events: first k answers. Else the column with k.")]
Target = Annotated[str | None, name("Ranking: column with 1, or 0 where k is nearer.")]
User = Annotated[str | None, name("Ratings or events: column with the users.")]
Item = Annotated[str | None, name("Ratings or events: column with the items.")]
Time = Annotated[str | None, name("Ratings or events: column that orders them.")]
Weight = Annotated[str | None, name("Recommender: column with the weights of choices.")]
AtLeast = Annotated[float | None, number("Recommender: a choice has at least this --value.")]

# How text files are written, where that does not show.
Separator = Annotated[
    str | None,
    typer.Option(help="Between fields: , ; | :: tab or space (else found).", metavar="MARK"),
]
Encoding = Annotated[str | None, typer.Option(help="Such as latin-1 (else UTF-8).", metavar="NAME")]
NoHeader = Annotated[bool, flag("--no-header", "Columns are called 1, 2, 3 ...")]

_ENDINGS = "A .csv, .tsv, .txt, .dat, .data, .inter, .parquet, .npz or .mtx file"

Model = Annotated[Path, typer.Argument(help="A model that fit wrote.", metavar="MODEL")]
Files = Annotated[
    list[Path],
    typer.Argument(help=f"{_ENDINGS}; with --ray, Parquet files.", metavar="FILE..."),
]
Data = Annotated[Path, typer.Argument(help=f"{_ENDINGS}.", metavar="FILE")]
