"""Does fitted Q evaluation know which policy is best? Members of different quality, judged by the data and tried out.

    python benchmarks/judge.py runs/judged --json results/judge/rooms.json

A population on `rooms`, whose alphas are wide apart, is trained and every member is evaluated; then all are judged by
the data alone, at the start states of the very episodes of the evaluation:

    obtained   the discounted return, the mean over episodes; they are cut after 100 steps, where a policy that never
               arrives has -43.4 and would have -50 in the end
    expected   of the agent's own critic
    fitted     by fitted Q evaluation, with its spread over critics
    lower      fitted less one spread, by which `uhm eval` chooses
    apart      how far its actions are from those in the data, root mean square

For each task and for all members: Spearman's rank correlation with what was obtained, the mean absolute difference from
it, and the regret of choosing by each, that is by how much the best member obtained more than the chosen one. The
settings are those of `uhm eval`, with half of its steps. (With more of them, a fit goes on from where it was.)
"""

import argparse
import json
from pathlib import Path
from typing import Any

import jax
import numpy as np
from rich.console import Console
from rich.table import Table
from scipy import stats

from uhm import tasks
from uhm.evaluate import make_act, rooms
from uhm.runs.environment import session
from uhm.runs.files import plain
from uhm.runs.publish import unnamed
from uhm.train import load_run, train
from uhm.train.judge import judge
from uhm.train.loop import data_of
from uhm.train.restore import Restored

BY = ("expected", "fitted", "lower")
ALPHAS = (0.0, 0.003, 0.03, 0.3, 3.0, 30.0)


def tried(restored: Restored, episodes: int) -> tuple[list[dict[str, float]], np.ndarray]:
    """What every member obtained in episodes, how often it arrived, and where its episodes began."""
    plan, state, agent = restored.plan, restored.state, restored.agent
    members, step = plan.members(), int(state.step)
    policy = make_act(agent.act, state.state, jax.random.key(step), observation_size=restored.spec.observation_size)
    wanted, seeds = [tasks.task(member.task) for member in members], [member.seed for member in members]
    records, first = rooms.run(policy, wanted, seeds, plan.discounts(), step, episodes)
    found = []
    for index in range(len(members)):
        own = [record for record in records if record.member == index]
        numbers = {"obtained": [record.discounted for record in own], "success": [record.success for record in own]}
        found.append({name: float(np.mean(np.asarray(values, float))) for name, values in numbers.items()})
    return found, first


def correlation(members: list[dict[str, Any]], by: str) -> float:
    """Spearman's, with what was obtained."""
    found: Any = stats.spearmanr([member[by] for member in members], [member["obtained"] for member in members])
    return float(found.statistic)


def scores(members: list[dict[str, Any]], by: str) -> dict[str, float]:
    """How well the members of one task are told apart by it."""
    obtained = [member["obtained"] for member in members]
    error = float(np.mean(np.abs([member[by] - member["obtained"] for member in members])))
    regret = max(obtained) - obtained[int(np.argmax([member[by] for member in members]))]
    return {"correlation": correlation(members, by), "regret": regret, "error": error}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path, help="folder of the run; one that is there is judged as it is")
    parser.add_argument("--agent", default="rebrac-dagger")
    parser.add_argument("--tasks", nargs="+", default=["rooms-task1", "rooms-task3", "rooms-task5"])
    parser.add_argument("--alpha", type=float, nargs="+", default=list(ALPHAS))
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--steps", type=int, default=4000)
    parser.add_argument("--fit-steps", type=int, default=25_000)
    parser.add_argument("--episodes", type=int, default=50)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    if not (options.run / "summary.json").exists():
        settings = {"alpha": options.alpha, "seeds": options.seeds, "steps": options.steps}
        train(options.agent, options.tasks, run=options.run, show=True, eval_episodes=10, **settings)
    restored = load_run(options.run)
    obtained, starts = tried(restored, options.episodes)
    judged = judge(restored, data_of(restored.plan), options.run, steps=options.fit_steps, starts=starts, show=True)
    both = [{**one, **other} for one, other in zip(judged["members"], obtained, strict=True)]
    members = [member for member in both if not member["diverged"] and member["fitted"] is not None]
    members = [{**member, "lower": member["fitted"] - member["spread"]} for member in members]
    if len(members) < len(both):
        print(f"{len(both) - len(members)} members diverged and are left out.")

    shown = ("obtained", "expected", "fitted", "spread")
    table = Table("task", "alpha", "seed", "success", *shown, "apart", "moved", box=None)
    for member in members:
        numbers = [*(f"{member[name]:.1f}" for name in shown), f"{member['apart']:.2f}"]
        alpha = f"{member['hyper']['alpha']:g}"
        moved = f"{member['moved']:.1%}" if member["moved"] is not None else ""
        table.add_row(member["task"], alpha, str(member["seed"]), f"{member['success']:.0%}", *numbers, moved)
    told = Table("task", "by", "rank correlation", "regret", "mean error", box=None)
    by_task = {name: [member for member in members if member["task"] == name] for name in restored.plan.tasks}
    found = {name: {by: scores(own, by) for by in BY} for name, own in by_task.items()}
    every = {}
    for by in BY:
        means = {name: float(np.mean([one[by][name] for one in found.values()])) for name in ("regret", "error")}
        every[by] = {"correlation": correlation(members, by), **means}
    found["all"] = every
    for name, one in found.items():
        for by, score in one.items():
            told.add_row(name, by, *(f"{score[key]:.2f}" for key in ("correlation", "regret", "error")))
    console = Console(width=120)
    console.print(table)
    console.print(told)
    if options.json:
        about = {"session": unnamed(session()), "scores": found, "members": members}
        options.json.parent.mkdir(parents=True, exist_ok=True)
        options.json.write_text(json.dumps(plain({**judged, **about}), indent=1) + "\n")


if __name__ == "__main__":
    main()
