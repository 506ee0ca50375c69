"""The page: one file that holds its style, its script, its data and its pictures, and asks nothing of a network."""

import base64
import datetime
import os
import shlex
from collections.abc import Sequence
from importlib import resources
from pathlib import Path
from typing import Any

from uhm import __version__
from uhm.report import log_page
from uhm.report.charts import Chart, Hint
from uhm.report.collect import LAST, Collected, Method, Run, several_seeds
from uhm.report.logs import Log, lines
from uhm.report.statistics import REPLICATES
from uhm.report.tables import MARKS, Cell, Row, Table, number
from uhm.report.writers import NAMES, name, spread, stem

SUITES = {
    "standard": "Standard tasks",
    "noisy": "Noisy tasks",
    "long-horizon": "Long-horizon reasoning tasks",
    "pointmaze": "Pointmaze",
    "embedded": "Embedded default",
}
PICTURE_LIMIT = 6_000_000  # bytes of one picture or film; a page is to be sent around
TYPES = {".png": "image/png", ".gif": "image/gif", ".mp4": "video/mp4"}


def render(
    collected: Collected,
    tables: Sequence[Table],
    charts: Sequence[Chart],
    hints: Sequence[Hint],
    logs: Sequence[Log] = (),
) -> str:
    """The whole page as text."""
    from jinja2 import Environment, FunctionLoader, StrictUndefined

    def source(file: str) -> str:
        return resources.files("uhm.report").joinpath("templates", file).read_text(encoding="utf-8")

    environment = Environment(
        loader=FunctionLoader(source), autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    runs, members = collected
    below = _below(runs)
    return environment.get_template("page.html").render(
        version=__version__,
        made=datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M UTC"),
        facts=_facts(collected, logs),
        logs=log_page.sections(logs),
        suites=_suites(tables),
        charts=[{**_plain(chart), "index": index} for index, chart in enumerate(charts)],
        hints=hints,
        pictures=_pictures(runs),
        runs=[_run(run, below) for run in runs],
        below=str(below),
        sessions=sum(len(run.sessions) for run in runs),
        versions=_versions(runs),
        last=LAST,
        replicates=REPLICATES,
        paper=any(table.has_paper for table in tables),
        alone=not several_seeds(members),
    )


def _facts(collected: Collected, logs: Sequence[Log]) -> list[tuple[str, str]]:
    runs, members = collected
    own = [line for log in logs for line in lines(log)]
    seconds = sum(run.seconds or 0.0 for run in runs)
    time = f"{seconds / 3600:,.1f} h" if seconds >= 3600 else f"{seconds / 60:,.0f} min"
    counts = {
        "run": len(runs),
        "agent": len(members) + sum(len(line.members) for line in own),
        "method": len({member.method for member in members}) + len({line.label for line in own}),
        "environment": len({member.task.environment for member in members}),
        "task": len({member.task for member in members}),
        "file of logs": len(logs),
    }
    plural = lambda noun: "files of logs" if noun == "file of logs" else f"{noun}s"  # noqa: E731
    facts = [(f"{count:,}", noun if count == 1 else plural(noun)) for noun, count in counts.items() if count]
    return [*facts, (time, "of training")] if seconds else facts


def _suites(tables: Sequence[Table]) -> list[dict[str, Any]]:
    found: dict[str, dict[str, Any]] = {}
    for table in tables:
        suite = found.setdefault(table.suite, {"id": table.suite, "title": SUITES[table.suite], "tables": []})
        suite["tables"].append(_table(table))
    return list(found.values())


def _table(table: Table) -> dict[str, Any]:
    columns = list(zip(*(row.cells for row in table.rows), strict=True))
    run = [any(cell.mean is not None for cell in column) for column in columns]
    spreads = [any(cell.std is not None for cell in column) for column in columns]
    missing = sum(row.missing for row in table.rows)
    return {
        "id": stem(table),
        "level": table.level,
        "title": f"Other settings, per {table.level}" if table.kind == "settings" else f"Per {table.level}",
        "columns": [{**_method(method), "run": done} for method, done in zip(table.methods, run, strict=True)],
        "rows": [_row(row, run, spreads) for row in table.rows],
        "average": _row(table.average, run, spreads) if table.average else None,
        "idle": run.count(False),
        "missing": missing,
        # Half a page of "not run" helps nobody; a click brings it back.
        "fold": missing > 10,
        "marks": [(mark, MARKS[mark]) for mark in table.marks],
        "paper": table.has_paper,
        "details": [
            {"row": row.name, "average": row is table.average, "method": name(cell.method), **_cell(cell)}
            for row in table.everything
            for cell in row.cells
            if cell.mean is not None
        ],
    }


def _method(method: Method) -> dict[str, str]:
    return {"name": NAMES.get(method.agent, method.agent), "setting": method.settings}


def _row(row: Row, run: list[bool], spreads: list[bool]) -> dict[str, Any]:
    """A row with what its cells have to know of their columns: whether they were run, and with several seeds."""
    about = zip(row.cells, run, spreads, strict=True)
    cells = [{**_cell(cell), "column_run": done, "column_std": several} for cell, done, several in about]
    return {"name": row.name, "missing": row.missing, "cells": cells}


def _cell(cell: Cell) -> dict[str, Any]:
    low, high = cell.interval or (None, None)
    return {
        "run": cell.mean is not None,
        "sort": "" if cell.mean is None else f"{cell.mean:.6f}",
        "mean": number(cell.mean),
        "std": "" if cell.std is None else number(cell.std),
        "iqm": number(cell.iqm),
        "low": low,
        "high": high,
        "position": cell.mean,
        "interval": [number(value) for value in cell.interval] if cell.interval else None,
        "iqm_interval": [number(value) for value in cell.iqm_interval] if cell.iqm_interval else None,
        "seeds": cell.seeds,
        "steps": cell.steps,
        "marks": cell.marks,
        "rank": cell.rank,
        "paper": spread(cell.paper) if cell.paper else "",
        "paper_position": cell.paper.mean if cell.paper else None,
        "difference": number(cell.difference, sign=True) if cell.difference is not None else "",
        "difference_sort": "" if cell.difference is None else f"{cell.difference:.6f}",
        "verdict": cell.verdict,
    }


def _plain(chart: Chart) -> dict[str, Any]:
    curves: dict[str, dict[str, Any]] = {}
    for panel in chart.panels:
        curves |= {curve.label: {"colour": curve.colour, "dashed": curve.dashed} for curve in panel.curves}
    panels = [
        {
            "title": panel.title,
            "curves": [curve._asdict() for curve in panel.curves],
            "bars": [bar._asdict() for bar in panel.bars],
            "longest": max((bar.value for bar in panel.bars), default=1.0),
        }
        for panel in chart.panels
    ]
    return {
        **{f: getattr(chart, f) for f in ("name", "title", "caption", "x", "y", "percent", "group", "zero")},
        "panels": panels,
        "legend": [{"label": label, **look} for label, look in curves.items()],
    }


def _pictures(runs: Sequence[Run]) -> list[dict[str, Any]]:
    """What `uhm imagine` and `uhm train` drew into the runs, inside the page."""
    found = []
    for run in runs:
        folder = run.directory / "imagine"
        films = sorted(folder.glob("*.mp4")) or sorted(folder.glob("*.gif"))
        # The page draws the calibration itself.
        stills = [path for path in sorted(folder.glob("*.png")) if path.stem != "calibration"]
        # And what runs on logs have in their picture.
        of_run = () if run.environment.own else (run.directory / "picture.png",)
        for path in (*stills, *films, *of_run):
            if path.is_file() and path.stat().st_size <= PICTURE_LIMIT:
                kind, imagined = TYPES[path.suffix], path.parent == folder
                what = ("imagined futures, a film" if path in films else "imagined futures") if imagined else "the run"
                found.append(
                    {
                        "data": f"data:{kind};base64,{base64.b64encode(path.read_bytes()).decode()}",
                        "film": kind.startswith("video"),
                        "imagined": imagined,
                        "caption": f"{run.name}: {what}",
                    }
                )
    return found


def _below(runs: Sequence[Run]) -> Path:
    """The folder that holds all runs."""
    return Path(os.path.commonpath([run.directory.absolute().parent for run in runs]))


def _run(run: Run, below: Path) -> dict[str, Any]:
    sessions = [
        {
            "started": session.get("started", ""),
            "command": _command(session.get("command", [])),
            "source": _source(session.get("source")),
            "variables": " ".join(f"{key}={value}" for key, value in session.get("variables", {}).items()),
        }
        for session in run.sessions
    ]
    return {
        "directory": str(run.directory.absolute().relative_to(below)),
        "method": "; ".join(name(method) for method in run.methods),
        "environment": run.environment.title,
        "tasks": len(run.tasks),
        "seeds": _ranges(run.seeds),
        "reached": run.reached,
        "steps": run.steps,
        "state": "finished" if run.finished else "not finished",
        "device": run.device or "not recorded",
        "minutes": None if run.seconds is None else f"{run.seconds / 60:,.1f}",
        "milliseconds": None if run.update_seconds is None else f"{1000 * run.update_seconds / run.members:,.3g}",
        "sessions": sessions,
    }


def _command(arguments: list[str]) -> str:
    """The command as it was typed, without the way to the program."""
    return shlex.join([Path(arguments[0]).name, *arguments[1:]]) if arguments else ""


def _source(source: dict[str, Any] | None) -> str:
    return f"{source['revision'][:12]}{' with changes' if source['dirty'] else ''}" if source else ""


def _ranges(seeds: Sequence[int]) -> str:
    """0, 1, 2, 3 as 0–3."""
    whole = len(seeds) > 2 and list(seeds) == list(range(seeds[0], seeds[0] + len(seeds)))
    return f"{seeds[0]}–{seeds[-1]}" if whole else ", ".join(map(str, seeds))


def _versions(runs: Sequence[Run]) -> list[dict[str, Any]]:
    """Every set of versions once, with the runs that it made."""
    found: dict[tuple[tuple[str, str], ...], list[str]] = {}
    for run in runs:
        key = tuple((package, version) for package, version in run.versions.items() if version)
        found.setdefault(key, []).append(run.name)
    return [{"versions": list(key), "runs": names, "all": len(found) == 1} for key, names in found.items() if key]
