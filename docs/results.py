"""Writes results.md and its pictures from the runs in `results/ogbench`.

python docs/results.py
"""

from pathlib import Path

from uhm.evaluate import Episode
from uhm.report import charts, figures, tables, writers
from uhm.report.collect import LAST, Collected, Method, Run, collect
from uhm.report.tables import Cell, Table, number
from uhm.report.writers import MARKS, spread
from uhm.runs.files import JsonLines

VALUES = (
    "Q in the mean over stored states and actions at the end, and the return of the episodes of the last three",
    "evaluations, not discounted: with the discount of 0.999 a cost that is the same at every step comes to 0.89 of its",
    "sum over 250 steps and to 0.79 over 500. An unsolved episode stops at its limit, where its costs do not. Stored",
    "states and first states are not the same, so only large differences say something.",
)
HERE = Path(__file__).parent
RUNS = HERE.parent / "results" / "ogbench"


def main() -> None:
    collected = collect([RUNS])
    (HERE / "results.md").write_text(page(collected))
    for chart in charts.charts(*collected)[0]:
        if chart.name.startswith("curves-"):
            figures.draw(chart, HERE / "images")
            (HERE / "images" / f"{chart.name}.pdf").unlink()


def page(collected: Collected) -> str:
    """Tables of what was run, the curves, how it was run, and what there is to say about it."""
    made = [table for table in tables.tables(collected.members) if table.kind == "paper"]
    lines = ["# Results", "", "<!-- Written by docs/results.py from results/ogbench. -->", ""]
    lines += ["Success in %, mean of the last three evaluations of 50 episodes each, and in brackets the paper's.", ""]
    for level in ("environment", "task"):
        lines += [f"## Per {level}", "", *_table(level, [table for table in made if table.level == level]), ""]
    environments = dict.fromkeys(run.environment.name for run in collected.runs)
    lines += [f"![Learning curves on {name}](images/curves-{name}.png)\n" for name in environments]
    lines += ["## Values", "", *VALUES, "", *_values(collected.runs), ""]
    lines += ["## How they were run", "", *(_about(run) for run in collected.runs), ""]
    _, _, notes = (RUNS / "README.md").read_text().partition("\n")
    return "\n".join(lines) + notes


def _table(level: str, made: list[Table]) -> list[str]:
    """A row for what was run and a column for each method that was; what all cells have in common is said once."""
    rows = [row for table in made for row in table.rows if not row.missing]
    ran = [cell for row in rows for cell in row.cells if cell.mean is not None]
    used, known = {cell.method for cell in ran}, dict.fromkeys(method for table in made for method in table.methods)
    methods = [method for method in known if method in used]
    common = set.intersection(*(set(cell.marks) for cell in ran))
    lines = [_bar([level, *map(writers.name, methods)]), _bar(["---", *["---:"] * len(methods)])]
    for row in rows:
        cells = {cell.method: cell for cell in row.cells}
        lines.append(_bar([row.name, *(_cell(cells.get(method), common) for method in methods)]))
    some = sorted({mark for cell in ran for mark in cell.marks} - common)
    lines += [
        "",
        *(f"All: {MARKS[mark]}.  " for mark in sorted(common)),
        *(f"{mark}: {MARKS[mark]}.  " for mark in some),
    ]
    return lines


def _values(runs: list[Run]) -> list[str]:
    """A row per task, and for each method its mean Q and the mean return of its last episodes."""
    order = tables.ordered({method for run in runs for method in run.methods})
    found: dict[str, dict[Method, tuple[float, float]]] = {}
    for run in runs:
        (method,) = run.methods  # one seed of one setting: members are tasks
        believed = JsonLines(run.directory / "metrics.jsonl").read()[-1]["q_mean"]
        episodes = [Episode.from_json(line) for line in JsonLines(run.directory / "episodes.jsonl").read()]
        last = sorted({episode.step for episode in episodes})[-LAST:]
        for member, task in enumerate(run.tasks):
            returns = [e.return_ for e in episodes if e.member == member and e.step in last]
            found.setdefault(task, {})[method] = believed[member], sum(returns) / len(returns)
    heads = [f"{writers.name(method)}: {what}" for method in order for what in ("Q", "return")]
    lines = [_bar(["task", *heads]), _bar(["---", *["---:"] * len(heads)])]
    for task, methods in sorted(found.items()):
        pairs = [methods.get(method) for method in order]
        lines.append(_bar([task, *(f"{x:,.0f}" if pair else "" for pair in pairs for x in pair or ("", ""))]))
    return lines


def _cell(cell: Cell | None, common: set[str]) -> str:
    if cell is None or cell.mean is None:
        return ""
    marks = "".join(mark for mark in cell.marks if mark not in common)
    ours = f"{number(cell.mean)}{'' if cell.std is None else f' ± {number(cell.std)}'}"
    return f"{ours}{f'<sup>{marks}</sup>' if marks else ''} ({spread(cell.paper) if cell.paper else '–'})"


def _about(run: Run) -> str:
    versions = ", ".join(
        f"{name} {run.versions[name]}" for name in ("jax", "mujoco", "ogbench") if run.versions.get(name)
    )
    where = f"{run.members} agents on one {run.device}" if run.device else f"{run.members} agents"
    folder = run.directory.relative_to(HERE.parent).as_posix()
    return f"- `{folder}`: {where}, {run.steps:,} steps in {(run.seconds or 0) / 60:.0f} minutes; {versions}"


def _bar(cells: list[str] | tuple[str, ...]) -> str:
    return f"| {' | '.join(cells)} |"


if __name__ == "__main__":
    main()
