"""The data set: flat rows stored once, an index of trajectories, and one small column of rewards and masks per task.

Rows are OGBench's raw rows: a trajectory of T transitions is T + 1 rows, and its last row, whose action has no stored
successor, never begins a transition. A mask is 0 where the task is solved at that row (termination); the end of a
trajectory is no termination, only the end of what was stored.
"""

from typing import Any

import equinox as eqx
import jax
import numpy as np
from jax.core import Tracer
from jaxtyping import Bool, Float, Int, Num, Shaped

from uhm.errors import UhmError, unknown
from uhm.tasks import Task, title

Array = jax.Array | np.ndarray

# Policies end in tanh, so an action on the boundary could never be matched.
ACTION_LIMIT = 1.0 - 1e-5
WINDOW = 8  # steps; about as far as models look ahead


class Dataset(eqx.Module):
    """Arrays on the device, or on the host as numpy arrays (perhaps memory-mapped): samplers take both.

    `starts` lists the rows that begin a transition, those with the longest future first, and `counts[h]` says how many
    rows have at least h rows after them in their trajectory. The rows from which h steps can be taken are therefore
    `starts[:counts[h]]`, for every h, and drawing among them is one gather.
    """

    observations: Float[Array, "rows observation"]
    actions: Float[Array, "rows action"]
    rewards: Num[Array, "tasks rows"]
    masks: Bool[Array, "tasks rows"]
    starts: Int[Array, " transitions"]
    counts: Int[Array, " horizons"]
    last: Int[Array, " rows"]  # the last row of the trajectory that the row belongs to
    task: Shaped[Array, "*members"]  # the column that samplers read; one per member of a population
    names: tuple[str, ...] = eqx.field(static=True)  # the tasks, one per column
    end_share: float = eqx.field(static=True)  # of `WINDOW` steps from a row on, in how many a task ends

    @property
    def size(self) -> int:
        """The number of transitions."""
        return self.starts.shape[0]

    @property
    def on_host(self) -> bool:
        return isinstance(self.observations, np.ndarray)

    def with_task(self, task: str | Task | int | Int[Array, "*members"]) -> "Dataset":
        """The same data read as another task: its name, or its index in `names`, counted from 0.

        An array of indices makes one view per member.
        """
        index = self._column(task) if isinstance(task, str | Task) else task
        self._check_columns(index)
        index = np.asarray(index, np.int32) if self.on_host else jax.numpy.asarray(index, jax.numpy.int32)
        return eqx.tree_at(lambda d: d.task, self, index)

    def _column(self, task: str | Task) -> int:
        name = task.name if isinstance(task, Task) else task
        titles = [title(known) for known in self.names]  # logs are the same ones wherever the file is
        if title(name) not in titles:
            raise unknown("task", name, self.names, f"The data have {', '.join(self.names)}.")
        return titles.index(title(name))

    def _check_columns(self, index: int | Int[Array, "*members"]) -> None:
        """An index that is not there would read the column next to it, for that is how JAX gathers."""
        if isinstance(index, Tracer):  # has no value yet
            return
        count = self.rewards.shape[0]
        wrong = [i for i in np.ravel(index).tolist() if type(i) is not int or not 0 <= i < count]
        if wrong:
            raise UhmError(
                f"task {wrong[0]} is not in the data: it must be 0 to {count - 1}, counted from 0, or a name: "
                f"{', '.join(self.names)}."
            )

    def member_axes(self) -> "Dataset":
        """What `jax.vmap` needs as `in_axes` to map over members: only the task differs, all else is shared."""
        axes = jax.tree.map(lambda _: None, self)
        return eqx.tree_at(lambda d: d.task, axes, 0, is_leaf=lambda x: x is None)

    def to_device(self, device: Any = None) -> "Dataset":
        return jax.tree.map(lambda x: jax.device_put(x, device), self)


def make_dataset(
    observations: np.ndarray,
    actions: np.ndarray,
    terminals: np.ndarray,
    rewards: np.ndarray,
    masks: np.ndarray,
    names: tuple[str, ...],
    source: str = "data",
    end_share: float | None = None,
) -> Dataset:
    """Index flat rows. `terminals` marks each trajectory's last row; `source` names the data in error messages.

    `end_share` is given where not all tasks of an environment are in `masks`, so that it is the same for every choice.
    """
    last = last_rows(terminals, source)
    remaining = last - np.arange(len(last), dtype=np.int32)
    # A stable sort by what is left keeps rows of equal length in file order.
    order = np.argsort(-remaining, kind="stable").astype(np.int32)
    histogram = np.bincount(remaining)
    counts = histogram[::-1].cumsum()[::-1].astype(np.int32)
    return Dataset(
        observations=observations,
        actions=actions,
        rewards=_smallest(rewards),
        masks=masks.astype(bool, copy=False),
        starts=order[: counts[1]],
        counts=counts,
        last=last,
        task=np.zeros((), np.int32),
        names=names,
        end_share=share_of_ends(masks, terminals) if end_share is None else end_share,
    )


def share_of_ends(masks: np.ndarray, terminals: np.ndarray) -> float:
    """The fraction of rows from which a task ends within `WINDOW` stored steps, the mean over tasks."""
    last = last_rows(terminals, "data")
    rows = np.flatnonzero(np.arange(len(last)) < last)
    until = np.minimum(rows + WINDOW - 1, last[rows] - 1)  # the last row has no step
    shares = []
    for mask in masks:
        ended = ~np.asarray(mask, bool)
        so_far = ended.cumsum(dtype=np.int32)
        shares.append(np.mean(so_far[until] - so_far[rows] + ended[rows] > 0))
    return float(np.mean(shares))


def last_rows(terminals: np.ndarray, source: str) -> np.ndarray:
    """For each row the last row of its trajectory."""
    ends = np.flatnonzero(terminals)
    if len(ends) == 0:
        raise UhmError(f"{source}: field 'terminals' is never set; it must be 1 on the last row of each trajectory.")
    if ends[-1] != len(terminals) - 1:
        raise UhmError(
            f"{source}: the last row has terminals = 0, so the last trajectory is cut off; "
            "set it to 1 or drop the rows after the last terminal."
        )
    lengths = np.diff(ends, prepend=-1)
    if lengths.min() < 2:
        row = int(ends[np.argmin(lengths)])
        raise UhmError(f"{source}: the trajectory at row {row} has one row; a transition needs at least two.")
    return np.repeat(ends, lengths).astype(np.int32)


def _smallest(rewards: np.ndarray) -> np.ndarray:
    """Rewards that are small whole numbers, as all of OGBench's are, take one byte each."""
    if rewards.dtype != np.int8 and np.array_equal(rewards, np.clip(np.round(rewards), -128, 127)):
        return rewards.astype(np.int8)
    return rewards if rewards.dtype == np.int8 else rewards.astype(np.float32)
