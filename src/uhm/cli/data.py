"""`uhm data list | get | make | check | convert | inspect`."""

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import tyro
from tyro.conf import Positional

from uhm import tasks
from uhm.cli.data_convert import Convert
from uhm.cli.flags import verb
from uhm.errors import UhmError

if TYPE_CHECKING:
    from uhm.data.dataset import Dataset


@verb
class _Common:
    data_dir: Path | None = None
    """Where data live (default: $UHM_DATA_DIR, else ~/.ogbench/data)."""
    json: bool = False
    """Print JSON for machines."""

    @property
    def directory(self) -> Path:
        from uhm.data.source import data_directory

        directory = data_directory(self.data_dir)
        if directory.exists() and not directory.is_dir():
            raise UhmError(f"{directory} is not a directory: name another with --data-dir or UHM_DATA_DIR.")
        return directory


def _environments(names: tuple[str, ...]) -> list[tasks.Environment]:
    """The environments that names (of suites, environments or tasks) stand for, each once."""
    return list(dict.fromkeys(task.environment for name in names for task in tasks.resolve(name)))


@verb
class List(_Common):
    """List all environments, their tasks and sizes, and which data are here."""

    names: Positional[tuple[str, ...]] = ()
    """Suites, environments or tasks to list (default: all)."""

    def __call__(self) -> int:
        rows = [self._row(env) for env in _environments(self.names or tuple(tasks.SUITES))]
        if self.json:
            print(json.dumps(rows, indent=2))
            return 0
        from rich.console import Console
        from rich.table import Table

        # Tight, so that the longest names and the largest numbers fit into 80 columns.
        table = Table(box=None, header_style="bold", collapse_padding=True, pad_edge=False)
        for column in ("environment", "suite"):
            table.add_column(column, no_wrap=True)
        for column in ("obs", "act", "limit", "official", "here"):
            table.add_column(column, justify="right")
        for row in rows:
            here = "unreadable" if row["transitions_here"] is None else f"{row['transitions_here']:,}"
            sizes = [row[k] for k in ("observation_size", "action_size", "episode_limit", "transitions")]
            table.add_row(row["environment"], row["suite"], *(f"{n:,}" for n in sizes), here if row["files"] else "-")
        print(f"Transitions of official data, and in {self.directory}:")
        Console().print(table)
        print("Each environment has five tasks, ENVIRONMENT-task1 to ENVIRONMENT-task5.")
        if others := [row["environment"] for row in rows if not row["makeable"]]:
            print(f"`uhm data make` cannot make {', '.join(others)}: these need OGBench's files.")
        return 0

    def _row(self, env: tasks.Environment) -> dict[str, Any]:
        from uhm.data.available import makeable

        files = _found(env, self.directory)
        fields = ("suite", "domain", "dataset", "transitions", "observation_size", "action_size", "episode_limit")
        return {
            "environment": env.name,
            **{field: getattr(env, field) for field in fields},
            **{
                field: getattr(env, field)
                for field in ("default_task", "steps", "discount", "lambda_f", "seeds", "q_agg")
            },
            "tasks": [task.name for task in env.tasks],
            "makeable": makeable(env),
            "files": [str(path) for path in files],
            "bytes_here": sum(path.stat().st_size for path in files),
            "transitions_here": _count(files),
        }


@verb
class Get(_Common):
    """Download OGBench's official files; interrupted downloads go on where they stopped."""

    names: Positional[tuple[str, ...]] = ()
    """Environments (or suites) to get."""
    shards: int | None = None
    """Of a 100M set, get only the first N files (default: as many as the paper uses)."""
    mirror: tuple[str, ...] = ()
    """Base addresses to try before the official one (default: $UHM_MIRRORS)."""

    def __call__(self) -> int:
        from uhm.data.download import download, files

        _need_names(self.names)
        paths, wanted = [], _environments(self.names)
        for env in wanted:
            files(env, self.shards)  # what has none is said before anything is downloaded
        for env in wanted:
            paths += download(
                env, self.directory, shards=self.shards, mirrors=self.mirror or None, progress=not self.json
            )
        _report_paths(paths, self.json)
        return 0


@verb
class Make(_Common):
    """Generate data as OGBench made its own. Stop it at any time: the same command goes on.

    What is there already, as it is asked for, is left as it is.
    """

    names: Positional[tuple[str, ...]] = ()
    """Environments to make data for."""
    episodes: int | None = None
    """Training episodes; a tenth as many are added for validation (default: the official size)."""
    workers: int | None = None
    """Processes (default: one per core). The data do not depend on it."""
    seed: int = 0
    """Same seed, same data; on another machine a few trajectories may differ."""
    expert: Path | None = None
    """For antmaze: an npz file with a policy of yours that walks in a given direction (default: ours)."""

    def __call__(self) -> int:
        from uhm.data.generate import finished, make

        _need_names(self.names)
        for field in ("episodes", "workers"):
            value = getattr(self, field)
            if value is not None and value < 1:
                raise UhmError(f"--{field} must be at least 1, not {value}.")
        if self.seed < 0:
            raise UhmError(f"--seed must not be negative, not {self.seed}.")
        asked: dict[str, Any] = {"episodes": self.episodes, "seed": self.seed, "expert": self.expert}
        # All are looked at before the first is made, for that may take hours.
        there = {env: finished(env, self.directory, **asked) for env in _environments(self.names)}
        paths = []
        for env, done in there.items():
            if done:
                print(f"{env.name}: there already, nothing to make.", file=sys.stderr)
            paths += make(env, self.directory, workers=self.workers, progress=not self.json, **asked)
        _report_paths(paths, self.json)
        return 0


@verb
class Check(_Common):
    """Read data files through and through; exit with status 1 if one is not fit for use."""

    names: Positional[tuple[str, ...]] = ()
    """Environments or npz files (default: everything in the data directory)."""

    def __call__(self) -> int:
        names = self.names or tuple(env.name for env in tasks.ENVIRONMENTS.values() if _found(env, self.directory))
        if not names:
            raise UhmError(f"no data in {self.directory}; `uhm data make rooms` makes some.")
        results = []
        for name in names:
            if tasks.is_own(name):
                results.append(_checked(name, name, self.directory))
                continue
            for env in _environments((name,)):
                for split in ("train", "val"):
                    files = ", ".join(str(path) for path in _found(env, self.directory, split))
                    results.append(_checked(files or f"{env.name} ({split})", env, self.directory, split))
        if self.json:
            print(json.dumps(results, indent=2))
        else:
            for result in results:
                print(_verdict(result))
        return 0 if all(result["ok"] for result in results) else 1


@verb
class Inspect(_Common):
    """Describe a data set and draw it: sizes, ranges, rewards and goal states per task."""

    name: Positional[str] = "rooms"
    """An environment, a task, an npz file, or minari:NAME."""
    split: str = "train"
    """train or val."""
    out: Path | None = None
    """Where the picture goes (default: NAME.png here)."""

    def __call__(self) -> int:
        from uhm.data.inspect import describe, picture
        from uhm.data.source import provide

        if self.split not in ("train", "val"):
            raise UhmError(f"--split must be train or val, not '{self.split}'.")
        if self.out is not None and self.out.suffix not in (kinds := (".png", ".pdf", ".svg", ".jpg")):
            raise UhmError(f"--out is {self.out}, and must end in {', '.join(kinds[:-1])} or {kinds[-1]}.")
        own = tasks.is_own(self.name)
        env = None if own else _environments((self.name,))[0]
        if env is not None:
            provide(env, self.directory)
        data = _load(self.name, self.directory, self.split)
        facts = describe(data, env, self.split)
        title = tasks.title(self.name) + ("-val" if self.split == "val" else "")
        out = self.out or Path(f"{title}.png")
        maze = env is not None and (env.domain == "locomotion")
        picture(data, out, title, maze)
        facts["picture"] = str(out)
        if self.json:
            print(json.dumps(facts, indent=2))
        else:
            _print_facts(title, facts)
        return 0


@verb
class Data:
    """Get, make, check, convert and look at data."""

    verb: (
        Annotated[List, tyro.conf.subcommand("list")]
        | Annotated[Get, tyro.conf.subcommand("get")]
        | Annotated[Make, tyro.conf.subcommand("make")]
        | Annotated[Check, tyro.conf.subcommand("check")]
        | Annotated[Convert, tyro.conf.subcommand("convert")]
        | Annotated[Inspect, tyro.conf.subcommand("inspect")]
    )

    def __call__(self) -> int:
        return self.verb()


def _need_names(names: tuple[str, ...]) -> None:
    if not names:
        raise UhmError("name at least one environment; `uhm data list` shows them all.")


def _report_paths(paths: list[Path], as_json: bool) -> None:
    if as_json:
        print(json.dumps([str(path) for path in paths]))
    else:
        for path in paths:
            print(path)


def _found(env: tasks.Environment, directory: Path, split: Any = "train") -> list[Path]:
    from uhm.data.source import find

    try:
        return find(env, directory, split)
    except UhmError:
        return []


def _count(files: list[Path]) -> int | None:
    """The transitions in files; None where they cannot be read, which `check` explains."""
    from uhm.data.source import count

    try:
        return count(files) if files else 0
    except UhmError:
        return None


def _load(what: Any, directory: Path, split: Any = "train") -> "Dataset":
    from uhm.data.source import load

    return load(what, data_dir=directory, split=split)


def _checked(label: str, what: Any, directory: Path, split: Any = "train") -> dict[str, Any]:
    from uhm.data.available import shortfall

    try:
        data = _load(what, directory, split)
    except UhmError as error:
        return {"data": label, "ok": False, "error": str(error)}
    few = shortfall(data.size, what) if isinstance(what, tasks.Environment) and split == "train" else ""
    return {"data": label, "ok": True, "error": "", "transitions": data.size, "note": few}


def _verdict(result: dict[str, Any]) -> str:
    if not result["ok"]:
        return f"BAD {result['error']}"
    note = f", {result['note']}" if result["note"] else ""
    return f"ok  {result['data']}: {result['transitions']:,} transitions{note}"


def _print_facts(title: str, facts: dict[str, Any]) -> None:
    from rich.console import Console
    from rich.table import Table

    console = Console()
    length = facts["trajectory_length"]
    console.print(
        f"[bold]{title}[/bold]: {facts['transitions']:,} transitions in {facts['trajectories']:,} trajectories"
    )
    console.print(f"  lengths       {length['min']} to {length['max']}, mean {length['mean']:.1f}")
    for field in ("observation", "action"):
        f = facts[field]
        text = f"size {f['size']}, {f['min']:.3g} to {f['max']:.3g}, mean {f['mean']:.3g}, std {f['std']:.3g}"
        console.print(f"  {field + 's':<13} {text}")
    table = Table(box=None, header_style="bold")
    table.add_column("task")
    known = "environment" in facts  # the ends of one's own logs need not be goals
    table.add_column("goal rows" if known else "ends", justify="right")
    table.add_column("solved in" if known else "ended in", justify="right")
    table.add_column("rows per reward")
    for task in facts["tasks"]:
        histogram = "  ".join(f"{value}: {count:,}" for value, count in task["reward_histogram"].items())
        short = task["task"].rsplit("-", 1)[-1]
        solved = f"{task['successful_trajectories']:,} of {facts['trajectories']:,}"
        table.add_row(short, f"{task['goal_states']:,}", solved, histogram)
    console.print(table)
    for warning in facts["warnings"]:
        console.print(f"[yellow]warning:[/yellow] {warning}")
    console.print(f"picture: {facts['picture']}")
