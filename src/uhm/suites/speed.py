"""How long populations take, from measured speed only.

The best that is known counts: runs of the same agent in the output directory on this device; a measurement that comes
with the package (`speed.csv`, each with its source); else one of these scaled to another population size, and marked
so. Where nothing is known the answer is None: no number is made up. Hours are those of training. Evaluation runs beside
it on the CPU cores, and lasts longer than training where cores are few.
"""

import csv
import dataclasses
import functools
import itertools
import json
import os
import statistics
import subprocess
import sys
from collections.abc import Sequence
from importlib import resources
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np

from uhm.errors import UhmError
from uhm.runs.files import read_json
from uhm.suites.plan import Population
from uhm.suites.status import tail
from uhm.train.plan import Plan

# The networks and the batch that everything in speed.csv was measured with.
_PAPER = ((512, 512, 512, 512), 256)
_LINES = 100  # of a log, its last: their median is pace enough
# Only these roll out k_max steps; what the others cost does not depend on it.
_PAYS_FOR_HORIZON = ("dtd", "mbtd")


class Speed(NamedTuple):
    """Milliseconds a gradient step of a whole population, on which device, and how that is known."""

    milliseconds: float
    device: str
    basis: Literal["measured", "scaled"]
    source: str


@dataclasses.dataclass(frozen=True)
class Measured:
    """One measured speed."""

    agent: str
    device: str
    members: int
    k_max: int
    size: tuple[tuple[int, ...], int]  # of the networks and the batch
    compute_dtype: str
    milliseconds: float
    environment: str
    source: str


class Devices(NamedTuple):
    """What JAX sees on this machine."""

    platform: str
    kind: str
    number: int


@functools.cache
def devices() -> Devices:
    """Asked in another process, for the one that asks holds on to the device's memory."""
    code = "import jax, json; d = jax.local_devices(); print(json.dumps([d[0].platform, d[0].device_kind, len(d)]))"
    quiet = {"XLA_PYTHON_CLIENT_PREALLOCATE": "false", "TF_CPP_MIN_LOG_LEVEL": "3"}
    child = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=os.environ | quiet, check=False
    )
    if child.returncode:
        last = (child.stderr.strip().splitlines() or ["no message"])[-1]
        raise UhmError(f"JAX finds no device: {last}")
    return Devices(*json.loads(child.stdout.splitlines()[-1]))


def speed(population: Population, runs: Sequence[Measured], here: str) -> Speed | None:
    """Of one population on this machine's device `here`; None if nothing is known."""
    plan, agent, members = population.plan, population.agent, population.members
    k_max, size, dtype = plan.k_max(), _size(plan), _dtype(plan)

    def alike(known: Sequence[Measured]) -> list[Measured]:
        of_agent = [m for m in known if (m.agent, m.size, m.compute_dtype) == (agent, size, dtype)]
        return [m for m in of_agent if agent not in _PAYS_FOR_HORIZON or m.k_max == k_max]

    mine, package = alike(runs), alike(_package())
    # On a machine without a GPU people plan for those that have one.
    on_device = [m for m in mine if m.device == here] or ([m for m in mine if m.device != "cpu"] * (here == "cpu"))
    for fits in (lambda m: m.environment == population.environment.name, lambda _: True):
        same = [m for m in on_device if m.members == members and fits(m)]
        if same:
            value = statistics.median(m.milliseconds for m in same)
            return Speed(value, same[0].device, "measured", f"measured: {same[0].source}")
    # How time grows with size was measured on a GPU, so what a CPU took says nothing about other sizes.
    known = [m for m in on_device if m.device != "cpu"] or package
    return _scaled(known, members, package) if known and package else None


def hours(population: Population, at: Speed | None, step: int = 0) -> float | None:
    """What is left of a population that is at `step`."""
    return None if at is None else (population.steps - step) * at.milliseconds / 3.6e6


def runs_in(out: Path) -> list[Measured]:
    """What the runs in `out` took, without their compilation."""
    found = [_measure(path.parent) for path in sorted(out.glob("*/metrics.jsonl"))]
    return [one for one in found if one is not None]


def _measure(directory: Path) -> Measured | None:
    try:
        plan = Plan.from_json(read_json(directory / "config.json"))
        session = read_json(directory / "environment.json")["sessions"][-1]
        lines = tail(directory / "metrics.jsonl", _LINES)
        # The median over chunks, for the first chunk of each session compiles.
        pace = [(b["seconds"] - a["seconds"]) / (b["step"] - a["step"]) for a, b in itertools.pairwise(lines)]
        if not pace:
            return None
        kind = session["hardware"]["devices"][0]["kind"]
        return Measured(
            agent=plan.agent,
            device=kind,
            members=len(plan.members()),
            k_max=plan.k_max(),
            size=_size(plan),
            compute_dtype=_dtype(plan),
            milliseconds=1000 * statistics.median(pace),
            environment=plan.environment.name,
            source=f"{directory} on {kind}",
        )
    except (UhmError, OSError, ValueError, KeyError, IndexError, TypeError, ZeroDivisionError):
        return None  # what is not such a run has nothing to say here; `status` tells what is wrong with it


def _scaled(known: Sequence[Measured], members: int, package: Sequence[Measured]) -> Speed:
    """From the measurement of the nearest population size, along the package's curve of speed against size."""
    near = min(known, key=lambda m: abs(np.log(m.members / members)))
    if near.members == members:
        return Speed(near.milliseconds, near.device, "measured", f"measured: {near.source}")
    factor = _curve(package, members) / _curve(package, near.members)
    source = f"scaled: {near.milliseconds:.3g} ms for {near.members} members ({near.source}) x {factor:.2f}"
    return Speed(near.milliseconds * factor, near.device, "scaled", source)


def _curve(package: Sequence[Measured], members: int) -> float:
    """Milliseconds a step: straight between measured sizes, proportional beyond the largest, level below them."""
    sizes, times = zip(*sorted((m.members, m.milliseconds) for m in package), strict=True)
    return float(np.interp(members, sizes, times)) * max(1.0, members / sizes[-1])


@functools.cache
def _package() -> tuple[Measured, ...]:
    """All of them with the paper's networks and batch."""
    rows = csv.DictReader(resources.files("uhm").joinpath("suites", "speed.csv").read_text().splitlines())
    return tuple(
        Measured(
            agent=row["agent"],
            device=row["device"],
            members=int(row["members"]),
            k_max=int(row["k_max"]),
            size=_PAPER,
            compute_dtype=row["compute_dtype"],
            milliseconds=float(row["milliseconds"]),
            environment="",
            source=row["source"],
        )
        for row in rows
    )


def _size(plan: Plan) -> tuple[tuple[int, ...], int]:
    """A user's own agent may call them something else: then they do not tell its runs apart."""
    return tuple(plan.config.get("hidden", ())), int(plan.config.get("batch_size", 0))


def _dtype(plan: Plan) -> str:
    return plan.config.get("compute_dtype", "float32")


def estimate(population: Population, at: Speed | None, step: int) -> dict[str, Any]:
    """As the plan's JSON has it."""
    total, left = hours(population, at), hours(population, at, step)
    if at is None:
        return {"hours": None, "hours_left": None, "device": None, "basis": "unknown", "source": None}
    return {"hours": total, "hours_left": left, "device": at.device, "basis": at.basis, "source": at.source}
