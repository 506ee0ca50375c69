"""The order of the layers: a module imports its own and earlier ones only, at the top and inside functions alike."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

SOURCE = Path(__file__).parent.parent / "src" / "uhm"
LAYERS = (
    "errors",
    "interrupts",
    "lines",
    "horizons",
    "returns",
    "numerics",
    "kernels",
    "nets",
    "early",
    "ode_kernel",
    "flow",
    "tasks",
    "presets",
    "envs",
    "data",
    "agents",
    "population",
    "evaluate",
    "runs",
    "train",
    "export",
    "imagine",
    "suites",
    "report",
    "bench",
    "doctor",
    "cli",
    "__main__",
)


def violations(root: Path, layers: tuple[str, ...] = LAYERS) -> list[str]:
    """Every import below `root`, the folder of a package, that goes against the order; and every unknown layer."""
    found = []
    for path in sorted(root.rglob("*.py")):
        parts = path.relative_to(root).with_suffix("").parts
        layer = parts[0]
        if parts == ("__init__",):
            continue  # the package's own front may offer anything
        if layer not in layers:
            found.append(f"{layer}: no layer of this name; add it to LAYERS in tests/test_layers.py at its place")
            continue
        package = [root.name, *parts[:-1]]
        for line, imported in imports(ast.parse(path.read_text(encoding="utf-8")), package):
            where = f"{'/'.join(parts)}.py:{line}"
            if imported is None:
                found.append(f"{where}: imports {root.name} itself, which hides the layer; import from the module")
            elif imported not in layers:
                found.append(f"{where}: imports '{imported}', which is no layer")
            elif layers.index(imported) > layers.index(layer):
                found.append(f"{where}: {layer} may not import {imported}, a later layer; move one of the two")
    return list(dict.fromkeys(found))


def imports(tree: ast.Module, package: list[str]) -> Iterator[tuple[int, str | None]]:
    """Line and layer of each import of the package's own modules; None for the package as a whole."""
    root = package[0]
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            base = ".".join([*base, *([node.module] if node.module else [])])
            # `from uhm import tasks` imports a layer; `from uhm import __version__` a mere constant of the front.
            names = [f"{base}.{a.name}" for a in node.names if not a.name.startswith("__")] if base == root else [base]
        elif isinstance(node, ast.Call) and called(node) in ("import_module", "__import__"):
            names = [arg.value for arg in node.args[:1] if isinstance(arg, ast.Constant) and isinstance(arg.value, str)]
        else:
            continue
        for name in names:
            first, *rest = name.split(".")
            if first == root:
                yield node.lineno, rest[0] if rest else None


def called(node: ast.Call) -> str:
    return getattr(node.func, "attr", getattr(node.func, "id", ""))


def test_the_layers_hold() -> None:
    assert violations(SOURCE) == []


def fake(folder: Path, **modules: str) -> Path:
    """A package `uhm` with the given modules; `a__b` is the file a/b.py."""
    root = folder / "uhm"
    for name, code in {"__init__": "from uhm.flow import x", **modules}.items():
        path = root / f"{name if name == '__init__' else name.replace('__', '/')}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(code)
    return root


@pytest.mark.parametrize(
    "code",
    [
        "import uhm.train",
        "import numpy, uhm.train as t",
        "from uhm.train import run",
        "from uhm import train",
        "from uhm import tasks, train",
        "from ..train import run",
        "from .. import train",
        "def f():\n    from uhm.train import run",
        "class A:\n    def f(self):\n        import uhm.train",
        "import importlib\nimportlib.import_module('uhm.train')",
        "if TYPE_CHECKING:\n    from uhm.train import Run",
    ],
)
def test_a_violation_is_caught(code: str, tmp_path: Path) -> None:
    found = violations(fake(tmp_path, train="", tasks="", agents__base=code))
    line = code.count("\n") + 1
    assert found == [f"agents/base.py:{line}: agents may not import train, a later layer; move one of the two"]


@pytest.mark.parametrize(
    "code",
    [
        "from uhm.agents.other import x",
        "from .other import x",
        "from . import other",
        "from uhm.data.dataset import Dataset",
        "from ..data import dataset",
        "from uhm import tasks, __version__",
        "import train, uhmm.train",
        "from train import uhm",
        "import importlib\nimportlib.import_module(name)",
    ],
)
def test_what_is_allowed_passes(code: str, tmp_path: Path) -> None:
    assert violations(fake(tmp_path, train="", tasks="", agents__base=code, agents__other="")) == []


def test_a_new_module_has_to_be_given_its_place(tmp_path: Path) -> None:
    (found,) = violations(fake(tmp_path, novelty="", tasks=""))
    assert found == "novelty: no layer of this name; add it to LAYERS in tests/test_layers.py at its place"


def test_the_package_itself_is_no_layer(tmp_path: Path) -> None:
    assert "hides the layer" in violations(fake(tmp_path, agents="import uhm"))[0]
    assert "'Agent', which is no layer" in violations(fake(tmp_path, agents="from uhm import Agent"))[0]
