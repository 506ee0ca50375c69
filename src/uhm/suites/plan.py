"""The populations that a suite, some agents and an ablation stand for, each with its run directory."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from uhm import presets, tasks
from uhm.errors import UhmError
from uhm.suites.ablations import AGENT, SEEDS, Ablation, ablation
from uhm.tasks import Environment, Task
from uhm.train.plan import Plan, resolve

OUT = Path("runs/suite")
# What the paper reports on every suite of its own; on others nothing says more.
_ALWAYS = presets.paper_agents("noisy")
# Settings of a run that neither its results nor what it means depend on.
_FREE = ("data_dir", "placement", "checkpoint_interval", "keep_checkpoints")


@dataclasses.dataclass(frozen=True)
class Population:
    """One environment x one agent x all tasks x all seeds x the values of an ablation, in one run directory."""

    plan: Plan
    directory: Path

    @property
    def name(self) -> str:
        return self.directory.name

    @property
    def environment(self) -> Environment:
        return self.plan.environment

    @property
    def agent(self) -> str:
        return self.plan.agent

    @property
    def steps(self) -> int:
        return self.plan.steps

    @property
    def members(self) -> int:
        return len(self.plan.members())


def populations(
    names: Sequence[str] = (),
    agents: Sequence[str] = (),
    *,
    ablated: str | None = None,
    out: Path = OUT,
    seeds: int | Sequence[int] | None = None,
    steps: int | None = None,
    **settings: Any,
) -> list[Population]:
    """All of them, environment by environment. `names` are suites, environments or tasks; without `agents` those that
    the paper reports. `ablated` is the name of an ablation, which knows its environments. `settings` are those of
    `uhm.train.resolve` and hold for every population."""
    what = None if ablated is None else ablation(ablated)
    if not names and what is None:
        raise UhmError(f"name a suite ({', '.join(tasks.SUITES)}), some environments, or an --ablation.")
    wanted: dict[Environment, dict[Task, None]] = {}
    for name in names or (what.environments if what else ()):
        for task in tasks.resolve(name):
            wanted.setdefault(task.environment, {})[task] = None
    found = []
    for environment, chosen in wanted.items():
        for agent in dict.fromkeys(agents) or default_agents(environment, what):
            found.append(_population(environment, tuple(chosen), agent, what, out, seeds, steps, settings))
    return found


def default_agents(environment: Environment, what: Ablation | None = None) -> tuple[str, ...]:
    if what is not None:
        return (AGENT,)
    return presets.paper_agents(environment.suite) or _ALWAYS


def _population(
    environment: Environment,
    chosen: tuple[Task, ...],
    agent: str,
    what: Ablation | None,
    out: Path,
    seeds: int | Sequence[int] | None,
    steps: int | None,
    settings: dict[str, Any],
) -> Population:
    if seeds is None:
        seeds = SEEDS if what else environment.seeds
    steps = steps or environment.steps
    axes = {what.hyper: list(what.values)} if what else {}
    plan = resolve(agent, chosen, seeds=seeds, steps=steps, **{**settings, **axes})
    some = [] if len(chosen) == len(environment.tasks) else [f"task{task.index}" for task in chosen]
    # A user's own `module:iql` is not ours, and a colon does not belong into a path.
    name = "-".join([agent.replace(":", "-"), environment.name, *some, *([what.name] if what else [])])
    return Population(plan, out / name)


def differences(plan: Plan, config: dict[str, Any]) -> str:
    """What a run's config.json and `plan` do not have in common, in a few words; empty if they are the same run."""
    kind = plan.family
    mine, theirs = plan.to_json(), dict(config)
    for part, group in (("config", kind.Config), ("hyper", kind.Hyper)):
        # What an older version did not write down had, and in a resumed run has, its default.
        defaults = {field.name: field.default for field in dataclasses.fields(group)}
        theirs[part] = {**defaults, **theirs.get(part, {})}
        mine[part] = {**defaults, **mine[part]}
    if theirs.get("agent") == plan.agent and "steps" in theirs["hyper"]:
        theirs["hyper"] = {**theirs["hyper"], "steps": theirs.get("steps")}  # said once is enough
        mine["hyper"] = {**mine["hyper"], "steps": mine["steps"]}
    before, now = _flat(theirs), _flat(mine)
    names = [name for name in {**before, **now} if name not in _FREE and before.get(name) != now.get(name)]
    names = list(dict.fromkeys("steps" if name == "hyper.steps" else name for name in names))
    said = [f"{name.split('.')[-1]} {_short(before.get(name))}, not {_short(now.get(name))}" for name in names]
    return "; ".join(said[:3]) + (f"; and {len(said) - 3} more" if len(said) > 3 else "")


def _flat(config: dict[str, Any]) -> dict[str, Any]:
    """`{"hyper": {"beta": 1}}` as `{"hyper.beta": 1}`, with lists for tuples."""
    flat: dict[str, Any] = {}
    for name, value in config.items():
        inner = value.items() if isinstance(value, dict) else [(None, value)]
        for key, one in inner:
            flat[name if key is None else f"{name}.{key}"] = list(one) if isinstance(one, tuple) else one
    return flat


def _short(value: Any) -> str:
    text = ",".join(map(str, value)) if isinstance(value, list) else str(value)
    return text if len(text) <= 40 else f"{text[:37]}..."
