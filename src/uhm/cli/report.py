"""`uhm report`: tables, figures and one page from runs. The runs are only read, also while they are training."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

from tyro.conf import Positional

from uhm.cli.flags import verb

if TYPE_CHECKING:
    from uhm.report.logs import Log
    from uhm.report.tables import Cell, Table

_STYLES = {"above": "green", "below": "red", "same": "", "": ""}
_RANKS = {"best": "bold", "near": "underline", "": ""}


@verb
class Report:
    """Report on runs beside the paper's numbers: a page, figures (PNG, PDF) and tables (CSV, Markdown, LaTeX).

    Of runs on logs of your own it shows what they logged, and what they obtained in your simulator, if any.
    """

    runs: Positional[tuple[Path, ...]] = ()
    """Run directories, or folders that contain some."""
    out: Path = Path("report")
    """Folder to write into."""

    def __call__(self) -> int:
        from rich.console import Console

        from uhm import report
        from uhm.lines import console
        from uhm.report.tables import MARKS

        with Console(stderr=True).status("starting") as status:
            made = report.make(self.runs, self.out, status.update)
        rows = [row for table in made.tables for row in _overview(table, "environment")]
        # Where no setting saw all tasks of an environment, there is nothing to average.
        rows = rows or [row for table in made.tables for row in _overview(table, "task")]
        if rows:
            console().print(_table(rows))
        for log in made.logs:
            console().print(_of_logs(log))
        for mark in sorted({mark for _, cell in rows for mark in cell.marks}):
            print(f"{mark}: {MARKS[mark]}.")
        print(f"page: {made.page}; figures: {self.out / 'figures'}; tables: {self.out / 'tables'}")
        return 0


def _overview(table: "Table", level: str) -> "list[tuple[str, Cell]]":
    """The suite's average of every method that was run, of a suite with one environment that environment."""
    if table.level != level:
        return []
    rows = [table.average] if table.average else table.rows
    name = table.suite if table.average else ""
    return [
        (name or row.name, cell)
        for row in rows
        for cell in row.cells
        # The paper's setting stands in the other kind of table already.
        if cell.mean is not None and (table.kind == "paper" or cell.method.setting)
    ]


def _table(rows: "list[tuple[str, Cell]]") -> Any:
    from rich.table import Table
    from rich.text import Text

    from uhm.report.tables import number
    from uhm.report.writers import spread

    paper = any(cell.paper for _, cell in rows)
    out = Table(box=None, header_style="bold", pad_edge=False, collapse_padding=True)
    for column in ("", "method"):
        out.add_column(column, min_width=12)
    for column in ("success, %", "95 % interval", "seeds", *(["paper", "diff."] if paper else [])):
        out.add_column(column, justify="right", no_wrap=True)
    for name, cell in rows:
        spreads = f" ± {number(cell.std)}" if cell.std is not None else ""
        mean = Text.assemble((number(cell.mean), _RANKS[cell.rank]), spreads, (f" {cell.marks}", "dim"))
        interval = f"{number(cell.interval[0])} – {number(cell.interval[1])}" if cell.interval else "–"
        values = [name, cell.method.label, mean, interval, str(cell.seeds)]
        if paper:
            values += [
                spread(cell.paper) if cell.paper else "–",
                Text(number(cell.difference, sign=True), _STYLES[cell.verdict]),
            ]
        out.add_row(*values)
    return out


def _of_logs(log: "Log") -> Any:
    """What was logged last, the median over the seeds of every setting that did not diverge."""
    from rich.table import Table

    from uhm.report.logs import last, lines

    out = Table(box=None, header_style="bold", pad_edge=False, collapse_padding=True)
    out.add_column(log.title, min_width=12, overflow="fold")
    for column in ("seeds", *log.metrics, "diverged"):
        out.add_column(column, justify="right", no_wrap=True)
    for line in lines(log):
        values = ["–" if value is None else f"{value:.4g}" for value in (last(line, name) for name in log.metrics)]
        out.add_row(line.label, str(len(line.members)), *values, str(sum(m.diverged for m in line.members)))
    return out
