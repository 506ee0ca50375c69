"""`uhm train`. Every field of the agent's Config and Hyper is a flag; a hyperparameter may take several values."""

import contextlib
import dataclasses
import inspect
import itertools
import sys
import warnings
from pathlib import Path
from typing import Annotated, Any

import tyro
from tyro.conf import Positional

from uhm import tasks
from uhm.agents import Family, family, is_agent
from uhm.cli import flags
from uhm.errors import UhmError, unknown

_SWITCHES = ("--tensorboard", "--no-tensorboard", "-h", "--help")
_NOBODY = "uhm: all members diverged: look at the data (`uhm data inspect`), or try a lower --learning-rate."


@flags.verb
class Train:
    """Train a population of agents: tasks x seeds x hyperparameters as one compiled program."""

    agent: Annotated[Positional[str], tyro.conf.arg(metavar="[AGENT]")] = "uhm"
    """uhm, ghm, mbtd, dtd, rebrac-dagger, iql, rebrac, fql, mopo, mobile, mac; or module:NAME for your own."""
    tasks: Annotated[Positional[tuple[str, ...]], tyro.conf.arg(metavar="[TASK ...]")] = ("rooms",)
    """An environment, or some of its tasks; or logs of your own: a file FILE.npz, or minari:NAME."""
    seeds: str | None = None
    """How many seeds, or which: 5 is 0 to 4, and 5-9 or 3,7 are just those (default: the paper's; 1 for logs)."""
    steps: int | None = None
    """Gradient steps (default: the paper's; a million for logs)."""
    run: Path | None = None
    """Directory to make (default: runs/ and a name)."""
    resume: Path | None = None
    """Go on with the run in this directory; everything else is read from it."""
    data_dir: Path | None = None
    """Where data live (default: $UHM_DATA_DIR, else ~/.ogbench/data)."""
    dataset: str | None = None
    """Another data set of the environment than its official one."""
    transitions: int | None = None
    """Use only the first trajectories that hold as many transitions."""
    placement: str = "device"
    """Keep data on the `device`, or on the `host`: memory-mapped, logs of your own in its memory."""
    normalise: bool | None = None
    """Scale observations to mean 0 and standard deviation 1 in the data (default: True for logs, else False)."""
    env: str | None = None
    """For logs: a simulator to evaluate in, by its Gymnasium id, MODULE:ID, or minari:NAME for that of such data."""
    eval_interval: int | None = None
    """Steps between evaluations (default: 100k, a tenth of a short run)."""
    eval_episodes: int | None = None
    """Episodes per member and evaluation (default: 50)."""
    log_interval: int | None = None
    """Steps between log lines; also the length of a compiled chunk."""
    checkpoint_interval: int | None = None
    """Steps between checkpoints."""
    keep_checkpoints: int | None = None
    """How many of the last checkpoints to keep, besides the best evaluated one (default: 2)."""
    tensorboard: bool = False
    """Also write TensorBoard files into the run."""
    wandb: str | None = None
    """Also log to this Weights & Biases project."""

    def __call__(self) -> int:
        from uhm import train
        from uhm.runs import programs

        if self.resume is not None:
            self._refuse_beside_resume()
            programs.keep()
            config = _config_of(self.resume) if self.wandb else {}
            summary = train.resume(self.resume, show=True, sinks=self._sinks(self.resume, config))
            return _end(self.resume, summary)
        names = [field.name for field in dataclasses.fields(Train)]
        common = {n: getattr(self, n) for n in names[2:] if n not in ("run", "resume", "tensorboard", "wandb")}
        common["data_dir"] = None if self.data_dir is None else str(self.data_dir)
        common["seeds"] = None if self.seeds is None else seeds_of(self.seeds)
        own = {f.name: getattr(self, f.name) for f in dataclasses.fields(self) if f.name not in names}
        settings = {name: value for name, value in own.items() if value is not None and value != ()}
        plan = train.resolve(self.agent, self.tasks, **common, **settings)
        directory = self.run or train.default_directory(plan)
        programs.keep()
        return _end(directory, train.start(plan, directory, show=True, sinks=self._sinks(directory, plan.to_json())))

    def _refuse_beside_resume(self) -> None:
        """A flag that would be ignored is a misunderstanding."""
        for field in dataclasses.fields(self):
            allowed = field.name in ("resume", "tensorboard", "wandb")
            if not allowed and getattr(self, field.name) != field.default:
                named = field.name in ("agent", "tasks")  # by their place
                flag = f"the {field.name}" if named else f"--{field.name.replace('_', '-')} (or its value)"
                raise UhmError(f"--resume reads everything from the run: leave out {flag}.")

    def _sinks(self, directory: Path, config: dict[str, Any]) -> list[Any]:
        from uhm.runs import TensorBoard, WandB

        sinks: list[Any] = [TensorBoard(directory)] if self.tensorboard else []
        return sinks + ([WandB(directory, config, self.wandb)] if self.wandb else [])


def _config_of(directory: Path) -> dict[str, Any]:
    from uhm.runs import Run

    with Run.open(directory, write=False) as run:
        return run.config


def _end(directory: Path, summary: dict[str, Any]) -> int:
    """Write the finished run's page; the run itself is safe whatever happens here. Status 1 if nobody learned."""
    from uhm import report

    failed = all(member["diverged"] for member in summary["members"])
    if failed:
        print(_NOBODY, file=sys.stderr)
    if tasks.is_own(summary["environment"]) and not failed:
        print(f"its policy: uhm.train.load_run({str(directory)!r}).policy(), a function of observations")
        question = "which member to trust" if len(summary["members"]) > 1 else "what it is worth"
        if not any(member["evaluations"] for member in summary["members"]):
            # Runs on Minari data have a simulator, whose word is better than that of the logs.
            by = "in its simulator" if summary["environment"].startswith(tasks.MINARI) else "by the logs"
            print(f"{question}, {by}: uhm eval {directory}")
    try:
        print(f"page: {report.write([directory], directory / 'report')}")
    except (UhmError, OSError) as error:
        warnings.warn(f"the run is complete, but its page could not be made: {error}", stacklevel=2)
    return int(failed)


def seeds_of(text: str) -> int | list[int]:
    """A number of seeds, or those that `5-9` and `3,7` name."""
    if text.isdecimal():
        return int(text)
    found: list[int] = []
    for part in text.split(","):
        first, dash, last = part.partition("-")
        if not first.isdecimal() or (dash and not last.isdecimal()) or (dash and int(last) < int(first)):
            raise UhmError(f"--seeds is '{text}', and must be a number of seeds, or which ones: 5-9, or 3,7.")
        found += range(int(first), int(last if dash else first) + 1)
    return found


def in_order(arguments: list[str]) -> list[str]:
    """The same arguments with agent and tasks first: only the agent tells which flags there are.

    An agent's name after a flag is that flag's value, as in `--run uhm`, unless the flag takes none.
    """
    for place, word in enumerate(arguments):
        before = arguments[place - 1] if place else ""
        valued = before.startswith("-") and "=" not in before and before not in _SWITCHES
        if is_agent(word) and not valued:
            count = len(list(itertools.takewhile(lambda one: not one.startswith("-"), arguments[place:])))
            return arguments[place : place + count] + arguments[:place] + arguments[place + count :]
    return arguments


def verb(arguments: list[str]) -> type:
    """`Train` with the flags of the agent that the arguments name, which come in order."""
    named = list(itertools.takewhile(lambda word: not word.startswith("-"), arguments))
    _refuse_listed_seeds(arguments)
    if named and not is_agent(named[0]) and _is_task(named[0]):
        raise UhmError(f"'{named[0]}' is no agent, which comes first: `uhm train uhm {' '.join(named)}`.")
    kind = family(named[0] if named else "uhm")
    usual = _usual(kind, named[1:])
    fields: list[Any] = []
    for group, many in ((kind.Config, False), (kind.Hyper, True)):
        for field in dataclasses.fields(group):
            if field.name == "steps":  # has its own flag
                continue
            plain = field.type if not many else (bool if isinstance(field.default, bool) else float)
            hint = tyro.conf.arg(help_behavior_hint=f"(default: {usual[field.name]})")
            flag = Annotated[flags.unset(_flag(plain, many)), hint]
            fields.append((field.name, flag, dataclasses.field(default=() if many else None)))
    built = dataclasses.make_dataclass("Train", fields, bases=(Train,))
    _refuse_unknown(arguments, [field.name for field in dataclasses.fields(built)])
    _refuse_no_values(arguments, ["hidden", *(field.name for field in dataclasses.fields(kind.Hyper))])
    built.__doc__ = f"{Train.__doc__}\n\n" + _attributes(kind)
    return built


def _is_task(name: str) -> bool:
    with contextlib.suppress(UhmError):
        return bool(tasks.named(name))
    return False


def _usual(kind: Family, names: list[str]) -> dict[str, str]:
    """What every field of the agent is, on these tasks, if nothing is said."""
    from uhm.train.plan import resolve

    fields = (*dataclasses.fields(kind.Config), *dataclasses.fields(kind.Hyper))
    values = {field.name: field.default for field in fields}
    with contextlib.suppress(UhmError):  # a name that nobody knows, which is told later
        plan = resolve(kind.name, names or "rooms")
        values |= {**plan.config, **plan.hyper}
    return {name: " ".join(map(str, v)) if isinstance(v, tuple) else str(v) for name, v in values.items()}


def _refuse_unknown(arguments: list[str], known: list[str]) -> None:
    """Tyro would explain at length; one line with the closest name is enough."""
    for argument in arguments:
        name = argument.split("=")[0].removeprefix("--").replace("-", "_")
        if argument.startswith("--") and name.removeprefix("no_") not in (*known, "help"):
            close = [f"--{field.replace('_', '-')}" for field in known]
            raise unknown("flag", argument.split("=")[0], close, "`uhm train AGENT --help` lists them.")


def _refuse_no_values(arguments: list[str], many: list[str]) -> None:
    """A flag of several values may have none for tyro, which is as if it were not there; and commas puzzle it."""
    for argument, following in itertools.pairwise([*arguments, "--"]):
        if argument.removeprefix("--").replace("-", "_") not in many:
            continue
        if following.startswith("--"):
            raise UhmError(f"{argument} needs a value.")
        if "," in following:
            raise UhmError(f"{argument} takes its values apart: {argument} {' '.join(following.split(','))}.")


def _refuse_listed_seeds(arguments: list[str]) -> None:
    """`--seeds 0 1` would be one seed and a task called 1."""
    for flag, first, second in zip(arguments, arguments[1:], arguments[2:], strict=False):
        if flag == "--seeds" and first.isdecimal() and second.isdecimal():
            raise UhmError(f"--seeds takes one value: a number of seeds, or which, as in --seeds {first},{second}.")


def _flag(plain: Any, many: bool) -> Any:
    return tuple[plain, ...] if many else plain | None


def _attributes(kind: Any) -> str:
    """The fields' own docstrings, in the form that tyro reads from a class's docstring."""
    lines = ["Attributes:"]
    for group in (kind.Config, kind.Hyper, Train):  # the last one counts: both have `steps`
        # A dataclass may inherit fields.
        source = [line for c in group.__mro__[-2::-1] for line in inspect.getsource(c).splitlines()]
        for number, line in enumerate(source):
            name = line.strip().split(":")[0]
            if line.startswith("    ") and name.isidentifier() and number + 1 < len(source):
                text = source[number + 1].strip()
                if text.startswith('"""') and text.endswith('"""'):
                    lines.append(f"    {name}: {text.strip(chr(34))}")
    return "\n".join(lines)
