"""Run directories with numbers that the tests choose, as `uhm train` would leave them."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from uhm.population import Member
from uhm.train import Plan, resolve

# (task's index, seed, evaluation's place from 0, value of the member's axes) -> success in [0, 1]
Success = Callable[[int, int, int, dict[str, Any]], float]
# (task's index, seed, evaluation's place from 0) -> what was expected, and what was obtained
Values = Callable[[int, int, int], tuple[float | None, float]]
SESSION = {
    "started": "2026-01-02T03:04:05+00:00",
    "command": ["/somewhere/bin/uhm", "train", "--note", "<b>&"],
    "versions": {"python": "3.11.7", "uhm": "0.1.0", "jax": "0.10.2", "mujoco": None},
    "source": {"revision": "0123456789abcdef0123", "dirty": True},
    "hardware": {"cpu": "A Processor", "cpus": 2, "devices": [{"platform": "cpu", "kind": "cpu"}]},
    "variables": {},
}


def fake_run(
    folder: Path,
    agent: str,
    what: str | Sequence[str],
    success: Success,
    *,
    evaluations: int = 10,
    finished: bool = True,
    diverged: Sequence[int] = (),
    milliseconds: float | None = None,
    session: bool = False,
    values: Values | None = None,
    **settings: Any,
) -> Path:
    """A run of `agent`; `evaluations` of the ten that the plan asks for were made."""
    plan = resolve(agent, what, **settings)
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(plan.to_json()))
    interval = plan.steps // 10
    curves = [
        [success(int(m.task[-1]), m.seed, place, dict(m.hyper)) for place in range(evaluations)] for m in plan.members()
    ]
    if finished:
        (folder / "summary.json").write_text(json.dumps(_summary(plan, curves, interval, diverged, values)))
    else:
        _episodes(folder, plan, curves, interval, values)
    if milliseconds is not None:
        # The first line has a minute of compiling in it.
        lines = [{"step": s, "seconds": 60 + s * milliseconds / 1000, "loss": [0.5]} for s in range(100, 1100, 100)]
        (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    if session:
        (folder / "environment.json").write_text(json.dumps({"format": 1, "sessions": [SESSION]}))
    return folder


def fake_log_run(
    folder: Path,
    agent: str,
    what: str,
    values: Callable[[Member, int], dict[str, float | None]],
    *,
    lines: int = 10,
    finished: bool = True,
    diverged: Sequence[int] = (),
    **settings: Any,
) -> Path:
    """A run on logs: what a member logged at a step, and no evaluation. `lines` of the ten that were planned."""
    plan = resolve(agent, what, **settings)
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(plan.to_json()))
    (folder / "environment.json").write_text(json.dumps({"format": 1, "sessions": [SESSION]}))
    with (folder / "metrics.jsonl").open("w") as file:
        for step in [plan.steps // 10 * place for place in range(1, lines + 1)]:
            found = [values(member, step) for member in plan.members()]
            columns = {name: [one[name] for one in found] for name in found[0]}
            file.write(json.dumps({"step": step, "seconds": step / 100, **columns}) + "\n")
    if finished:
        summary = _summary(plan, [[] for _ in plan.members()], 1, diverged, None)
        (folder / "summary.json").write_text(json.dumps(summary))
    return folder


def _known(values: Values | None, member: Member, place: int) -> dict[str, float | None]:
    if values is None:
        return {}
    return dict(zip(("value", "discounted"), values(int(member.task[-1]), member.seed, place), strict=True))


def _summary(
    plan: Plan, curves: list[list[float]], interval: int, diverged: Sequence[int], values: Values | None
) -> dict[str, Any]:
    members = [
        {
            "agent": plan.agent,
            "task": member.task,
            "seed": member.seed,
            "hyper": {**plan.hyper, **dict(member.hyper)},
            "evaluations": [
                {"step": (i + 1) * interval, "success": value, **_known(values, member, i)}
                for i, value in enumerate(curve)
            ],
            "diverged": index in diverged,
        }
        for index, (member, curve) in enumerate(zip(plan.members(), curves, strict=True))
    ]
    return {"steps": plan.steps, "wall_time": 120.0, "device": "cpu", "versions": {}, "members": members}


def _episodes(folder: Path, plan: Plan, curves: list[list[float]], interval: int, values: Values | None) -> None:
    """Successes first, then failures, in the planned number of episodes."""
    with (folder / "episodes.jsonl").open("w") as file:
        for index, (member, curve) in enumerate(zip(plan.members(), curves, strict=True)):
            for place, value in enumerate(curve):
                for episode in range(plan.eval_episodes):
                    line = {"member": index, "task": member.task, "seed": member.seed, "step": (place + 1) * interval}
                    done = float(episode < round(value * plan.eval_episodes))
                    result = {"episode": episode, "success": done, "return": -1.0, "length": 1}
                    file.write(json.dumps({**line, **result, **_known(values, member, place)}) + "\n")
