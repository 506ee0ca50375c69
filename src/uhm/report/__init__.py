"""Runs beside the paper: tables, figures and one page, from run directories alone.

Runs on logs of one's own have no success to compare; of them it shows what they logged, in a section of their own.

```python
from uhm.report import write

page = write(["runs"], "report")
```

    OUT/report.html              everything, in one file
    OUT/figures/NAME.png, .pdf   learning curves, values, the paper's ablations, update time, calibration
    OUT/tables/results.csv       every cell with its intervals
    OUT/tables/SUITE-LEVEL.md, .tex
    OUT/tables/logs.csv          every member of runs on logs, with the metrics that it logged last
"""

import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from uhm import tasks
from uhm.report.tables import Table

if TYPE_CHECKING:
    from uhm.report.logs import Log

__all__ = ["Report", "make", "write"]

# The files that a report writes.
_OWN = {
    "tables": re.compile(rf"(results|logs)\.csv|({'|'.join(tasks.SUITES)})-(settings-)?(environment|task)\.(md|tex)"),
    "figures": re.compile(
        rf"((curves|values)-({'|'.join(tasks.ENVIRONMENTS)})|ablation-\w+|update-time|calibration"
        r"|logs-[\w.~-]+-(metrics|others))\.(png|pdf)"
    ),
}


class Report(NamedTuple):
    """What was made: the page, the tables in it, and what runs on logs are shown."""

    page: Path
    tables: list[Table]
    logs: "list[Log]"


def write(runs: Iterable[Path | str], out: Path | str) -> Path:
    """Report on all runs at or below `runs` into the folder `out`, and return the page."""
    return make(runs, out).page


def make(runs: Iterable[Path | str], out: Path | str, progress: Callable[[str], None] = lambda _: None) -> Report:
    """`write`, with its tables and a word about what it is doing."""
    from uhm.errors import UhmError, writing
    from uhm.report import charts, figures, logs, page, tables, writers
    from uhm.report.collect import collect
    from uhm.runs.files import write_atomically

    out, runs = Path(out), [Path(run) for run in runs]
    progress("reading runs")
    collected = collect(runs)
    own = logs.read(collected.runs)
    if not collected.members and not own:
        raise UhmError(f"nothing to report yet: no run in {', '.join(map(str, runs))} has logged anything.")
    progress("statistics")
    made = tables.tables(collected.members)
    simulated = [run for run in collected.runs if not run.environment.own]
    drawn, hints = charts.charts(simulated, collected.members) if collected.members else ([], [])
    drawn += [chart for log in own for chart in logs.charts(log)]
    html = page.render(collected, made, drawn, hints, own)  # before anything is written
    with writing(out):
        for folder in ("tables", "figures"):
            (out / folder).mkdir(parents=True, exist_ok=True)
            # What an earlier report had and this one has not must not stand beside it; other files stay.
            for old in (out / folder).iterdir():
                if _OWN[folder].fullmatch(old.name):
                    old.unlink()
    if made:
        write_atomically(out / "tables" / "results.csv", writers.to_csv(made).encode())
    if own:
        write_atomically(out / "tables" / "logs.csv", logs.to_csv(own).encode())
    for table in made:
        for ending, text in (("md", writers.to_markdown(table)), ("tex", writers.to_latex(table))):
            write_atomically(out / "tables" / f"{writers.stem(table)}.{ending}", text.encode())
    for chart in drawn:
        progress(f"drawing {chart.name}")
        figures.draw(chart, out / "figures")
    write_atomically(out / "report.html", html.encode())
    return Report(out / "report.html", made, own)
