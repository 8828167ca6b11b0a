"""The commands for researchers: reproduce the paper, and fetch its data."""

from __future__ import annotations

import os
import sys
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from .options import Json, Refresh, choice, flag, folder, job_count, whole


class Dataset(StrEnum):
    small = "movielens-small"
    huge = "movielens-25m"
    latest = "movielens-latest"
    million = "movielens-1m"


def cache_folder() -> Path:
    """Where comparisons that took minutes to draw are kept.

    >>> cache_folder().name
    'scaledsgd'
    """
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache", "scaledsgd")


def register(app: typer.Typer) -> None:
    """Add the commands."""
    app.command()(reproduce)
    app.command()(data)


def reproduce(
    figures: Annotated[
        list[str],
        typer.Argument(help="fig1 ... fig9, kappa, coherence, drift, or all.", metavar="FIGURE..."),
    ],
    out: Annotated[Path, folder("For pictures, results and the report.")] = Path("reproduction"),
    data: Annotated[Path | None, folder("A copy of MovieLens (else a synthetic twin).")] = None,
    authors: Annotated[
        Path | None, typer.Option(help="The authors' curves, to draw them too.", metavar="NPZ")
    ] = None,
    scale: Annotated[
        float, typer.Option(help="Share of items and comparisons to take.", metavar="X")
    ] = 1.0,
    tuned: Annotated[
        bool, flag("--tuned", "Search the step and decay of each method first.")
    ] = False,
    auto: Annotated[bool, flag("--auto", "Run the automatic settings beside the paper's.")] = False,
    rank: Annotated[int | None, whole("Directions to learn (else the paper's).")] = None,
    seed: Annotated[int, whole("Of the data, the start and the order.")] = 0,
    seeds: Annotated[int, whole("Runs, of which the median and the range are shown.")] = 1,
    refresh: Annotated[Refresh, choice("Renew P every round or sample.")] = Refresh.round,
    jobs: Annotated[int, job_count("Threads")] = -1,
    device: Annotated[str, choice("cpu, cuda or auto.")] = "cpu",
    cache: Annotated[Path | None, folder("Where comparisons are kept.")] = None,
    as_json: Json = False,
) -> None:
    """Run the paper's experiments, and write a report."""
    from ..research.paper import reproduce as experiments
    from ..research.paper.settings import Options
    from .screen import show

    names = list(experiments.NAMES) if "all" in figures else list(dict.fromkeys(figures))
    for name in names:
        if name not in experiments.NAMES:
            raise ValueError(
                f"unknown figure {name!r}: choose from {', '.join(experiments.NAMES)} or all"
            )
    if authors is not None and not authors.is_file():
        raise ValueError(f"{authors}: no such file")
    options = Options(
        scale=scale, seed=seed, seeds=seeds, rank=rank, authors=authors, data=data,
        cache=cache or cache_folder(), tuned=tuned, auto=auto, refresh=str(refresh), device=device,
        jobs=jobs, verbose=True,
    )  # fmt: skip
    results = {}
    for facts in experiments.reproduce(names, options, out):
        results[facts["figure"]] = facts
        if not as_json:
            _tell(facts)
    if as_json:
        show({"report": str(out / "index.html"), "figures": results}, as_json=True)
    else:
        print(out / "index.html")


def _tell(facts: dict) -> None:
    from rich import box
    from rich.console import Console
    from rich.table import Table

    console = Console(highlight=False)
    settings = facts["settings"]
    console.print(f"\n[bold]{facts['figure']}. {facts['title']}[/bold] ({settings['data']})")
    console.print(f"{facts['shows']} [dim]{settings['seconds']} s[/dim]")
    table = Table("the paper says", "we measured", "holds", box=box.SIMPLE_HEAD, pad_edge=False)
    for row in facts["claims"]:
        holds = {True: "yes", False: "no", None: "-"}[row["holds"]]
        table.add_row(row["paper"], row["measured"], holds)
    console.print(table)


def data(
    name: Annotated[Dataset, typer.Argument(help="Which MovieLens.", metavar="NAME")],
    source: Annotated[
        Path | None, typer.Option("--from", help="A copy on disk, zip or folder.", metavar="PATH")
    ] = None,
    out: Annotated[Path, folder("Where it goes.")] = Path("data"),
    as_json: Json = False,
) -> None:
    """Fetch MovieLens from GroupLens or from a copy: movielens-small, -25m, -latest, -1m."""
    from ..research import movielens
    from .screen import show

    print("MovieLens has a licence of its own: see the README in the folder.", file=sys.stderr)
    place = movielens.fetch(name.value, out, source, progress=True)
    table, users, items = movielens.load(place)
    counts = {"users": len(users), "items": len(items), "ratings": table.nnz}
    show({"folder": str(place)} | counts, as_json)
