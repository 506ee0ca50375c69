"""What the page shows of runs on logs: a table of members, and the settings of every run."""

from collections.abc import Sequence
from typing import Any, NamedTuple

from uhm.report.logs import Log, Member, shown
from uhm.report.writers import NAMES


class Cell(NamedTuple):
    text: str
    sort: str
    kind: str = "number"


def sections(logs: Sequence[Log]) -> list[dict[str, Any]]:
    return [
        {
            "title": log.title,
            "name": log.runs[0].environment.name,
            "simulators": sorted({member.hyper["env"] for member in log.members if "env" in member.hyper}),
            "charts": [f"logs-{log.stem}-metrics"],
            "more": [f"logs-{log.stem}-others"],
            "table": _table(log, log.metrics),
            "others": _table(log, log.others) if log.others else None,
            "runs": [
                {
                    "name": run.name,
                    "agent": NAMES.get(run.agent, run.agent),
                    "config": _config([member for member in log.members if member.run is run]),
                }
                for run in log.runs
            ],
        }
        for log in logs
    ]


def _table(log: Log, metrics: Sequence[str]) -> dict[str, Any]:
    """One row per member: who it is, what it logged last, and its last evaluations."""
    several_runs, several_agents = len(log.runs) > 1, len(log.agents) > 1
    head = [("run", "text")] * several_runs + [("member", "number")] + [("agent", "text")] * several_agents
    head += [(name, "number") for name in (*log.columns, "seed", *metrics)] + [("diverged", "text")]

    def row(member: Member) -> list[Cell]:
        agent = NAMES.get(member.run.agent, member.run.agent)
        cells = [Cell(member.run.name, member.run.name, "text")] * several_runs
        cells += [Cell(str(member.index), str(member.index))] + [Cell(agent, agent, "text")] * several_agents
        for name in log.columns:
            text = shown(member.hyper[name]) if name in member.hyper else "–"
            cells.append(Cell(text, _order(member.hyper.get(name))))
        cells.append(Cell(str(member.seed), str(member.seed)))
        cells += [_number(member.last(name)) for name in metrics]
        gone = "yes" if member.diverged else "no"
        return [*cells, Cell(gone, gone, "difference below" if member.diverged else "quiet")]

    return {"head": head, "rows": [row(member) for member in log.members]}


def _order(value: Any) -> str:
    """What a column of numbers is sorted by; what is none is at its end."""
    return repr(float(value)) if isinstance(value, int | float) else ""


def _number(value: float | None) -> Cell:
    return Cell("–", "") if value is None else Cell(f"{value:.4g}".replace("-", "−"), repr(value))


def _config(members: Sequence[Member]) -> list[tuple[str, str]]:
    """Every setting of a run, of an axis all its values."""
    return [(n, ", ".join(dict.fromkeys(shown(m.hyper[n]) for m in members))) for n in members[0].hyper]
