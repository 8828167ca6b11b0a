"""The benchmark commands."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from .options import Item, Json, Page, User, choice, flag, folder, job_count, whole

bench = typer.Typer(no_args_is_help=True)

_Data = Annotated[Path, folder("Folder of data sets.")]


Part = StrEnum("Part", "grid time noise bits distances hard few mixed all")
Speed = StrEnum("Speed", "rates limits shares growth peers threads all")
Recommend = StrEnum("Recommend", "table grid epochs optimisers online warm memory all")


def register(app: typer.Typer) -> None:
    """Add the group."""
    app.add_typer(bench, name="bench", help="Measure what is solved, and how fast.")


@bench.callback()
def _group() -> None:
    """Measure what is solved, and how fast."""


@bench.command()
def recovery(
    part: Annotated[
        Part, choice("grid, time, noise, bits, distances, hard, few, mixed or all.")
    ] = Part.grid,
    hard: Annotated[bool, flag("--hard", "The same as --part hard.")] = False,
    quick: Annotated[bool, flag("--quick", "Small problems, and few.")] = False,
    jobs: Annotated[int, job_count("Processes, or threads where time is taken")] = 2,
    out: Page = Path("recovery"),
    as_json: Json = False,
) -> None:
    """Complete matrices with a known answer, against SGD, ScaledSGD, ALS and Gauss-Newton."""
    from ..research.benchmarks.recovery import PARTS

    part = Part.hard if hard else part
    wanted = tuple(PARTS) if part is Part.all else (str(part),)
    _report("Recovery", {name: (lambda name=name: PARTS[name](quick, jobs)) for name in wanted},
            out, as_json)  # fmt: skip


@bench.command()
def speed(
    part: Annotated[
        Speed, choice("rates, limits, shares, growth, peers, threads or all.")
    ] = Speed.rates,
    peers: Annotated[bool, flag("--peers", "The same as --part peers.")] = False,
    device: Annotated[str, choice("cpu or cuda.")] = "cpu",
    quick: Annotated[bool, flag("--quick", "Few samples, few ranks.")] = False,
    jobs: Annotated[int, job_count("Threads")] = 2,
    out: Page = Path("speed"),
    as_json: Json = False,
) -> None:
    """Time samples against others, against the machine, and as problems grow."""
    from ..research.benchmarks.speed import PARTS, QUICK, Size

    part = Speed.peers if peers else part
    wanted = tuple(PARTS) if part is Speed.all else (str(part),)
    if device != "cpu" and wanted != ("rates",):
        raise ValueError(f"--device {device}: only --part rates is measured there")
    size = QUICK if quick else Size()
    _report("Speed", {name: (lambda name=name: PARTS[name](size, jobs, device)) for name in wanted},
            out, as_json)  # fmt: skip


@bench.command()
def recommend(
    names: Annotated[
        list[str] | None,
        typer.Argument(help="Data sets in --data, or files of events.", metavar="DATA..."),
    ] = None,
    data: _Data = Path("../shared/data"),
    part: Annotated[
        Recommend, choice("table, grid, epochs, optimisers, online, warm, memory or all.")
    ] = Recommend.table,
    rank: Annotated[int, whole("Directions to learn.")] = 64,
    seed: Annotated[int, whole("Of the split and of all that is drawn.")] = 0,
    peers: Annotated[
        bool, typer.Option(help="Others, and not only popularity.", metavar="")
    ] = True,
    peer: Annotated[
        list[str] | None, typer.Option(help="Of the others these alone.", metavar="NAME")
    ] = None,
    ease_items: Annotated[int, whole("EASE is left out with more items.")] = 20_000,
    user: User = None,
    item: Item = None,
    quick: Annotated[bool, flag("--quick", "Small grids; made-up choices without DATA.")] = False,
    jobs: Annotated[int, job_count("Threads")] = 2,
    device: Annotated[str, choice("cpu or cuda, for ours and EASE.")] = "cpu",
    out: Page = Path("recommend"),
    as_json: Json = False,
) -> None:
    """Find what users chose, against popularity, item-kNN, EASE, ALS and BPR."""
    from ..research.benchmarks.recommend import PARTS
    from ..research.benchmarks.recommend_data import load, made_up, present
    from ..research.benchmarks.recommend_peers import PEERS, How

    names = names or ([] if quick else present(data))
    if not names and not quick:
        raise ValueError(f"no data: {data} has none; name a file of events, or try --quick")
    asked = tuple(peer or (PEERS if peers else ("popularity",)))
    if unknown := sorted({*asked} - PEERS.keys()):
        raise ValueError(f"--peer {unknown[0]}: the others are {', '.join(PEERS)}")
    how = How(rank, seed, jobs, quick, asked, ease_items, device)
    sets = [load(name, data, seed, user, item) for name in names] or [made_up(seed)]
    wanted = tuple(PARTS) if part is Recommend.all else (str(part),)
    if device != "cpu" and {*wanted} & {"optimisers", "memory"}:
        raise ValueError(f"--device {device}: optimisers and memory are of the CPU alone")
    runs = {
        f"{name}-{one.name}": lambda name=name, one=one: PARTS[name](one, how)
        for one in sets
        for name in wanted
    }
    _report("Recommendations", runs, out, as_json)


@bench.command()
def ratings(
    names: Annotated[
        list[str] | None,
        typer.Argument(help="ml-latest-small, jester, or files of ratings.", metavar="DATA..."),
    ] = None,
    data: _Data = Path("../shared/data"),
    seeds: Annotated[int, whole("Splits into training and test.")] = 5,
    quick: Annotated[bool, flag("--quick", "Small grids; made-up ratings without DATA.")] = False,
    out: Page = Path("ratings"),
    as_json: Json = False,
) -> None:
    """Predict ratings, against biased factorisations of others."""
    from ..research.benchmarks.ratings import SETS, compared

    names = names or (["made-up"] if quick else list(SETS))
    runs = {name: lambda name=name: compared(name, data, seeds, quick) for name in names}
    _report("Ratings", {Path(name).stem: run for name, run in runs.items()}, out, as_json)


@bench.command()
def impute(
    names: Annotated[
        list[str] | None,
        typer.Argument(help="diabetes, wine, breast_cancer, digits.", metavar="TABLE..."),
    ] = None,
    seeds: Annotated[int, whole("Splits into rows to learn and rows to fill.")] = 5,
    quick: Annotated[bool, flag("--quick", "A hundred rows of wine.")] = False,
    out: Page = Path("impute"),
    as_json: Json = False,
) -> None:
    """Fill the gaps of new rows, against scikit-learn's imputers."""
    from ..research.benchmarks.impute import TABLES, compared

    names = names or (["wine"] if quick else list(TABLES))
    runs = {name: lambda name=name: compared(name, seeds, quick) for name in names}
    _report("Gaps", runs, out, as_json)


def _report(title: str, parts: dict, out: Path, as_json: bool) -> None:
    """Run the parts, print each when it is there, and write the page."""
    from ..research.benchmarks.recovery import write
    from .screen import show_results

    results = ((name, run()) for name, run in parts.items())
    show_results(results, lambda found: write(title, found, out), as_json)
