"""`uhm eval RUN` for runs on logs without a simulator: what their policies are worth by stored transitions."""

import json
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

from uhm import tasks
from uhm.errors import UhmError

if TYPE_CHECKING:
    from uhm.train import Restored

_NUMBERS = ("expected", "fitted", "spread", "apart")
_MOVED = 0.05  # of an estimate's size, over the last fifth of the steps, from which on it has not settled


def evaluate(
    restored: "Restored",
    run: Path,
    checkpoint: str,
    logs: str | None,
    steps: int | None,
    discount: float | None,
    as_json: bool,
) -> int:
    """Judge all members, and print what they are worth and which of them to use; `checkpoint` is what --step said."""
    from uhm.data import load
    from uhm.train.judge import STEPS, best, judge
    from uhm.train.loop import data_of

    plan, steps = restored.plan, STEPS if steps is None else steps
    if logs is not None and not tasks.is_own(logs):
        raise UhmError(f"--logs is '{logs}', and must be FILE.npz or minari:NAME.")
    if discount is None and "discount" not in plan.hyper:
        raise UhmError(f"{plan.agent} has no discount of its own: give --discount.")
    data = data_of(plan) if logs is None else load(logs, placement="host" if plan.placement == "host" else "device")
    report = judge(restored, data, run, steps=steps, discount=discount, show=True)
    chosen = best(report["members"])
    judged_by = plan.environment.name if logs is None else tasks.task(logs).name
    report = {"run": str(run), "logs": judged_by, **report, "best": chosen}
    if as_json:
        print(json.dumps(report, indent=2))
    else:
        _show(restored, report, checkpoint)
    unsettled = [place for place, member in enumerate(report["members"]) if (member["moved"] or 0) > _MOVED]
    if unsettled:
        numbers = f"member{'s' if len(unsettled) > 1 else ''} {', '.join(map(str, unsettled))}"
        words = f"the estimates of {numbers} still moved by more than {_MOVED:.0%} over the last fifth of the steps"
        more = f"give --fit-steps more than {report['fit_steps']}, and doubt what never settles"
        warnings.warn(f"{words}: {more}.", stacklevel=2)
    return 0


def _show(restored: "Restored", report: dict[str, Any], checkpoint: str) -> None:
    from rich.table import Table

    from uhm.train import names, progress

    axes, members = restored.plan.axes, report["members"]
    known = [name for name in _NUMBERS if name in members[0]]
    table = Table(box=None)
    for column in ("member", "seed", *axes, *known, ""):
        table.add_column(column, justify="right")
    for place, member in enumerate(members):
        settings = [names.value(member["hyper"][axis]) for axis in axes]
        numbers = ["" if member[name] is None else f"{member[name]:.5g}" for name in known]
        mark = "diverged" if member["diverged"] else "fit diverged" if member["fitted"] is None else ""
        mark = "best" if place == report["best"] and len(members) > 1 else mark
        table.add_row(str(place), str(member["seed"]), *settings, *numbers, mark)
    title = tasks.title(report["logs"])
    print(
        f"{report['agent']} at step {report['step']:,}, judged by {title}: discounted return from the first rows of "
        f"trajectories, by fitted Q evaluation ({report['fit_steps']:,} steps)"
    )
    progress.show(table)
    for stored in report["stored"]:
        print(_behaviour(stored))
    print(_advice(report, "" if checkpoint == "last" else str(report["step"])))


def _behaviour(stored: dict[str, Any]) -> str:
    """What there is to compare with: the return of the logs themselves."""
    error, count, cut = stored["standard_error"], stored["trajectories"], stored["cut"]
    text = f"the logs' own: {stored['mean']:.5g}" + ("" if error is None else f" ± {error:.2g}")
    text += f" over {count:,} trajectories (discount {stored['discount']:g})"
    if cut:
        which = "all of them" if cut == count else f"{cut:,} of them"
        text += f"; {which} are cut before the task ends, and what would have followed is not in the sum"
    return f"{text}."


def _advice(report: dict[str, Any], step: str) -> str:
    """Which member to use, and how; `step` is that of the checkpoint if it is not the last one."""
    members, best, run = report["members"], report["best"], report["run"]
    if len({member["discount"] for member in members}) > 1:
        return "members discount differently, so their values cannot be compared: give --discount for all."
    if best is None:
        return "no member is left to choose: all diverged."
    loaded, flag = (f"{run!r}, {step}", f" --step {step}") if step else (repr(run), "")
    use = f"uhm.train.load_run({loaded}).policy({best}), or uhm export {run} --member {best}{flag}"
    if len(members) == 1:
        return f"to use it: {use}"
    return f"highest less its spread: member {best}. To use it: {use}"
