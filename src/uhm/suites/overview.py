"""The plan as JSON and as a table."""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from uhm.suites import speed
from uhm.suites.plan import Population
from uhm.suites.status import status

FORMAT = 1


def facts(wanted: Sequence[Population], out: Path, names: Sequence[str] = (), ablation: str | None = None) -> dict:
    """Everything that the plan says, as plain JSON."""
    runs, here = speed.runs_in(out), speed.devices().kind
    rows = [_row(population, runs, here) for population in wanted]
    left = [row for row in rows if row["state"] != "done"]
    known = [row["estimate"] for row in left if row["estimate"]["hours"] is not None]
    return {
        "format": FORMAT,
        "names": list(names),
        "ablation": ablation,
        "out": str(out),
        "device": here,
        "environments": list(dict.fromkeys(row["environment"] for row in rows)),
        "tasks": list(dict.fromkeys(task for row in rows for task in row["tasks"])),
        "agents": list(dict.fromkeys(row["agent"] for row in rows)),
        "populations": rows,
        "totals": {
            "populations": len(rows),
            "members": sum(row["members"] for row in rows),
            "states": dict(Counter(row["state"] for row in rows)),
            "gpu_hours_left": sum(e["hours_left"] for e in known if e["device"] != "cpu"),
            "cpu_hours_left": sum(e["hours_left"] for e in known if e["device"] == "cpu"),
            "without_estimate": len(left) - len(known),
        },
    }


def _row(population: Population, runs: Sequence[speed.Measured], here: str) -> dict[str, Any]:
    now = status(population)
    at = speed.speed(population, runs, here)
    return {
        "name": population.name,
        "environment": population.environment.name,
        "suite": population.environment.suite,
        "agent": population.agent,
        "tasks": list(population.plan.tasks),
        "seeds": list(population.plan.seeds),
        "steps": population.steps,
        "axes": population.plan.axes,
        "members": population.members,
        "directory": str(population.directory),
        "state": now.state,
        "step": now.step,
        "success": now.success,
        "note": now.note,
        "estimate": speed.estimate(population, at, 0 if now.state == "differs" else now.step),
    }


_STYLE = {"done": "green", "running": "cyan", "interrupted": "yellow", "differs": "red", "left": "dim"}


def show(plan: dict[str, Any]) -> None:
    from rich.console import Console
    from rich.table import Table

    console = Console()
    table = Table(box=None, header_style="bold")
    table.add_column("population", no_wrap=True)
    for column in ("members", "steps"):
        table.add_column(column, justify="right", no_wrap=True)
    table.add_column("state", no_wrap=True)
    table.add_column("success", justify="right")
    table.add_column("hours left", justify="right", no_wrap=True)
    for row in plan["populations"]:
        success = "" if row["success"] is None else f"{100 * row['success']:.0f} %"
        at = f"{_short(row['step'])}/" if row["step"] and row["state"] != "done" else ""
        numbers = (_sizes(row), f"{at}{_short(row['steps'])}")
        styled = f"[{_STYLE[row['state']]}]{row['state']}[/]"
        table.add_row(row["name"], *numbers, styled, success, _hours(row))
    console.print(table)
    for row in plan["populations"]:
        if row["note"]:
            console.print(f"{row['name']} {row['note']}.", soft_wrap=True, highlight=False)
    for line in _summary(plan):
        console.print(line, soft_wrap=True, highlight=False)


def _sizes(row: dict[str, Any]) -> str:
    """Tasks x seeds x values = members."""
    sizes = [len(row["tasks"]), len(row["seeds"]), *(len(values) for values in row["axes"].values())]
    return f"{'x'.join(map(str, sizes))} = {row['members']}"


def _short(number: int) -> str:
    for unit, size in (("M", 1_000_000), ("k", 1000)):
        if number >= size:
            return f"{number / size:.3g}{unit}"
    return str(number)


def _hours(row: dict[str, Any]) -> str:
    estimate = row["estimate"]
    if row["state"] == "done":
        return "-"
    if estimate["hours_left"] is None:
        return "unknown"
    return f"{'~' if estimate['basis'] == 'scaled' else ''}{estimate['hours_left']:.2f}"


def _summary(plan: dict[str, Any]) -> list[str]:
    totals = plan["totals"]
    states = ", ".join(f"{count} {state}" for state, count in totals["states"].items())
    sizes = f"{len(plan['environments'])} environments, {len(plan['tasks'])} tasks, {totals['members']:,} members"
    lines = [f"{totals['populations']} populations ({sizes}): {states}."]
    known = totals["populations"] - totals["states"].get("done", 0) - totals["without_estimate"]
    if known:
        parts = [
            f"{totals[f'{kind}_hours_left']:.1f} {kind.upper()} hours"
            for kind in ("gpu", "cpu")
            if totals[f"{kind}_hours_left"]
        ]
        unknown = totals["without_estimate"]
        rest = f", and unknown time for {unknown} populations" if unknown else ""
        lines.append(f"Left: about {' and '.join(parts) or 'no time'} of training{rest}.")
        lines += _sources(plan)
    elif totals["without_estimate"]:
        lines.append("How long it takes is unknown: nothing alike was measured yet.")
    return lines


def _sources(plan: dict[str, Any]) -> list[str]:
    """Where the hours come from, each device and basis once."""
    estimates = [row["estimate"] for row in plan["populations"] if row["state"] != "done"]
    kinds = Counter((e["basis"], e["device"]) for e in estimates if e["basis"] != "unknown")
    said = [f"{count} {basis} on {device}" for (basis, device), count in kinds.items()]
    tilde = " (~ is scaled from a measurement of another size)" if any(b == "scaled" for b, _ in kinds) else ""
    return [f"Basis of the hours: {', '.join(said)}{tilde}; --json has each source."]
