"""Draws the pictures of the documentation that need no run.

python docs/figures.py
"""

from pathlib import Path

import matplotlib as mpl
import numpy as np
from matplotlib.figure import Figure

from uhm.horizons import NStep, TDLambda, WinsorizedGeometric

HERE = Path(__file__).parent / "images"
NU, XI, P = "#c44e52", "#4c72b0", "#7f7f7f"


def horizons(path: Path) -> None:
    """nu, xi and p_H of three measures that look about as far ahead."""
    k = np.arange(1, 17)
    measures = {
        "n-step TD, n = 8": NStep(8, 0.99),
        "TD(λ), λ = 0.8": TDLambda(0.8, 0.99),
        "winsorized geometric, λ = 0.8, cap 8": WinsorizedGeometric(0.8, 0.99, 8),
    }
    style = {"font.size": 9, "axes.spines.top": False, "axes.spines.right": False, "svg.fonttype": "none"}
    with mpl.rc_context(style):
        figure = Figure(figsize=(9.6, 2.9), layout="constrained")
        for axes, (name, measure) in zip(figure.subplots(1, 3, sharey=True), measures.items(), strict=True):
            axes.bar(k - 0.2, np.asarray(measure.nu(k)), 0.4, color=NU, label="ν: weight of Q")
            axes.bar(k + 0.2, np.asarray(measure.xi(k)), 0.4, color=XI, label="ξ: weight of R")
            axes.plot(k, np.asarray(measure.pmf(k)), "o-", color=P, ms=3, lw=1, label="p: how often sampled")
            axes.set_title(name, loc="left", fontsize=10)
            axes.set(xlabel="steps ahead, k", xticks=[1, 4, 8, 12, 16], ylim=(0, 1.02))
            axes.grid(axis="y", alpha=0.25)
        figure.axes[0].set_ylabel("weight")
        figure.axes[2].legend(frameon=False, loc="upper right")
        figure.savefig(path, dpi=130)


if __name__ == "__main__":
    horizons(HERE / "horizons.png")
