"""What is installed with the package, and what it says of itself, is so."""

import re
import subprocess
import sys
import tomllib
from importlib.metadata import version
from pathlib import Path

import pytest
from commands import runner, write
from package import TRIED

import scaledsgd
from scaledsgd.cli.doctor import EXTRAS

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
FOR_US = {"test", "check", "docs"}  # extras of those who work on it


@pytest.fixture
def run(capsys):
    return runner(capsys)


def test_the_version_is_the_one_that_is_installed():
    assert scaledsgd.__version__ == version("scaledsgd")


def test_importing_the_package_loads_nothing_heavy():
    code = "import sys; before = set(sys.modules); import scaledsgd, scaledsgd.cli.main\n"
    code += "print(*{name.split('.')[0] for name in set(sys.modules) - before})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    heavy = {"numpy", "scipy", "sklearn", "numba", "narwhals", "safetensors", "pandas", "polars"}
    heavy |= {module for modules, _ in EXTRAS.values() for module in modules}
    assert "scaledsgd" in done.stdout.split() and not heavy & set(done.stdout.split())


def test_the_doctor_and_the_trial_know_every_extra_and_what_it_brings():
    wanted = PROJECT["optional-dependencies"]
    assert EXTRAS.keys() == TRIED.keys() == wanted.keys() - FOR_US
    for name, (modules, _) in EXTRAS.items():
        packages = {re.split(r"[>=;\[]", one)[0].split("-")[0] for one in wanted[name]}
        assert set(modules) <= packages, name


@pytest.mark.parametrize("command", ["demo", "bench speed --quick", "reproduce fig1"])
def test_pictures_without_matplotlib_say_how_to_get_it(run, monkeypatch, command):
    for name in [one for one in sys.modules if one.startswith("scaledsgd.research")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "jinja2", None)
    code, out, told = run(*command.split())
    assert (code, out) == (2, "")
    assert told == "scaledsgd: this needs jinja2: pip install 'scaledsgd[plots]'\n"


def test_a_cluster_without_ray_says_how_to_get_it(run, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("scaledsgd.cli.main.find_spec", lambda name: None)
    code, _, told = run("fit", write([]), "--ray", "local", "--out", "m.model")
    assert (code, told) == (2, "scaledsgd: this needs ray: pip install 'scaledsgd[ray]'\n")


def test_a_missing_module_of_no_extra_is_a_fault_of_ours(run, monkeypatch):
    monkeypatch.setitem(sys.modules, "scaledsgd.research.demo", None)
    with pytest.raises(ModuleNotFoundError):
        run("demo")


def test_python_and_its_classifiers():
    told = {name.rpartition(" ")[2] for name in PROJECT["classifiers"] if ":: 3." in name}
    lowest = PROJECT["requires-python"].removeprefix(">=")
    assert lowest == min(told, key=lambda text: int(text.split(".")[1]))
    platforms = (ROOT / "docs" / "architecture.md").read_text()
    assert all(one in platforms for one in told)
