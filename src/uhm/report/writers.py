"""Tables as CSV (one line per cell, everything), Markdown and LaTeX (the paper's form)."""

import csv
import io
import math
from collections.abc import Sequence

from uhm.presets import Result
from uhm.report.collect import Method
from uhm.report.tables import MARKS, Cell, Row, Table, number

# As the paper prints them.
NAMES = {
    "iql": "IQL",
    "rebrac": "ReBRAC",
    "fql": "FQL",
    "mopo": "MOPO",
    "mobile": "MOBILE",
    "mac": "MAC",
    "rebrac-dagger": "ReBRAC†",
    "mbtd": "MBTD(λ)",
    "dtd": "DTD(λ)",
    "ghm": "GHM",
    "uhm": "UHM",
}
NOT_RUN = "not run"
COLUMNS = (
    *("suite", "level", "name", "method", "agent", "setting", "status", "mean", "std", "ci95_low", "ci95_high"),
    *("iqm", "iqm_ci95_low", "iqm_ci95_high", "seeds", "steps", "paper_mean", "paper_std", "difference", "marks"),
)
CAPTION = (
    "Success in %, mean of the last three evaluations, mean ± standard deviation over seeds. "
    "Bold: best of the row; underlined: at least 95 % of it."
)


def name(method: Method) -> str:
    """The method as the paper writes it, with its setting."""
    plain = NAMES.get(method.agent, method.agent)
    return f"{plain} ({method.settings})" if method.setting else plain


def heading(table: Table) -> str:
    """A title that tells the tables of a suite apart."""
    return f"{table.suite}, {'other settings ' if table.kind == 'settings' else ''}per {table.level}"


def stem(table: Table) -> str:
    """The name of the table's files."""
    return f"{table.suite}-{'settings-' if table.kind == 'settings' else ''}{table.level}"


def to_csv(tables: Sequence[Table]) -> str:
    """All cells of all tables, not rounded to what can be seen."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(COLUMNS)
    lines = [
        (table.suite, "average" if row is table.average else table.level, row.name, *_values(cell))
        for table in tables
        for row in table.everything
        for cell in row.cells
        if cell.mean is not None or table.kind == "paper"
    ]
    writer.writerows(dict.fromkeys(lines))  # the paper's setting is in two kinds of table
    return text.getvalue()


def _values(cell: Cell) -> list[str]:
    def plain(value: float | None) -> str:
        return "" if value is None or math.isnan(value) else f"{value:.4f}"

    numbers = [cell.mean, cell.std, *(cell.interval or (None, None)), cell.iqm, *(cell.iqm_interval or (None, None))]
    paper = (cell.paper.mean, cell.paper.std) if cell.paper else (None, None)
    run = cell.mean is not None
    return [
        *(cell.method.label, cell.method.agent, cell.method.settings, "run" if run else NOT_RUN),
        *map(plain, numbers),
        *((str(cell.seeds), str(cell.steps)) if run else ("", "")),
        *map(plain, (*paper, cell.difference)),
        cell.marks,
    ]


def to_markdown(table: Table) -> str:
    """One table in the paper's form, a second line in each cell for the paper's value, and one with the intervals."""
    head = [f"{table.level}", *(name(method) for method in table.methods)]
    lines = [f"## {heading(table)}", "", CAPTION, "", _bar(head), _bar(["---", *["---:"] * len(head[1:])])]
    lines += [_bar([row.name, *(_markdown(cell) for cell in row.cells)]) for row in table.everything]
    lines += ["", *(f"{mark}: {MARKS[mark]}.  " for mark in table.marks)]
    head = [table.level, "method", "mean", "95 % interval", "IQM", "95 % interval of the IQM", "seeds", "steps"]
    lines += ["", _bar(head), _bar(["---", "---", *["---:"] * (len(head) - 2)])]
    for row in table.everything:
        for cell in row.cells:
            if cell.mean is not None:
                lines.append(_bar([row.name, name(cell.method), *details(cell)]))
    return "\n".join(lines) + "\n"


def details(cell: Cell) -> list[str]:
    """Mean, its interval, IQM, its interval, seeds and steps of a cell that was run."""
    intervals = [f"[{number(i[0])}, {number(i[1])}]" if i else "–" for i in (cell.interval, cell.iqm_interval)]
    return [number(cell.mean), intervals[0], number(cell.iqm), intervals[1], str(cell.seeds), f"{cell.steps:,}"]


def spread(result: Result) -> str:
    """A result of the paper, in its own whole numbers; an average that we made of them has a decimal and no spread."""
    whole = float(result.mean).is_integer()
    mean = f"{result.mean:.0f}" if whole else number(result.mean)
    return mean if math.isnan(result.std) else f"{mean} ± {result.std:.0f}"


def _markdown(cell: Cell) -> str:
    paper = f"paper {spread(cell.paper)}" if cell.paper else ""
    if cell.mean is None:
        return "<br>".join(filter(None, (NOT_RUN, paper)))
    mean = number(cell.mean)
    mean = f"**{mean}**" if cell.rank == "best" else f"<u>{mean}</u>" if cell.rank == "near" else mean
    marks = f"<sup>{cell.marks}</sup>" if cell.marks else ""
    ours = f"{mean}{'' if cell.std is None else f' ± {number(cell.std)}'}{marks}"
    return f"{ours}<br>{paper}, {number(cell.difference, sign=True)}" if paper else ours


def _bar(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


_COLOURS = {"above": "teal", "below": "red", "same": "gray", "": "gray"}


def to_latex(table: Table) -> str:
    """A table environment for booktabs, xcolor and graphicx; below each row of ours the paper's and the difference."""
    head = " & ".join(["", *(_latex_name(method) for method in table.methods)])
    body = []
    for row in table.rows:
        body += _latex_rows(row)
    if table.average:
        body += [r"\midrule", *_latex_rows(table.average)]
    notes = " ".join(f"\\textsuperscript{{{mark}}}{MARKS[mark]}." for mark in table.marks)
    caption = f"{heading(table)}. {CAPTION} {notes}".strip()
    return "\n".join(
        [
            "% needs \\usepackage{booktabs,xcolor,graphicx}",
            r"\begin{table*}[t]",
            f"\\caption{{{_escape(caption)}}}",
            r"\centering\small",
            r"\resizebox{\textwidth}{!}{%",
            f"\\begin{{tabular}}{{l{'c' * len(table.methods)}}}",
            r"\toprule",
            f"{head} \\\\",
            r"\midrule",
            *body,
            r"\bottomrule",
            r"\end{tabular}}",
            r"\end{table*}",
            "",
        ]
    )


def _latex_rows(row: Row) -> list[str]:
    lines = [f"{_escape(row.name)} & {' & '.join(_latex(cell) for cell in row.cells)} \\\\"]
    if any(cell.paper for cell in row.cells):
        papers = [_latex_paper(cell) for cell in row.cells]
        lines.append(f"\\quad\\textcolor{{gray}}{{paper}} & {' & '.join(papers)} \\\\")
    return lines


def _latex(cell: Cell) -> str:
    if cell.mean is None:
        return f"\\textcolor{{gray}}{{{NOT_RUN}}}"
    mean = number(cell.mean)
    mean = {"best": f"\\textbf{{{mean}}}", "near": f"\\underline{{{mean}}}", "": mean}[cell.rank]
    marks = f"\\textsuperscript{{{cell.marks}}}" if cell.marks else ""
    std = "" if cell.std is None else f" $\\pm$ {number(cell.std)}"
    return f"{mean}{std}{marks}"


def _latex_paper(cell: Cell) -> str:
    if cell.paper is None:
        return ""
    text = f"\\textcolor{{gray}}{{{_escape(spread(cell.paper))}}}"
    if cell.difference is None:
        return text
    return f"{text} \\textcolor{{{_COLOURS[cell.verdict]}}}{{{_escape(number(cell.difference, sign=True))}}}"


def _latex_name(method: Method) -> str:
    return _escape(name(method)).replace("†", r"$^\dagger$").replace("λ", r"$\lambda$")


def _escape(text: str) -> str:
    for plain, escaped in (("%", r"\%"), ("_", r"\_"), ("±", r"$\pm$"), ("−", "$-$"), ("–", "--"), ("&", r"\&")):
        text = text.replace(plain, escaped)
    return text
