"""`uhm eval RUN --env ID` for runs on logs: their policies in a simulator of the user's own."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from uhm import tasks

if TYPE_CHECKING:
    from uhm.train import Restored

_NUMBERS = ("return", "normalised", "length", "success", "value", "discounted")


def evaluate(restored: "Restored", run: Path, env: str | None, episodes: int, seed: int | None, as_json: bool) -> int:
    """Evaluate all members and print what they got; `env` may be left out for logs called `minari:NAME`."""
    from rich.console import Console

    from uhm.runs.files import plain

    env = env or restored.plan.environment.name  # Minari knows where it was recorded
    with Console(stderr=True).status(f"{episodes} episodes of each member in {env} ..."):
        members = _members(restored, env, episodes, seed)
    report = {"run": str(run), "agent": restored.plan.agent, "environment": restored.plan.environment.title}
    report |= {"simulator": env, "step": int(restored.state.step), "episodes": episodes, "members": members}
    if as_json:
        print(json.dumps(plain(report), indent=2))  # a member that diverged may expect what is no number
    else:
        _show(restored, report)
    return 0


def _members(restored: "Restored", env: str, count: int, seed: int | None) -> list[dict[str, Any]]:
    import numpy as np

    from uhm.evaluate import own

    plan, state = restored.plan, restored.state
    make, sizes = own.simulator(env), (restored.spec.observation_size, restored.spec.action_size)
    found = []
    for index, (member, discount) in enumerate(zip(plan.members(), plan.discounts(), strict=True)):
        records = own.episodes(
            make,
            restored.policy(index),
            restored.value(index) if restored.agent.value else None,
            count,
            seed=member.seed if seed is None else seed,
            step=int(state.step),
            discount=discount,
            sizes=sizes,
        )
        if env.startswith(tasks.MINARI):
            scores = own.normalised(env.removeprefix(tasks.MINARI), [record["return"] for record in records])
            records = [{**r, "normalised": s} for r, s in zip(records, scores, strict=True)] if scores else records
        known = [name for name in _NUMBERS if all(name in record for record in records)]
        means = {name: float(np.mean([record[name] for record in records])) for name in known}
        about = {"seed": member.seed, "hyper": plan.hyper_of(member), "diverged": not bool(state.alive[index])}
        found.append({**about, **means, "episodes": records})
    return found


def _show(restored: "Restored", report: dict[str, Any]) -> None:
    from rich.table import Table

    from uhm.train import names, progress

    known = [name for name in _NUMBERS if all(name in member for member in report["members"])]
    table = Table(box=None)
    for column in ("seed", *restored.plan.axes, *known):
        table.add_column({"value": "expected", "discounted": "obtained"}.get(column, column), justify="right")
    for member in report["members"]:
        settings = [names.value(member["hyper"][axis]) for axis in restored.plan.axes]
        table.add_row(str(member["seed"]), *settings, *(f"{member[name]:.5g}" for name in known))
    what = f"{report['episodes']} episodes in {report['simulator']} at step {report['step']:,}"
    more = "; discounted return expected at their start, and obtained" if "value" in known else ""
    print(f"{report['agent']} on {report['environment']}: {what}{more}")
    progress.show(table)
