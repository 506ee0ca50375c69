"""The agents by name. A name stands for a factory and the types of its configuration."""

import importlib
from collections.abc import Callable
from typing import NamedTuple

from uhm.agents.base import Agent, Spec, spec_of
from uhm.errors import unknown

__all__ = ["FAMILIES", "Agent", "Family", "Spec", "family", "spec_of"]


class Family(NamedTuple):
    """`make(config, spec)` builds the agent; `Config` changes the program, `Hyper` may differ between members."""

    name: str
    make: Callable[..., Agent]
    Config: type
    Hyper: type


_CORE = "uhm.agents.core"
# name -> module of the factory, module of Config and Hyper
FAMILIES = {
    "uhm": ("uhm.agents.uhm", _CORE),
    "ghm": ("uhm.agents.ghm", _CORE),
    "mbtd": ("uhm.agents.mbtd", _CORE),
    "dtd": ("uhm.agents.dtd", _CORE),
    "rebrac-dagger": ("uhm.agents.rebrac_dagger", _CORE),
}


def family(name: str) -> Family:
    """The agents called `name`."""
    if name not in FAMILIES:
        raise unknown("agent", name, FAMILIES, f"Agents are: {', '.join(FAMILIES)}.")
    factory, types = (importlib.import_module(module) for module in FAMILIES[name])
    return Family(name, factory.make, types.Config, types.Hyper)
