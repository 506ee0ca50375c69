"""`Run`: one run directory, opened by one writer or any number of readers."""

import json
from collections.abc import Iterable, Sequence
from functools import cached_property
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from uhm import __version__
from uhm.errors import UhmError, writing
from uhm.runs import environment
from uhm.runs.files import JsonLines, Lock, plain, read_json, write_json
from uhm.runs.sinks import Guarded, Sink

if TYPE_CHECKING:
    import uhm.runs.checkpoints

FORMAT = 1  # of the directory; raise it when a run made before can no longer be resumed
# config.json is written last, so a directory with these only is one whose creation was interrupted.
_BEFORE_CONFIG = {"lock", "environment.json", "environment.json.tmp", "config.json.tmp"}


class Run:
    """A run directory. Get one with `create` or `open`, and use it as a context manager.

    Call in this order at a step: `log`, `log_episodes`, `save`. Then everything up to a checkpoint's step is on disk
    before the checkpoint, and `restore` followed by `rewind` continues both without a gap or a repetition.
    """

    def __init__(self, directory: Path, config: dict[str, Any], lock: Lock | None, keep: int, sinks: Sequence[Sink]):
        self.directory = directory
        self.config = config
        self._lock = lock
        self._keep = keep
        self._sinks = Guarded(sinks)
        self._metrics = JsonLines(directory / "metrics.jsonl")
        self._episodes = JsonLines(directory / "episodes.jsonl")

    @classmethod
    def create(cls, directory: Path, config: dict[str, Any], *, keep: int = 2, sinks: Sequence[Sink] = ()) -> "Run":
        """A new run in a directory that is empty or does not exist; `config` has to be plain JSON."""
        text = json.dumps(config, allow_nan=False)
        _require_keep(keep)
        with writing(directory):
            directory.mkdir(parents=True, exist_ok=True)
        _require_unused(directory)
        lock = Lock(directory / "lock")
        try:
            _require_unused(directory)  # another process may have been faster
            write_json(directory / "environment.json", {"format": FORMAT, "sessions": [environment.session()]})
            write_json(directory / "config.json", config)
        except BaseException:
            lock.release()
            raise
        return cls(directory, json.loads(text), lock, keep, sinks)

    @classmethod
    def open(cls, directory: Path, *, keep: int = 2, sinks: Sequence[Sink] = (), write: bool = True) -> "Run":
        """The run in `directory`, to go on with it. With `write=False` only to look, also while another writes."""
        if not directory.is_dir():
            raise UhmError(f"no run directory {directory}.")
        if not (directory / "config.json").is_file():
            raise UhmError(f"{directory} is not a run: it holds no config.json.")
        _require_keep(keep)
        about = read_json(directory / "environment.json")
        if about.get("format") != FORMAT:
            raise UhmError(
                f"{directory} was made by another version: its format is {about.get('format')}, "
                f"and uhm {__version__} reads format {FORMAT}."
            )
        config = read_json(directory / "config.json")
        if not write:
            return cls(directory, config, None, keep, ())
        lock = Lock(directory / "lock")
        try:
            run = cls(directory, config, lock, keep, sinks)
            run._metrics.repair()
            run._episodes.repair()
            if (directory / "checkpoints").is_dir():
                with writing(directory / "checkpoints"):
                    run._checkpoints.clean()
            about["sessions"].append(environment.session())
            write_json(directory / "environment.json", about)
        except BaseException:
            lock.release()
            raise
        return run

    def remember(self, name: str, value: Any) -> None:
        """Keep what a session found out in environment.json, for whoever reads the run later."""
        self._require_lock()
        path = self.directory / "environment.json"
        about = read_json(path)
        if about.get(name) != value:
            write_json(path, about | {name: value})

    def log(self, step: int, values: dict[str, Any]) -> None:
        """Add a line to metrics.jsonl and tell the sinks. Numbers that are not finite are written as null."""
        self._require_lock()
        record = plain({"step": step, **values})
        self._metrics.append([record])
        self._sinks.log(step, {name: value for name, value in record.items() if name != "step"})

    def tell(self, step: int, values: dict[str, Any]) -> None:
        """Tell the sinks alone: what the run's files have in another form."""
        self._require_lock()
        self._sinks.log(step, plain(values))

    def name_members(self, names: Sequence[str]) -> None:
        """What sinks call the entries of values that have one per member."""
        self._sinks.members = names

    def log_episodes(self, records: Iterable[dict[str, Any]]) -> None:
        """Add the episodes of one evaluation, each with its `step`, to episodes.jsonl: all of them or none."""
        self._require_lock()
        records = list(records)
        if not all("step" in record for record in records):
            raise ValueError("an episode without its step could not be rewound")
        self._episodes.append(records, sync=True)

    def metrics(self) -> list[dict[str, Any]]:
        return self._metrics.read()

    def episodes(self) -> list[dict[str, Any]]:
        return self._episodes.read()

    def summary(self) -> dict[str, Any] | None:
        """What `finish` wrote, or None while the run is not finished."""
        path = self.directory / "summary.json"
        return read_json(path) if path.exists() else None

    def save(self, step: int, tree: Any, *, score: float | None = None, block: bool = False) -> None:
        """Save `tree`, whose buffers may be donated at once: it is copied before this returns.

        The writing happens in the background; its failure is raised by the next `save`, `restore`, `finish` or
        `close`. With `block` it is awaited here. The last `keep` checkpoints and the best by score are kept.
        """
        self._require_lock()
        self._metrics.sync()  # a checkpoint that outlives a power failure must not be ahead of its log
        self._checkpoints.save(step, tree, score)
        if block:
            self._checkpoints.wait()

    def rate(self, step: int, score: float) -> None:
        """Score the checkpoint of `step` once its evaluation is done; without such a checkpoint nothing happens."""
        self._require_lock()
        with writing(self.directory / "checkpoints"):
            self._checkpoints.rate(step, score)

    def steps(self) -> list[int]:
        """The steps with a complete checkpoint, in order."""
        return self._checkpoints.steps()

    def best(self) -> int | None:
        """The checkpoint with the highest score, if any has one."""
        return self._checkpoints.best()

    def restore(self, template: Any, step: int | None = None) -> tuple[int, Any] | None:
        """The newest intact checkpoint, or that of `step`: its step and its tree, bit for bit; None without any.

        `template` is a tree of the same structure, shapes and dtypes; the arrays come back where its arrays are. A
        damaged checkpoint is passed over with a warning.
        """
        return self._checkpoints.restore(template, step)

    def rewind(self, step: int) -> None:
        """Forget everything later than `step`, so that a resumed run writes it again."""
        self._require_lock()
        with writing(self.directory):
            (self.directory / "summary.json").unlink(missing_ok=True)
            # First: killed after this, the run still restores `step` and rewinds to it again.
            self._checkpoints.drop_after(step)
        self._metrics.cut(step)
        self._episodes.cut(step)

    def drop_episodes_after(self, step: int) -> None:
        """Forget the episodes later than `step`, and nothing else."""
        self._require_lock()
        self._episodes.cut(step)

    def finish(self, summary: dict[str, Any]) -> None:
        """Write summary.json, the sign that the run is complete, once everything else is on disk."""
        self._require_lock()
        self._checkpoints.wait()
        self._metrics.sync()
        write_json(self.directory / "summary.json", plain(summary))

    def close(self) -> None:
        """Wait for the last save and let go of the directory."""
        try:
            if "_checkpoints" in self.__dict__:
                self._checkpoints.close()
        finally:
            self._sinks.close()
            if self._lock is not None:
                self._lock.release()
                self._lock = None

    def __enter__(self) -> "Run":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        try:
            self.close()
        except UhmError as failure:
            if error is None:
                raise
            error.add_note(str(failure))  # the first error is the one to see

    @cached_property
    def _checkpoints(self) -> "uhm.runs.checkpoints.Checkpoints":
        from uhm.runs.checkpoints import Checkpoints  # Orbax takes a second to import

        return Checkpoints(self.directory / "checkpoints", self._keep)

    def _require_lock(self) -> None:
        if self._lock is None:
            raise RuntimeError(f"{self.directory} is closed or open for reading only")


def _require_unused(directory: Path) -> None:
    if (directory / "config.json").exists():
        raise UhmError(
            f"{directory} holds a run already: go on with `uhm train --resume {directory}`, or name another."
        )
    if any(path.name not in _BEFORE_CONFIG for path in directory.iterdir()):
        raise UhmError(f"{directory} is not empty and not a run: name another directory.")


def _require_keep(keep: int) -> None:
    if keep < 1:
        raise UhmError(f"cannot keep {keep} checkpoints: at least 1 is needed to resume.")
