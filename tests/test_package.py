"""The package as it is installed: its version, its licence, its locked dependencies, and how little it imports."""

import importlib.metadata
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import uhm

ROOT = Path(__file__).parent.parent
PINNED = re.compile(r"([A-Za-z0-9._-]+)==([A-Za-z0-9.!+]+)")


def normal(name: str) -> str:
    """A project's name as package indexes compare it."""
    return re.sub(r"[-_.]+", "-", name).lower()


@pytest.fixture(scope="module")
def lock() -> dict[str, str]:
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    pins = {}
    for line in lines:
        if line.startswith("#"):
            continue
        match = PINNED.fullmatch(line)
        assert match, f"constraints.txt: '{line}' is not NAME==VERSION"  # no addresses, no paths, no ranges
        pins[normal(match[1])] = match[2]
    return pins


def test_version_is_that_of_the_installed_package() -> None:
    assert importlib.metadata.version("uhm") == uhm.__version__


def test_licence_is_there_and_declared() -> None:
    assert (ROOT / "LICENSE").read_text().startswith("MIT License")
    assert importlib.metadata.metadata("uhm")["License-Expression"] == "MIT"


def test_light_modules_do_not_import_jax() -> None:
    """Help, completion and mistyped names have to answer at once; JAX alone takes a second."""
    code = "import uhm, uhm.tasks, uhm.errors, sys; assert 'jax' not in sys.modules"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_every_direct_dependency_is_locked(lock: dict[str, str]) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted = [*project["dependencies"], *project["optional-dependencies"]["dev"]]
    names = {normal(re.split(r"[\[<>=!~; ]", requirement)[0]) for requirement in wanted}
    assert names - lock.keys() == set()
    assert "uhm" not in lock


def test_the_locked_physics_are_those_of_the_scores(lock: dict[str, str]) -> None:
    assert {name: lock[name] for name in ("mujoco", "dm-control", "ogbench")} == {
        "mujoco": "3.4.0",
        "dm-control": "1.0.36",
        "ogbench": "1.2.2",
    }
