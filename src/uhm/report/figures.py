"""The charts as PNG and PDF files."""

import math
from pathlib import Path
from typing import Any

from uhm.report.charts import Chart, Panel
from uhm.runs.files import write_figure

STYLE: Any = {
    "font.size": 9,
    "font.family": "DejaVu Sans",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": "0.6",
    "axes.grid": True,
    "grid.alpha": 0.25,
    "xtick.color": "0.3",
    "ytick.color": "0.3",
    "pdf.fonttype": 42,  # text stays text
}


def draw(chart: Chart, folder: Path) -> list[Path]:
    """Save the chart as FOLDER/NAME.png and .pdf."""
    import matplotlib as mpl
    from matplotlib.figure import Figure

    bars = any(panel.bars for panel in chart.panels)
    columns = 1 if bars else min(3, len(chart.panels))
    rows = math.ceil(len(chart.panels) / columns)
    height = 0.9 + 0.36 * max(len(panel.bars) for panel in chart.panels) if bars else 2.5
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(6.4 if bars else 3.3 * max(columns, 1.6), height * rows + 0.9), layout="constrained")
        grid = figure.subplots(rows, columns, squeeze=False).ravel()
        for axes, panel in zip(grid, chart.panels, strict=False):
            (_bars if panel.bars else _curves)(axes, chart, panel)
        for axes in grid[len(chart.panels) :]:
            axes.set_visible(False)
        _legend(figure, chart)
        figure.suptitle(chart.title, fontsize=11, fontweight="bold", x=0.01, ha="left")
        paths = [folder / f"{chart.name}.{kind}" for kind in ("png", "pdf")]
        for path in paths:
            # Without dates in it, the same runs make the same file.
            date = {"CreationDate": None} if path.suffix == ".pdf" else {}
            write_figure(path, figure, dpi=160, metadata=date)
    return paths


def _curves(axes: Any, chart: Chart, panel: Panel) -> None:
    from matplotlib.ticker import EngFormatter, MaxNLocator

    for curve in panel.curves:
        style = "o--" if curve.dashed else "o-"
        axes.plot(curve.x, curve.y, style, ms=2.5, lw=1.5, color=curve.colour, label=curve.label)
        if curve.low is not None and curve.high is not None:
            axes.fill_between(curve.x, curve.low, curve.high, color=curve.colour, alpha=0.18, lw=0)
    axes.set(xlabel=chart.x, ylabel=chart.y)
    if chart.percent:
        axes.set(ylim=(-3, 103), yticks=range(0, 101, 25))
    axes.xaxis.set_major_locator(MaxNLocator(5, integer=True))
    axes.xaxis.set_major_formatter(EngFormatter(sep=""))
    axes.set_title(panel.title, fontsize=9, loc="left", color="0.25")


def _bars(axes: Any, chart: Chart, panel: Panel) -> None:
    bars = panel.bars[::-1]
    drawn = axes.barh([b.label for b in bars], [b.value for b in bars], color=[b.colour for b in bars], height=0.62)
    axes.bar_label(drawn, fmt="%.3g", padding=4, color="0.3")
    axes.set(xlabel=chart.x)
    axes.margins(x=0.12)
    axes.grid(axis="y", visible=False)
    axes.set_title(panel.title, fontsize=9, loc="left", color="0.25")


def _legend(figure: Any, chart: Chart) -> None:
    handles = {}
    for axes in figure.axes:
        handles |= dict(zip(*reversed(axes.get_legend_handles_labels()), strict=True))
    if handles and not any(panel.bars for panel in chart.panels):
        columns = min(len(handles), 2 if len(chart.panels) == 1 else 5)
        figure.legend(
            handles.values(), handles.keys(), loc="outside lower left", ncols=columns, frameon=False, fontsize=8
        )
