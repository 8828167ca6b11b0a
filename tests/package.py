"""Builds the sdist and from it the wheel, installs both where nothing else is, and tries what each
extra is for, with it alone and without: `make package`.

An extra's environment sees the packages of the smallest one: only what it adds is installed.
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from time import monotonic
from urllib.request import urlopen

ROOT = Path(__file__).parents[1]
HOME = ROOT / ".venv-package"
PARQUET = """
from pyarrow import csv, parquet
parquet.write_table(csv.read_csv("a.csv"), "a.parquet")
"""
INDEX = """
import numpy as np
from scaledsgd.recommend.search import _index
rng = np.random.default_rng(0)
clusters = np.repeat(rng.standard_normal((64, 16)), 100, axis=0)
assert _index(clusters + rng.normal(0, 0.05, clusters.shape)), "no index"
"""
CLEAN = {name: os.environ[name] for name in ("PATH", "HOME", "TMPDIR") if name in os.environ}
CLEAN["NUMBA_CACHE_DIR"] = str(HOME / "kernels")
FIT = "-m scaledsgd fit {} --rank 1 --epochs 20 --seed 0 --out m.model"

# By extra: what Python is given, and what it says without and with the extra (None: it succeeds).
TRIED = {
    "plots": ("-m scaledsgd demo", "pip install 'scaledsgd[plots]'", None),
    "parquet": (FIT.format("a.parquet"), "pip install 'scaledsgd[parquet]'", None),
    "serve": (
        "-m scaledsgd serve --playground --no-browser",
        "pip install 'scaledsgd[serve]'",
        None,
    ),
    "redis": (
        "-m scaledsgd stream m.model --from redis://127.0.0.1:1/0/events",
        "pip install 'scaledsgd[redis]'",
        "Connection refused",
    ),
    "ray": (
        FIT.format("a.parquet") + " --ray local --workers 1",
        "pip install 'scaledsgd[ray]'",
        None,
    ),
    "gpu": (FIT.format("a.csv") + " --device cuda", "pip install 'scaledsgd[gpu]'", "no GPU"),
    "faiss": (f"-c '{INDEX}'", None, None),  # nothing is refused without it
    "examples": (str(ROOT / "examples" / "cities.py"), None, None),
    "bench": ("-m scaledsgd bench speed --peers --quick", "pip install 'scaledsgd[plots]'", None),
}


class Environment:
    """A virtual environment, with what lies in another one beside its own."""

    def __init__(self, name: str, below: Environment | None = None):
        self.home = HOME / name
        shutil.rmtree(self.home, ignore_errors=True)
        run(sys.executable, "-m", "venv", "--without-pip", self.home)
        self.python = self.home / "bin" / "python"
        (self.packages,) = self.home.glob("lib/*/site-packages")
        if below is not None:
            (self.packages / "below.pth").write_text(f"{below.packages}\n")
        self.folder = self.home / "work"
        self.folder.mkdir()
        rows = (f"u{i},v{j},{(i + 1) * (j + 1)}" for i in range(12) for j in range(9) if i != j)
        (self.folder / "a.csv").write_text("\n".join(["row,column,value", *rows]))

    def install(self, what: str | Path, *options: str) -> None:
        pip = (sys.executable, "-m", "pip", "--python", self.python, "install", "--quiet")
        run(*pip, "--no-compile", *options, what)

    def call(self, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
        """Run Python as one would who has never seen this repository."""
        return subprocess.run(
            [self.python, *arguments], cwd=self.folder, env=CLEAN, capture_output=True, text=True
        )

    def do(self, *arguments: str | Path) -> str:
        done = self.call(*arguments)
        assert done.returncode == 0, f"{arguments}: {done.stderr}"
        return done.stdout

    def serves(self) -> None:
        command = [self.python, *shlex.split(TRIED["serve"][0]), "--port", "0"]
        with subprocess.Popen([*command, "--json"], env=CLEAN, stdout=subprocess.PIPE) as server:
            try:
                assert server.stdout is not None
                told = json.loads(server.stdout.readline())
                with urlopen(told["url"] + "/health/live") as answer:
                    assert answer.status == 200
            finally:
                server.terminate()
        assert server.returncode == 0

    def refuses(self, command: str, says: str) -> None:
        """The command ends with a line that says so, and no traceback."""
        done = self.call(*shlex.split(command))
        *_, last = done.stderr.splitlines() or [""]
        assert done.returncode == 2 and says in last, f"{command}: {done.stderr}"
        assert "Traceback" not in done.stderr


def run(*command: str | Path) -> None:
    subprocess.run(command, cwd=ROOT, check=True)


def smallest(wheel: Path) -> Environment:
    """An environment with nothing but the wheel and what it needs; all works that has to."""
    base, begun = Environment("base"), monotonic()
    base.install(wheel)
    seconds = monotonic() - begun
    size = sum(path.stat().st_size for path in base.packages.rglob("*") if path.is_file())
    print(f"installed in {seconds:.0f} s: {size / 1e6:.0f} MB", flush=True)
    print(base.do(ROOT / "tests" / "smoke.py"), flush=True)
    base.do(*shlex.split(FIT.format("a.csv")))
    told = json.loads(base.do("-m", "scaledsgd", "doctor", "--json"))
    assert all(one["install"] for one in told["extras"].values()), told["extras"]
    (base.folder / "a.parquet").write_bytes(b"PAR1")
    for command, without, _ in TRIED.values():
        if without is not None:
            base.refuses(command, without)
    return base


def from_source(archive: Path, base: Environment) -> str:
    own = Environment("sdist", base)
    own.install(archive, "--no-deps", "--ignore-installed")
    where = own.do("-c", "import scaledsgd; print(scaledsgd.__file__); scaledsgd.Recommender")
    assert str(own.home) in where
    return "sdist"


def extra(name: str, wheel: Path, base: Environment) -> str:
    """The extra alone: doctor finds it, and what it is for works."""
    own, begun = Environment(name, base), monotonic()
    own.install(f"scaledsgd[{name}] @ {wheel.as_uri()}")
    told = json.loads(own.do("-m", "scaledsgd", "doctor", "--json"))
    assert not told["extras"][name]["install"], told["extras"][name]
    command, _, refusal = TRIED[name]
    if told["automatic device"].startswith("cuda"):
        refusal = refusal if name != "gpu" else None
    if name in ("parquet", "ray"):
        own.do("-c", PARQUET)
    shutil.copy(base.folder / "m.model", own.folder)
    if name == "serve":
        own.serves()
    elif refusal is None:
        own.do(*shlex.split(command))
    else:
        own.refuses(command, refusal)
    return f"{name}, {monotonic() - begun:.0f} s"


if __name__ == "__main__":
    shutil.rmtree(HOME, ignore_errors=True)
    run(sys.executable, "-m", "build", "--outdir", HOME / "dist", ROOT)
    (wheel,), (archive,) = (HOME / "dist").glob("*.whl"), (HOME / "dist").glob("*.tar.gz")
    base = smallest(wheel)
    wanted = sys.argv[1:] or list(TRIED)
    jobs = [partial(from_source, archive, base)]
    jobs += [partial(extra, name, wheel, base) for name in wanted]
    with ThreadPoolExecutor(2) as pool:
        for done in pool.map(lambda job: job(), jobs):
            print("works:", done, flush=True)
