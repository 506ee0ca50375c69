"""A plan: everything a run is, resolved and checked before anything starts, as plain data.

Values come from the paper's presets for the agent and the environment, then from the caller. A hyperparameter with
several values becomes an axis of the population; a config value cannot, because it changes the compiled program.
"""

import dataclasses
import functools
import itertools
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, SupportsIndex

from uhm import horizons, presets, tasks
from uhm.agents import Family, family
from uhm.envs.own import Simulator
from uhm.errors import UhmError, unknown
from uhm.population import Member, grid
from uhm.tasks import Environment, Task

_DATA = ("data_dir", "dataset", "transitions", "placement")  # what `uhm.data.load` is told


@dataclasses.dataclass(frozen=True)
class Plan:
    """What `config.json` of a run holds."""

    agent: str
    tasks: tuple[str, ...]
    seeds: tuple[int, ...]
    steps: int
    config: dict[str, Any]
    hyper: dict[str, Any]
    axes: dict[str, list[Any]]  # hyperparameters with several values
    eval_interval: int
    eval_episodes: int
    log_interval: int
    checkpoint_interval: int
    placement: str = "device"
    data_dir: str | None = None
    dataset: str | None = None
    transitions: int | None = None
    normalise: bool = False  # observations
    keep_checkpoints: int = 2  # the last ones; the best evaluated one stays as well
    env: str | None = None  # the simulator in which what learns from logs is evaluated

    @property
    def environment(self) -> Environment:
        return tasks.task(self.tasks[0]).environment

    @property
    def family(self) -> Family:
        return family(self.agent)

    @property
    def evaluated(self) -> bool:
        return not self.environment.own or self.env is not None

    @property
    def measure(self) -> Literal["success", "return"]:
        """What agents are rated by: a simulator of the user's own need not know success."""
        return "return" if self.environment.own else "success"

    def simulator(self, observation_size: int, action_size: int) -> Simulator | None:
        """The user's own, for data of these sizes."""
        return None if self.env is None else Simulator(self.env, observation_size, action_size)

    def members(self) -> list[Member]:
        return grid(self.tasks, self.seeds, self.axes)

    def hyper_of(self, member: Member) -> dict[str, Any]:
        """All hyperparameters of a member."""
        return {**self.hyper, **dict(member.hyper)}

    def discounts(self) -> list[float]:
        """The members' discounts; 1 for an agent that has none."""
        return [float(self.hyper_of(member).get("discount", 1.0)) for member in self.members()]

    @property
    def data_options(self) -> dict[str, Any]:
        """What `uhm.data.load` is told about where the data are and where they go."""
        return {name: getattr(self, name) for name in _DATA}

    def k_max(self) -> int:
        """The longest horizon that any member reaches, which fixes the shapes of the program.

        1 for an agent that does not have all three hyperparameters it follows from, as one of your own may.
        """
        names = ("lambda_f", "discount", "q")
        if not set(names) <= set(self.hyper):
            return 1
        values = {name: self.axes.get(name, [self.hyper[name]]) for name in names}
        if "q" in self.family.idle:
            values["q"] = [self.family.Hyper.q]
        return max(_k_max(*map(float, one)) for one in itertools.product(*values.values()))

    def to_json(self) -> dict[str, Any]:
        return dataclasses.asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> "Plan":
        fields = dataclasses.fields(cls)
        # A field that came later and may be left out is as if it had been: older runs go on.
        missing = {f.name for f in fields if f.default is dataclasses.MISSING} - set(data)
        if wrong := missing | (set(data) - {field.name for field in fields}):
            raise UhmError(f"the run's config has other fields than this version's: {', '.join(sorted(wrong))}.")
        values = dict(data)
        values |= {name: tuple(values[name]) for name in ("tasks", "seeds")}
        values["config"] = {n: tuple(v) if isinstance(v, list) else v for n, v in values["config"].items()}
        return cls(**values)


@functools.cache  # a suite asks for hundreds of plans
def _k_max(lambda_f: float, discount: float, q: float) -> int:
    return int(horizons.k_max(lambda_f, discount, q))


def resolve(
    agent: str = "uhm",
    what: str | Task | Sequence[str | Task] = "rooms",
    *,
    seeds: SupportsIndex | Sequence[SupportsIndex] | None = None,
    steps: SupportsIndex | None = None,
    eval_interval: SupportsIndex | None = None,
    eval_episodes: SupportsIndex | None = None,
    log_interval: SupportsIndex | None = None,
    checkpoint_interval: SupportsIndex | None = None,
    keep_checkpoints: SupportsIndex | None = None,
    normalise: bool | None = None,
    env: str | None = None,
    **settings: Any,
) -> Plan:
    """A checked plan. `settings` are fields of the agent's Config and Hyper, `data_dir`, `placement` and the like."""
    kind = family(agent)
    wanted = _tasks(what)
    environment = wanted[0].environment
    if env is not None and not environment.own:
        raise UhmError(f"env is for runs on logs: {environment.name} is its own simulator.")
    if environment.own and env is None and (eval_interval is not None or eval_episodes is not None):
        raise UhmError(
            "there is no simulator to evaluate in: name one with env, or leave out eval_interval and eval_episodes."
        )
    length, chosen, episodes, kept = (_python(n) for n in (steps, seeds, eval_episodes, keep_checkpoints))
    length = environment.steps if length is None else length
    intervals = {"eval": eval_interval, "log": log_interval, "checkpoint": checkpoint_interval}
    intervals = {name: _python(value) for name, value in intervals.items()}
    counts = {"steps": length, **{f"{name}_interval": value for name, value in intervals.items()}}
    counts |= {"eval_episodes": episodes, "keep_checkpoints": kept}
    for name, value in {**counts, "transitions": settings.get("transitions")}.items():
        if value is not None:
            _at_least(name, value, 1)
    rest = {f: settings.pop(f) for f in _DATA if f in settings}
    if normalise is None:  # nobody scaled a user's own logs; the paper's tasks are learned as they are
        normalise = environment.own
    if rest.get("data_dir") is not None:  # absolute, because a run may be resumed from elsewhere
        rest["data_dir"] = str(Path(rest["data_dir"]).expanduser().absolute())
    config, hyper, axes = _values(kind, environment, settings)
    if "steps" in hyper:  # for an agent with a schedule
        hyper["steps"] = length
    plan = Plan(
        agent=agent,
        tasks=tuple(task.name for task in wanted),
        seeds=_seeds(environment.seeds if chosen is None else chosen),
        steps=length,
        config=config,
        hyper=hyper,
        axes=axes,
        eval_episodes=50 if episodes is None else episodes,
        normalise=normalise,
        keep_checkpoints=2 if kept is None else kept,
        env=env,
        **_intervals(length, 500 if environment is tasks.ROOMS else 1000, **intervals),
        **rest,
    )
    if plan.placement not in ("device", "host"):
        raise UhmError(f"placement is '{plan.placement}', and must be device or host.")
    return plan


def _intervals(steps: int, chunk: int, *, log: int | None, eval: int | None, checkpoint: int | None) -> dict[str, int]:
    """Where they are not given: ten evaluations and checkpoints of a short run, one per 100k and 50k steps of a long
    one, in chunks (each ends with a log line) that are no longer than the time between them."""
    tenth = max(1, steps // 10)
    found = {
        "eval_interval": max(min(100_000, tenth), log or 1) if eval is None else eval,
        "checkpoint_interval": max(min(50_000, tenth), log or 1) if checkpoint is None else checkpoint,
    }
    if log is None:
        shortest = min(found.values())
        log = shortest // -(-shortest // chunk)  # equal chunks, so that evaluations come at even steps
    for name, value in found.items():
        if value < log:
            raise UhmError(f"{name} is {value}, and must be at least log_interval ({log}), the length of a chunk.")
    return {**found, "log_interval": log}


def _tasks(what: str | Task | Sequence[str | Task]) -> tuple[Task, ...]:
    names = [what] if isinstance(what, str | Task) else list(what)
    found = dict.fromkeys(t for name in names for t in ((name,) if isinstance(name, Task) else tasks.named(name)))
    environments = sorted({task.environment.name for task in found})
    if len(environments) != 1:
        raise UhmError(
            f"one population trains on one environment, not on {len(environments)} ({', '.join(environments)}): "
            "start one run for each."
        )
    return tuple(found)


def _seeds(seeds: int | Sequence[int]) -> tuple[int, ...]:
    if not isinstance(seeds, Sequence):
        _at_least("seeds", seeds, 1)
        return tuple(range(seeds))
    for seed in seeds:
        _at_least("a seed", seed, 0)
    if max(seeds, default=0) >= 2**32:
        raise UhmError(f"a seed is {max(seeds)}, and must be below 2^32: random numbers are the same beyond that.")
    if not seeds or len(set(seeds)) != len(seeds):
        raise UhmError(f"seeds are {list(seeds)}, and must be different numbers from 0 on.")
    return tuple(seeds)


def _values(kind: Family, environment: Environment, given: dict[str, Any]) -> tuple[dict, dict, dict[str, list[Any]]]:
    """Config, hyper and axes: defaults, then the paper's preset, then what the caller gave."""
    configs: dict[str, Any] = {field.name: field.default for field in dataclasses.fields(kind.Config)}
    hypers: dict[str, Any] = {field.name: field.default for field in dataclasses.fields(kind.Hyper)}
    paper = {} if kind.like is None else presets.preset(kind.like, environment)
    for name, setting in paper.items():
        if name in configs:
            configs[name] = setting.value
        elif name in hypers:  # an agent of one's own need not have all that the one it is like has
            hypers[name] = setting.value
    axes: dict[str, list[Any]] = {}
    for name, value in given.items():
        if name not in configs and name not in hypers:
            raise unknown("setting", name, [*configs, *hypers], f"{kind.name} has no such hyperparameter.")
        value = _python(value)
        values = [value] if name == "hidden" or not isinstance(value, list | tuple) else list(value)
        if not values or any(values.count(one) > 1 for one in values):
            raise UhmError(f"{name} is {values}, and must be one value or several different ones.")
        if name in configs and len(values) > 1:
            raise UhmError(f"{name} changes the compiled program, so one population has one value of it: give one.")
        if len(values) > 1 and name in kind.idle:
            raise UhmError(f"{name} changes nothing in {kind.name}, so its members would be the same: give one value.")
        if len(values) > 1:
            axes[name] = values
        (configs if name in configs else hypers)[name] = values[0]
    if "hidden" in configs:
        hidden = configs["hidden"]
        configs["hidden"] = tuple(hidden) if isinstance(hidden, list | tuple) else (hidden,)
    for name, value in configs.items():
        _check_config(kind, name, value)
    flags = {field.name for field in dataclasses.fields(kind.Hyper) if isinstance(field.default, bool)}
    for name, value in hypers.items():
        for one in axes.get(name, [value]):
            _check_hyper(name, one, name in flags)
    return configs, hypers, axes


def _python(value: Any) -> Any:
    """Python's own numbers: an axis may well be numpy.linspace(...), or a list of what numpy or JAX computed."""
    if isinstance(value, list | tuple):
        return type(value)(_python(one) for one in value)
    return value.tolist() if hasattr(value, "tolist") else value


def _check_config(kind: Family, name: str, value: Any) -> None:
    if name == "hidden":
        if not value:
            raise UhmError("hidden is empty, and must be widths of at least 1.")
        for width in value:
            _at_least(name, width, 1)
    wanted = {field.name: field.type for field in dataclasses.fields(kind.Config)}[name]
    if wanted is int:
        _at_least(name, value, 1)
    if wanted is float:
        _check_hyper(name, value, False)
    if wanted is bool and not isinstance(value, bool):
        raise UhmError(f"{name} is {value!r}, and must be True or False.")
    choices = getattr(wanted, "__args__", ())
    if choices and all(isinstance(choice, str) for choice in choices) and value not in choices:
        raise UhmError(f"{name} is '{value}', and must be one of: {', '.join(choices)}.")


# (lowest, highest, whether the ends themselves are allowed)
_RANGES: dict[str, tuple[float, float, bool, bool]] = {
    "alpha": (0, math.inf, True, False),
    "alpha_critic": (0, math.inf, True, False),
    "expectile": (0, 1, False, False),
    "advantage_clip": (0, math.inf, False, False),
    "discount": (0, 1, False, False),
    "lambda_f": (0, 1, True, False),
    "q": (0, 1, False, False),
    "beta": (0, 1, True, True),
    "flag_weight": (0, math.inf, True, False),
    "flag_std": (0, math.inf, True, False),
    "flag_threshold": (0, math.inf, False, False),
    "learning_rate": (0, math.inf, False, False),
    "ema_rate": (0, 1, False, True),
    "target_noise": (0, math.inf, True, False),
    "target_noise_clip": (0, math.inf, True, False),
    "actor_period": (1, math.inf, True, False),
    "real_fraction": (0, 1, True, False),
    "penalty": (0, math.inf, True, False),
    "target_entropy_per_action": (-math.inf, math.inf, False, False),
    "gae_lambda": (0, 1, True, True),
}


def _check_hyper(name: str, value: Any, flag: bool) -> None:
    if flag and not isinstance(value, bool):  # 1 for True would become a number, on which no logic works
        raise UhmError(f"{name} is {value!r}, and must be True or False.")
    if name not in _RANGES:
        return
    low, high, with_low, with_high = _RANGES[name]
    ok = isinstance(value, int | float) and not isinstance(value, bool)
    ok = ok and (low <= value if with_low else low < value)
    if not (ok and (value <= high if with_high else value < high)):
        interval = f"{'[' if with_low else '('}{low:g}, {high:g}{']' if with_high else ')'}"
        raise UhmError(f"{name} is {value}, and must be in {interval}.")
    if name == "actor_period" and not float(value).is_integer():
        raise UhmError(f"{name} is {value}, and must be a whole number.")


def _at_least(name: str, value: Any, least: int) -> None:
    if not isinstance(value, int) or isinstance(value, bool):
        raise UhmError(f"{name} is {value}, and must be a whole number.")
    if value < least:
        raise UhmError(f"{name} is {value}, and must be at least {least}.")
