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
    from ..research.benchmarks.recovery import PARTS

    part = Part.hard if hard else part
    wanted = tuple(PARTS) if part is Part.everything else (part.value,)
    _report("Recovery", {name: (lambda name=name: PARTS[name](quick, jobs)) for name in wanted},
            out, as_json)  # fmt: skip


class Speed(StrEnum):
    rates = "rates"
    limits = "limits"
    shares = "shares"
    growth = "growth"
    peers = "peers"
    everything = "all"


@bench.command()
def speed(
    part: Annotated[Speed, choice("rates, limits, shares, growth, peers or all.")] = Speed.rates,
    peers: Annotated[bool, flag("--peers", "The same as --part peers.")] = False,
    device: Annotated[str, choice("cpu or cuda.")] = "cpu",
    quick: Annotated[bool, flag("--quick", "Few samples, few ranks.")] = False,
    jobs: Annotated[int, whole("Threads.")] = 2,
    out: Annotated[Path, typer.Option(help="Folder for the page.", metavar="DIR")] = Path("speed"),
    as_json: Json = False,
) -> None:
    """Time samples against others, against the machine, and as problems grow."""
    from ..research.benchmarks.speed import PARTS, QUICK, Size

    part = Speed.peers if peers else part
    wanted = tuple(PARTS) if part is Speed.everything else (part.value,)
    if device != "cpu" and wanted != ("rates",):
        raise ValueError(f"--device {device}: only --part rates is measured there")
    size = QUICK if quick else Size()
    _report("Speed", {name: (lambda name=name: PARTS[name](size, jobs, device)) for name in wanted},
            out, as_json)  # fmt: skip


def _report(title: str, parts: dict, out: Path, as_json: bool) -> None:
    """Run the parts, print each when it is there, and write the page."""
    from ..research.benchmarks.recovery import write
    from .screen import print_result, show

    results = {}
    for name, run in parts.items():
        results[name] = run()
        if not as_json:
            print_result(results[name])
    path = write(title, results, out)
    if as_json:
        show({name: result.facts for name, result in results.items()} | {"page": str(path)}, True)
    else:
        print(path)
