"""Writes results.md and its pictures from the runs in `results/ogbench`.

python docs/results.py
"""

from pathlib import Path

from uhm.report import charts, figures, tables, writers
from uhm.report.collect import Collected, Run, collect
from uhm.report.tables import Cell, number
from uhm.report.writers import MARKS, spread

HERE = Path(__file__).parent
RUNS = HERE.parent / "results" / "ogbench"
HEAD = ("", "method", "ours, %", "paper, %", "difference", "seeds", "steps")


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
    lines += ["Success in %, mean of the last three evaluations of 50 episodes each, beside the paper's numbers.", ""]
    for level in ("environment", "task"):
        lines += [f"## Per {level}", "", _bar((level, *HEAD[1:])), _bar(["---", "---", *["---:"] * 5])]
        found = [(row.name, cell) for table in made if table.level == level for row in table.rows for cell in row.cells]
        lines += [_bar(_row(name, cell)) for name, cell in found if cell.mean is not None]
        marks = sorted({mark for _, cell in found for mark in cell.marks})
        lines += ["", *(f"{mark}: {MARKS[mark]}.  " for mark in marks), ""]
    environments = dict.fromkeys(run.environment.name for run in collected.runs)
    lines += [f"![Learning curves on {name}](images/curves-{name}.png)\n" for name in environments]
    lines += ["## How they were run", "", *(_about(run) for run in collected.runs), ""]
    _, _, notes = (RUNS / "README.md").read_text().partition("\n")
    return "\n".join(lines) + notes


def _row(name: str, cell: Cell) -> list[str]:
    marks = f"<sup>{cell.marks}</sup>" if cell.marks else ""
    ours = f"{number(cell.mean)}{'' if cell.std is None else f' ± {number(cell.std)}'}{marks}"
    paper = spread(cell.paper) if cell.paper else "–"
    seeds, steps = str(cell.seeds), f"{cell.steps:,}"
    return [name, writers.name(cell.method), ours, paper, number(cell.difference, sign=True), seeds, steps]


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
