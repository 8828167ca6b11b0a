"""The benchmark commands."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from .options import Json, choice, flag, whole

bench = typer.Typer(no_args_is_help=True)


class Part(StrEnum):
    grid = "grid"
    time = "time"
    noise = "noise"
    distances = "distances"
    hard = "hard"
    everything = "all"


def register(app: typer.Typer) -> None:
    """Add the group."""
    app.add_typer(bench, name="bench", help="Measure what is solved, and how fast.")


@bench.callback()
def _group() -> None:
    """Measure what is solved, and how fast."""


@bench.command()
def recovery(
    part: Annotated[Part, choice("grid, time, noise, distances, hard or all.")] = Part.grid,
    hard: Annotated[bool, flag("--hard", "The same as --part hard.")] = False,
    quick: Annotated[bool, flag("--quick", "Small problems, and few.")] = False,
    jobs: Annotated[int, whole("Processes; threads where time is taken.")] = 2,
    out: Annotated[Path, typer.Option(help="Folder for the page.", metavar="DIR")] = Path(
        "recovery"
    ),
    as_json: Json = False,
) -> None:
    """Complete matrices with a known answer, against SGD, ScaledSGD and ALS."""
    from .experiments.recovery import PARTS, write
    from .screen import print_result, show

    part = Part.hard if hard else part
    results = {}
    for name in PARTS if part is Part.everything else (part.value,):
        results[name] = PARTS[name](quick, jobs)
        if not as_json:
            print_result(results[name])
    path = write(results, out)
    if as_json:
        show({name: result.facts for name, result in results.items()} | {"page": str(path)}, True)
    else:
        print(path)
