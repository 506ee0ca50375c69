"""The paper's hyperparameters and results as data.

`paper/hyperparameters.csv` holds one value a row with its source beside it; a row's scope is `*`, a domain, a suite or
one environment, and the narrower scope wins. `paper/results_per_*.csv` hold the success rates of the paper's tables.
"""

import csv
import functools
import json
from importlib import resources
from typing import Any, NamedTuple

from uhm.errors import unknown
from uhm.tasks import Environment, Task

AGENTS = ("uhm", "ghm", "mbtd", "dtd", "rebrac-dagger", "iql", "rebrac", "fql", "mopo", "mobile", "mac")
AVERAGE = "AVERAGE"  # the row of the per-environment table that averages a suite


class Setting(NamedTuple):
    """One hyperparameter: its value and where the value comes from."""

    value: Any
    source: str


class Result(NamedTuple):
    """A success rate of the paper, in percent."""

    mean: float
    std: float


class _Row(NamedTuple):
    agent: str
    scope: str
    name: str
    setting: Setting


def _read(name: str) -> list[dict[str, str]]:
    text = resources.files("uhm").joinpath("paper", name).read_text()
    return list(csv.DictReader(text.splitlines()))


@functools.cache
def _hyperparameters() -> tuple[_Row, ...]:
    return tuple(
        _Row(row["agent"], row["scope"], row["name"], Setting(json.loads(row["value"]), row["source"]))
        for row in _read("hyperparameters.csv")
    )


def preset(agent: str, environment: Environment) -> dict[str, Setting]:
    """What the paper used for `agent` on `environment`; narrower scopes override wider ones."""
    if agent not in AGENTS:
        raise unknown("agent", agent, AGENTS, f"Agents are: {', '.join(AGENTS)}.")
    scopes = ("*", f"domain:{environment.domain}", f"suite:{environment.suite}", environment.name)
    rows = [row for row in _hyperparameters() if row.agent == agent and row.scope in scopes]
    rows.sort(key=lambda row: scopes.index(row.scope))
    return {row.name: row.setting for row in rows}


@functools.cache
def _results() -> dict[tuple[str, str, str], Result]:
    """(suite, task or environment or AVERAGE, agent) -> success rate."""
    table = {}
    for file, column in (("results_per_task.csv", "task"), ("results_per_env.csv", "env")):
        for row in _read(file):
            mean, std = float(row["success_mean"]), float(row["success_std"] or "nan")
            table[row["suite"], row[column], row["method"].lower()] = Result(mean, std)
    return table


def paper_result(agent: str, target: Task | Environment) -> Result | None:
    """The paper's success rate of `agent` on a task or averaged over an environment; None where it reports none."""
    suite = target.environment.suite if isinstance(target, Task) else target.suite
    return _results().get((suite, target.name, agent))


def paper_average(agent: str, suite: str) -> Result | None:
    """The paper's average over a suite, as printed."""
    return _results().get((suite, AVERAGE, agent))


def paper_agents(suite: str) -> tuple[str, ...]:
    """The agents that the paper reports on `suite`, in its column order."""
    reported = {agent for (s, _, agent) in _results() if s == suite}
    return tuple(agent for agent in _COLUMNS if agent in reported)


# The order of the columns in the paper's tables.
_COLUMNS = ("iql", "rebrac", "fql", "mopo", "mobile", "mac", "rebrac-dagger", "mbtd", "dtd", "ghm", "uhm")
