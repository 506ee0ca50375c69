"""Writes results.md and its pictures from the runs in `results/ogbench`.

python docs/results.py
"""

from pathlib import Path

from uhm.report import charts, figures, tables, writers
from uhm.report.collect import Collected, Run, collect
from uhm.report.tables import Cell, Table, number
from uhm.report.writers import MARKS, spread

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
    """Tables of what was run, learning curves, how it was run, and the notes of results/ogbench/README.md."""
    made = [table for table in tables.tables(collected.members) if table.kind == "paper"]
    lines = ["# Results", "", "<!-- Written by docs/results.py from results/ogbench. -->", ""]
    lines += ["Success in %: mean of the last three evaluations of 50 episodes each; in parentheses the paper's.", ""]
    for level in ("environment", "task"):
        lines += [f"## Per {level}", "", *_table(level, [table for table in made if table.level == level]), ""]
    environments = dict.fromkeys(run.environment.name for run in collected.runs)
    lines += [f"![Learning curves on {name}](images/curves-{name}.png)\n" for name in environments]
    lines += ["## How they were run", "", *(_about(run) for run in collected.runs), ""]
    _, _, notes = (RUNS / "README.md").read_text().partition("\n")
    return "\n".join(lines) + notes


def _table(level: str, made: list[Table]) -> list[str]:
    """A row for each name that was run, a column for each method; a mark that all cells share is stated once."""
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
