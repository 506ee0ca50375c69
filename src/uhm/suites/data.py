"""The data that populations need: which are missing, and what brings them."""

import sys
from collections.abc import Sequence
from pathlib import Path

from uhm.data import source
from uhm.data.available import makeable, shortfall
from uhm.data.generate import make
from uhm.data.source import count, data_directory, find
from uhm.errors import UhmError
from uhm.suites.plan import Population
from uhm.tasks import Environment


def missing(wanted: Sequence[Population]) -> list[tuple[Environment, Path]]:
    """Each environment whose data are not there, with the directory where they were looked for."""
    absent: dict[tuple[Environment, Path], None] = {}
    for population in wanted:
        plan = population.plan
        directory = data_directory(plan.data_dir)
        try:
            find(population.environment, directory, dataset=plan.dataset)
        except UhmError:
            absent[population.environment, directory] = None
        if plan.dataset is None and plan.transitions is None and under_way(population.environment, directory):
            absent[population.environment, directory] = None
    return list(absent)


def under_way(environment: Environment, directory: Path) -> bool:
    """Whether a set that is several files has only some of them yet, by what makes or gets the others."""
    if not environment.sharded:
        return False
    making = (directory / f"{environment.dataset}.parts").exists()
    # A part beside the whole file is what some earlier download left.
    return making or any(not path.with_suffix("").exists() for path in (directory / environment.dataset).glob("*.part"))


def provide(wanted: Sequence[Population], make_data: bool) -> None:
    """Make what may be made, or say all that is missing in one line, before anything starts.

    The embedded default's data take a second and are made unasked, here, where nobody else makes them meanwhile.
    """
    for environment, directory in missing(wanted):
        source.provide(environment, directory)
    absent = missing(wanted)
    impossible = [pair for pair in absent if not makeable(pair[0])]
    if absent and (impossible or not make_data):
        raise UhmError(_commands(absent, impossible, make_data))
    for environment, directory in absent:
        make(environment, directory)
    whole = [one for one in wanted if one.plan.dataset is None and one.plan.transitions is None]
    for environment, directory in dict.fromkeys((p.environment, data_directory(p.plan.data_dir)) for p in whole):
        if few := shortfall(count(find(environment, directory)), environment):
            print(f"data: {environment.name} has {few}", file=sys.stderr)


def _commands(
    absent: Sequence[tuple[Environment, Path]], impossible: Sequence[tuple[Environment, Path]], make_data: bool
) -> str:
    possible = [environment.name for environment, _ in absent if makeable(environment)]
    official = [environment.name for environment, _ in impossible]
    where = ", ".join(dict.fromkeys(str(directory) for _, directory in absent))
    ways = []
    if possible and not make_data:
        ways.append(f"`uhm data make {' '.join(possible)}` (or give --make-data)")
    if official:
        ways.append(f"`uhm data get {' '.join(official)}` (no scripted expert makes these)")
    names = official if make_data else [environment.name for environment, _ in absent]
    return f"nothing was started: no data in {where} for {', '.join(names)}. First run {' and '.join(ways)}."
