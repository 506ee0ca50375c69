"""`uhm eval RUN --env ID` for runs on logs: their policies in a simulator of the user's own."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from uhm import tasks

if TYPE_CHECKING:
    from uhm.evaluate import Episode
    from uhm.train import Restored

_ABOUT = ("member", "task", "seed", "step")  # of an episode, which its member says once


def evaluate(restored: "Restored", run: Path, env: str, episodes: int, seed: int | None, as_json: bool) -> int:
    """Evaluate all members and print what they got."""
    from rich.console import Console

    from uhm.runs.files import plain
    from uhm.train import progress

    with Console(stderr=True).status(f"{episodes} episodes of each member in {env} ..."):
        members = _members(restored, env, episodes, seed)
    plan, step = restored.plan, int(restored.state.step)
    report = {"run": str(run), "agent": plan.agent, "environment": plan.environment.title}
    report |= {"simulator": env, "step": step, "episodes": episodes, "members": members}
    if as_json:
        print(json.dumps(plain(report), indent=2))  # a member that diverged may expect what is no number
        return 0
    what = f"{plan.agent} on {plan.environment.title}: {episodes} episodes in {env} at step {step:,}"
    if any("value" in member for member in members):
        what += "; discounted return expected at their start, and obtained"
    progress.show(progress.returns(what, plan.members(), members, [not member["diverged"] for member in members]))
    return 0


def _members(restored: "Restored", env: str, count: int, seed: int | None) -> list[dict[str, Any]]:
    import numpy as np

    from uhm.cli.eval import evaluated
    from uhm.envs.own import Simulator, normalised

    plan, spec, found = restored.plan, restored.spec, []
    simulator = Simulator(env, spec.observation_size, spec.action_size)
    simulator.check()
    records = evaluated(restored, count, seed, simulator)[1]
    data = env.removeprefix(tasks.MINARI) if env.startswith(tasks.MINARI) else None
    for index, member in enumerate(plan.members()):
        own = [_said(record) for record in records if record.member == index]
        if data is not None and (scores := normalised(data, [one["return"] for one in own])):
            own = [{**one, "normalised": score} for one, score in zip(own, scores, strict=True)]
        known = [name for name in own[0] if name != "episode" and all(name in one for one in own)]
        means = {name: float(np.mean([one[name] for one in own])) for name in known}
        about = {"seed": member.seed, "hyper": plan.hyper_of(member), "diverged": not bool(restored.state.alive[index])}
        found.append({**about, **means, "episodes": own})
    return found


def _said(record: "Episode") -> dict[str, Any]:
    return {name: value for name, value in record.to_json().items() if name not in _ABOUT}
