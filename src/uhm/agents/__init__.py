"""The agents by name. A name stands for a factory and the types of its configuration.

`module:NAME` is an agent of the user's own: a Python module that offers `make`, `Config` and `Hyper`, looked for on the
path and in the current directory. With `LIKE = "uhm"` it takes over the paper's settings of UHM for every environment.
docs/own-agent.md has an example.
"""

import importlib
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from uhm.agents.base import Agent, Spec, normalised, spec_of
from uhm.errors import UhmError, unknown

__all__ = ["FAMILIES", "Agent", "Family", "Spec", "family", "is_agent", "normalised", "spec_of"]


class Family(NamedTuple):
    """`make(config, spec)` builds the agent; `Config` changes the program, `Hyper` may differ between members.

    `idle` are hyperparameters without effect: those of the shared core that this method does not use. `like` is the
    agent whose settings in the paper it is trained with: a user's own may name one, or none.
    """

    name: str
    make: Callable[..., Agent]
    Config: type
    Hyper: type
    idle: tuple[str, ...] = ()
    like: str | None = None


_OWN = "module:"
# name -> module that offers make, Config and Hyper
FAMILIES = {
    name: f"uhm.agents.{name.replace('-', '_')}"
    for name in ("uhm", "ghm", "mbtd", "dtd", "rebrac-dagger", "iql", "rebrac", "fql", "mopo", "mobile", "mac")
}
_WITHOUT_MODEL = ("beta", "flag_weight", "flag_threshold", "literal_mve")
_IDLE = {
    "uhm": ("literal_mve",),
    "ghm": ("q",),
    "mbtd": ("literal_mve",),
    "dtd": _WITHOUT_MODEL,
    "rebrac-dagger": (*_WITHOUT_MODEL, "lambda_f", "schedule", "q"),
}


def is_agent(name: str) -> bool:
    """Whether `name` is meant as an agent's: one of the package, or `module:NAME`."""
    return name in FAMILIES or name.startswith(_OWN)


def family(name: str) -> Family:
    """The agents called `name`."""
    if name.startswith(_OWN):
        return _own(name)
    if name not in FAMILIES:
        raise unknown("agent", name, FAMILIES, f"Agents are: {', '.join(FAMILIES)}.")
    module: Any = importlib.import_module(FAMILIES[name])
    return Family(name, module.make, module.Config, module.Hyper, _IDLE.get(name, ()), name)


def _own(name: str) -> Family:
    """The agents of a user's module."""
    module = name.removeprefix(_OWN)
    if not all(part.isidentifier() for part in module.split(".")):
        raise UhmError(f"'{name}' names no Python module: write {_OWN}NAME for NAME.py.")
    if "" not in sys.path:  # a console script does not search the current directory
        sys.path.append("")
    here = str(Path.cwd())
    sys.path.insert(0, here)  # for this import only: a file here takes precedence over others of its name
    try:
        found = importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name != module:
            raise  # the module exists, but something it imports does not
        raise UhmError(f"no Python module '{module}' here or on the path, which the agent '{name}' asks for.") from None
    finally:
        sys.path.remove(here)
    missing = [part for part in ("make", "Config", "Hyper") if not hasattr(found, part)]
    if missing:
        where = getattr(found, "__file__", None) or "built into Python"
        raise UhmError(f"the module '{module}' ({where}) is no agent: it has no {' and no '.join(missing)}.")
    like = getattr(found, "LIKE", None)
    if like is not None and (not isinstance(like, str) or like not in FAMILIES):
        raise UhmError(f"LIKE of the module '{module}' is {like!r}, and must be one of: {', '.join(FAMILIES)}.")
    return Family(name, found.make, found.Config, found.Hyper, like=like)
