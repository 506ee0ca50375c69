"""The picture of calibration: error against horizon."""

from typing import Any

import matplotlib as mpl
from matplotlib.figure import Figure

from uhm.imagine import style


def calibration_figure(facts: dict[str, Any]) -> Figure:
    """What `uhm.imagine.calibrate.calibration` found, as a curve."""
    with mpl.rc_context(style.STYLE):
        figure = Figure(figsize=(5.4, 3.5), layout="constrained")
        axes = figure.subplots()
        n = facts["n"]
        axes.axhline(0, color=style.EDGE, lw=0.8)
        axes.plot(n, facts["truth"], "o--", color=style.SOFT, ms=3.5, lw=1.2, label="truth against truth")
        axes.plot(n, facts[facts["agent"]], "o-", color="#7201a8", ms=4.5, lw=1.8, label=facts["agent"])
        if not facts["marginal"] and facts["agent"] == "uhm" and max(n) > facts["k_max"]:
            axes.axvspan(facts["k_max"] + 0.5, max(n) + 0.5, color="#f1f2f4", lw=0, zorder=0)
            at, where = (facts["k_max"] + 0.5, 1), ("data", "axes fraction")
            axes.annotate(" never learned", at, xycoords=where, va="top", fontsize=8, color=style.SOFT)
        axes.set(xlabel="n, steps ahead" if not facts["marginal"] else "mean n of the geometric distribution")
        axes.set_ylabel(f"energy distance, {facts['unit']}")
        if not facts["marginal"] and len(n) <= 16:
            axes.set_xticks(n)
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(axis="y", color="#eceef1", lw=0.8)
        axes.set_axisbelow(True)
        axes.legend(frameon=False, loc="upper left")
        title = f"{facts['agent']} on {facts['task']}: error against horizon"
        figure.suptitle(title, x=0.02, ha="left", fontsize=11, fontweight="bold")
    return figure
