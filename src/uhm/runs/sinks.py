"""Where metrics and evaluations also go: TensorBoard and Weights & Biases, each an optional extra.

The run's own files are the record; a sink is a convenience, and one that breaks is dropped with a warning. Constructing
a sink only checks that its package is there; it touches the run directory with the first values, when that exists.
"""

import importlib
import uuid
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from uhm.errors import UhmError


@runtime_checkable
class Sink(Protocol):
    """Anything that takes numbers as they come, which are finite and have flat names.

    A member's number is `critic_loss/task2-seed0-alpha0.03`, of a population of one just `critic_loss`. An evaluation
    comes when it is done, some steps after it began: `eval/success`, `eval/return`, `eval/discounted` and `eval/value`,
    named alike, with the step that was evaluated as `eval/step`. From call to call `step` never goes back.
    """

    def log(self, step: int, values: dict[str, float]) -> None: ...

    def close(self) -> None: ...


class TensorBoard:
    """Event files in DIR/tensorboard."""

    def __init__(self, directory: Path):
        self._package = _extra("tensorboardX", "tensorboard")
        self._folder = directory / "tensorboard"
        self._writer: Any = None

    def log(self, step: int, values: dict[str, float]) -> None:
        if self._writer is None:
            # A resumed run repeats steps after its checkpoint: `purge_step` hides the first telling of them.
            self._writer = self._package.SummaryWriter(logdir=str(self._folder), purge_step=step)
        for name, value in values.items():
            self._writer.add_scalar(name, value, step)
        self._writer.flush()

    def close(self) -> None:
        if self._writer is not None:
            self._writer.close()


class WandB:
    """A run on wandb.ai or, with WANDB_MODE=offline, in DIR/wandb. A resumed run goes on where it was."""

    def __init__(self, directory: Path, config: dict[str, Any], project: str = "uhm"):
        self._package = _extra("wandb", "wandb")
        self._directory, self._config, self._project = directory, config, project
        self._run: Any = None

    def log(self, step: int, values: dict[str, float]) -> None:
        if self._run is None:
            self._run = self._package.init(
                project=self._project,
                name=self._directory.name,
                dir=str(self._directory),
                config=self._config,
                id=self._id(),
                resume="allow",
            )
            # W&B keeps one row for a step, and two evaluations may come at one: so the step is a number like others.
            self._run.define_metric("*", step_metric="step")
            # What comes late is drawn where it belongs.
            self._run.define_metric("eval/*", step_metric="eval/step")
        self._run.log({"step": step, **values})

    def close(self) -> None:
        if self._run is not None:
            self._run.finish()

    def _id(self) -> str:
        path = self._directory / "wandb-id"
        if not path.exists():
            path.write_text(uuid.uuid4().hex)
        return path.read_text().strip()


class Guarded:
    """Sinks that cannot stop the training: one that fails is dropped with a warning."""

    def __init__(self, sinks: Sequence[Sink]):
        self._sinks = list(sinks)
        self.members: Sequence[str] = ()  # their names

    def log(self, step: int, values: dict[str, Any]) -> None:
        numbers = dict(scalars(values, self.members))
        for sink in tuple(self._sinks):
            try:
                sink.log(step, numbers)
            except Exception as error:
                self._sinks.remove(sink)
                _warn(sink, error)

    def close(self) -> None:
        while self._sinks:
            sink = self._sinks.pop()
            try:
                sink.close()
            except Exception as error:
                _warn(sink, error)


def scalars(values: dict[str, Any], members: Sequence[str] = (), prefix: str = "") -> Iterator[tuple[str, float]]:
    """The numbers among plain values, flattened: the second of a list called `loss` is `loss/` and the second member.

    A list of another length than that of the members has numbers for names, and a member without a name needs none.
    """
    for name, value in values.items():
        if isinstance(value, list):
            names = members if len(members) == len(value) else [str(index) for index in range(len(value))]
            value = dict(zip(names, value, strict=True))
        if isinstance(value, dict):
            yield from scalars(value, members, f"{prefix}{name}/")
        elif isinstance(value, int | float):
            yield f"{prefix}{name}".removesuffix("/"), float(value)


def _warn(sink: Sink, error: Exception) -> None:
    warnings.warn(f"{type(sink).__name__} failed and gets no more metrics: {error}", stacklevel=4)


def _extra(module: str, extra: str) -> Any:
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise UhmError(f"{module} is not installed: in the clone, pip install '.[{extra}]'.") from error
