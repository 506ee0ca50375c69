"""How far imagined futures are from true ones, as `uhm imagine` measured it in the runs."""

import warnings
from collections.abc import Sequence
from typing import Any

from uhm.errors import UhmError
from uhm.report.charts import COLOURS, SPARE, Chart, Curve, Hint, Panel, nonempty
from uhm.report.collect import Method, Run
from uhm.report.writers import name
from uhm.runs.files import read_json


def calibration(runs: Sequence[Run]) -> Chart | Hint:
    """The model's error against the horizon, from what `uhm imagine` left in the runs; a panel per task."""
    found = [(run, record) for run in runs for record in _records(run)]
    panels: dict[str, list[Curve]] = {}
    for run, record in found:
        curves = panels.setdefault(str(record.get("task", run.environment.name)), [])
        for key, values in record.items():
            points = _points(record["n"], values)
            label = "truth against truth" if key == "truth" else name(Method(key))
            taken = {curve.label for curve in curves}
            if key == "n" or not points or (key == "truth" and label in taken):
                continue  # one line for chance is enough
            colour = "#8a94a3" if key == "truth" else COLOURS.get(key, SPARE[len(curves) % len(SPARE)])
            curves.append(Curve(f"{label} ({run.name})" if label in taken else label, colour, *points))
    drawn = nonempty(Panel(task, curves) for task, curves in panels.items())
    if not drawn:
        return Hint("Calibration of the model", "no run holds imagined futures", "uhm imagine RUN")
    unit = " or ".join(dict.fromkeys(str(record["unit"]) for _, record in found if "unit" in record))
    how = " ".join(dict.fromkeys(str(record["how"]) for _, record in found if "how" in record))
    caption = how or "Energy distance between the model's samples of the state n steps ahead and the true ones."
    return Chart(
        *("calibration", "Calibration of the model", f"{caption} Lower is better.", "horizon n"),
        *(f"energy distance{', ' if unit else ''}{unit}", drawn),
        percent=False,
        group="model",
    )


def _records(run: Run) -> list[dict[str, Any]]:
    """The calibrations in a run. Half a file of a command that was stopped is no reason to have no report."""
    found = []
    for path in (run.directory / "imagine" / "calibration.json", run.directory / "calibration.json"):
        try:
            found += [read_json(path)] if path.exists() else []
        except UhmError as error:
            warnings.warn(str(error), stacklevel=2)
    return [record for record in found if isinstance(record.get("n"), list)]


def _points(n: list[Any], values: Any) -> tuple[list[float], list[float]] | None:
    """A list of numbers as long as n, without those that were not finite; None if it is anything else."""
    if not isinstance(values, list) or len(values) != len(n):
        return None
    if not all(value is None or isinstance(value, int | float) for value in values):
        return None
    kept = [(float(x), round(float(y), 5)) for x, y in zip(n, values, strict=True) if y is not None]
    return ([x for x, _ in kept], [y for _, y in kept]) if kept else None
