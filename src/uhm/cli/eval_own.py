"""What `uhm eval` says of runs on logs in a simulator of the user's own."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from uhm.evaluate import Episode
    from uhm.train import Restored

_ABOUT = ("member", "task", "seed", "step")  # of an episode, which its member says once


def report(restored: "Restored", run: Path, env: str, episodes: "list[Episode]") -> dict[str, Any]:
    """Every member with the means of its episodes, and these."""
    import numpy as np

    from uhm.envs.own import normalised_returns

    plan, members = restored.plan, []
    for index, member in enumerate(plan.members()):
        own = [_said(record) for record in episodes if record.member == index]
        if scores := normalised_returns(env, [one["return"] for one in own]):
            own = [{**one, "normalised": score} for one, score in zip(own, scores, strict=True)]
        known = [name for name in own[0] if name != "episode" and all(name in one for one in own)]
        means = {name: float(np.mean([one[name] for one in own])) for name in known}
        about = {"seed": member.seed, "hyper": plan.hyper_of(member), "diverged": not bool(restored.state.alive[index])}
        members.append({**about, **means, "episodes": own})
    return {
        "run": str(run),
        "agent": plan.agent,
        "environment": plan.environment.title,
        "simulator": env,
        "step": int(restored.state.step),
        "episodes": len(members[0]["episodes"]),
        "members": members,
    }


def show(restored: "Restored", report: dict[str, Any]) -> None:
    """Print it as a table."""
    from uhm.train import progress

    members, where = report["members"], f"{report['simulator']} at step {report['step']:,}"
    what = f"{report['agent']} on {report['environment']}: {report['episodes']} episodes in {where}"
    if any("value" in member for member in members):
        what += "; discounted return expected at their start, and obtained"
    alive = [not member["diverged"] for member in members]
    progress.show(progress.returns(what, restored.plan.members(), members, alive))


def _said(record: "Episode") -> dict[str, Any]:
    return {name: value for name, value in record.to_json().items() if name not in _ABOUT}
