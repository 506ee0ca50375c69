"""Samplers: which rows to draw, and what to gather from them.

`draw` is pure JAX on the small trajectory index; `gather` is plain indexing and takes JAX or numpy arrays alike. A
sampler called inside jit (and vmapped over members) on data that live on the device, and `batches` on memory-mapped
data, therefore give the same batches for the same keys.
"""

import functools
import queue
import threading
from collections.abc import Callable, Generator, Iterable, Iterator
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, Int, Key, PRNGKeyArray

from uhm.data.dataset import Array, Dataset
from uhm.errors import UhmError


# The fields say JAX arrays, which is what agents get; on the host they are numpy arrays on their way to the device.
class Transitions(NamedTuple):
    """(s, a, r, m, s', a'); a' is the action stored at the next row of the same trajectory, which always exists."""

    observations: Float[jax.Array, "*batch observation"]
    actions: Float[jax.Array, "*batch action"]
    rewards: Float[jax.Array, "*batch"]
    masks: Float[jax.Array, "*batch"]
    next_observations: Float[jax.Array, "*batch observation"]
    next_actions: Float[jax.Array, "*batch action"]


class Windows(NamedTuple):
    """Rows t .. t + K. Only the first `valid` rows after t belong to the trajectory; later ones repeat its last row."""

    observations: Float[jax.Array, "*batch rows observation"]
    actions: Float[jax.Array, "*batch rows action"]
    rewards: Float[jax.Array, "*batch rows"]
    masks: Float[jax.Array, "*batch rows"]
    valid: Int[jax.Array, "*batch"]


class Chunks(NamedTuple):
    """s_t, the h actions, rewards and masks from row t on, and s_{t+h}."""

    observations: Float[jax.Array, "*batch observation"]
    actions: Float[jax.Array, "*batch h action"]
    rewards: Float[jax.Array, "*batch h"]
    masks: Float[jax.Array, "*batch h"]
    next_observations: Float[jax.Array, "*batch observation"]


class Sampler(NamedTuple):
    """`sampler(dataset, key)` is one batch; the two halves are apart so that data may stay on the host."""

    draw: Callable[[Dataset, PRNGKeyArray], Int[jax.Array, " batch"]]
    gather: Callable[[Dataset, Int[Array, "*batch"]], Any]

    def __call__(self, dataset: Dataset, key: PRNGKeyArray) -> Any:
        return self.gather(dataset, self.draw(dataset, key))


def transitions(batch_size: int) -> Sampler:
    """Transitions, uniform over all that are stored."""
    return Sampler(_uniform(batch_size, 1), gather_transitions)


def windows(batch_size: int, k: int) -> Sampler:
    """A transition's row and up to `k` rows after it, uniform over all transitions."""
    return Sampler(_uniform(batch_size, 1), lambda dataset, rows: gather_windows(dataset, rows, k))


def chunks(batch_size: int, h: int) -> Sampler:
    """`h` actions in a row, uniform over the rows from which h transitions are stored."""
    return Sampler(_uniform(batch_size, h), lambda dataset, rows: gather_chunks(dataset, rows, h))


def scaled(sampler: Sampler, mean: np.ndarray, std: np.ndarray) -> Sampler:
    """The same batches with observations (x - mean) / std, whatever else the sampler makes of them."""

    def gather(dataset: Dataset, rows: Int[Array, "*batch"]) -> Any:
        observations = _Scaled(dataset.observations, mean, std)
        return sampler.gather(eqx.tree_at(lambda d: d.observations, dataset, observations), rows)

    return Sampler(sampler.draw, gather)


class _Scaled(NamedTuple):
    """Rows that are scaled as they are gathered: scaling all of them beforehand would need them twice."""

    rows: Array
    mean: np.ndarray
    std: np.ndarray

    @property
    def shape(self) -> tuple[int, ...]:
        return self.rows.shape

    def __getitem__(self, index: Any) -> Any:
        return (self.rows[index] - self.mean) / self.std


def _uniform(batch_size: int, steps: int) -> Callable[[Dataset, PRNGKeyArray], Int[jax.Array, " batch"]]:
    def draw(dataset: Dataset, key: PRNGKeyArray) -> Int[jax.Array, " batch"]:
        if steps >= dataset.counts.shape[0]:
            raise UhmError(f"no trajectory has {steps} transitions: take fewer at once, or other data.")
        # The rows from which `steps` steps can be taken are a prefix of `starts`.
        index = jax.random.randint(key, (batch_size,), 0, jnp.asarray(dataset.counts)[steps])
        return jnp.asarray(dataset.starts)[index]

    return draw


def gather_transitions(dataset: Any, rows: Int[Array, "*batch"]) -> Transitions:
    return Transitions(
        observations=dataset.observations[rows],
        actions=dataset.actions[rows],
        rewards=_column(dataset.rewards, dataset.task, rows),
        masks=_column(dataset.masks, dataset.task, rows),
        next_observations=dataset.observations[rows + 1],
        next_actions=dataset.actions[rows + 1],
    )


def gather_windows(dataset: Any, rows: Int[Array, "*batch"], k: int) -> Windows:
    last = dataset.last[rows]
    # `.clip` because numpy and JAX arrays both have it; `np.minimum` would refuse a traced array.
    span = (rows[..., None] + np.arange(k + 1, dtype=np.int32)).clip(None, last[..., None])
    return Windows(
        observations=dataset.observations[span],
        actions=dataset.actions[span],
        rewards=_column(dataset.rewards, dataset.task, span),
        masks=_column(dataset.masks, dataset.task, span),
        valid=(last - rows).clip(None, k),
    )


def gather_chunks(dataset: Any, rows: Int[Array, "*batch"], h: int) -> Chunks:
    span = rows[..., None] + np.arange(h, dtype=np.int32)
    return Chunks(
        observations=dataset.observations[rows],
        actions=dataset.actions[span],
        rewards=_column(dataset.rewards, dataset.task, span),
        masks=_column(dataset.masks, dataset.task, span),
        next_observations=dataset.observations[rows + h],
    )


def _column(columns: Array, task: Array, rows: Int[Array, "*batch"]) -> Any:
    """One task's column at `rows`; members lead both `task` and `rows` when there are several."""
    index = task.reshape(task.shape + (1,) * (rows.ndim - task.ndim))
    return columns[index, rows].astype(np.float32)


def batches(
    sampler: Sampler, dataset: Dataset, keys: Iterable[Key[jax.Array, "..."]], *, prefetch: int = 2, device: Any = None
) -> Generator[Any, None, None]:
    """One batch on the device per item of `keys`: a key, or an array of keys with one entry per member (or per step
    and member) when `dataset.task` has one.

    Where the data live on the host, rows are drawn and gathered by a background thread, `prefetch` batches ahead.
    """
    if not dataset.on_host:
        for key in keys:
            yield _sample(sampler, dataset, key)
        return

    # Drawing needs the index alone, which is small: it goes to the CPU device once, the rows come back as numpy.
    cpu = jax.devices("cpu")[0]
    leave = lambda d: (d.observations, d.actions, d.rewards, d.masks, d.last, d.task)  # noqa: E731
    index = jax.device_put(eqx.tree_at(leave, dataset, (None,) * 6), cpu)

    def produce(key: Key[jax.Array, "..."]) -> Any:
        rows = np.asarray(_draw(sampler, index, jax.device_put(key, cpu)))
        tasks = np.broadcast_to(dataset.task, rows.shape[:-1]) if dataset.task.ndim else dataset.task
        return jax.device_put(sampler.gather(dataset.with_task(tasks), rows), device)

    yield from _prefetched(produce, keys, prefetch)


# Module-level, so that a second stream with the same sampler does not compile again.
@functools.partial(jax.jit, static_argnums=0)
def _sample(sampler: Sampler, dataset: Dataset, key: Key[jax.Array, "..."]) -> Any:
    axes = dataset.member_axes() if dataset.task.ndim else None
    return _over(sampler, key.ndim, (axes, 0))(dataset, key)


@functools.partial(jax.jit, static_argnums=0)
def _draw(sampler: Sampler, index: Dataset, key: Key[jax.Array, "..."]) -> Int[jax.Array, "..."]:
    return _over(sampler.draw, key.ndim, (None, 0))(index, key)


def _over(function: Callable, depth: int, axes: tuple) -> Callable:
    """`function(dataset, key)` mapped over the `depth` leading axes of an array of keys; members are the last one."""
    for level in range(depth):
        function = jax.vmap(function, in_axes=axes if level == 0 else (None, 0))
    return function


def _prefetched(produce: Callable[[Any], Any], items: Iterable[Any], depth: int) -> Iterator[Any]:
    """`map(produce, items)` computed by a thread that stays `depth` results ahead; its errors are raised here."""
    results: queue.Queue = queue.Queue(maxsize=depth)
    stop = threading.Event()

    def put(kind: str, value: Any) -> None:
        while not stop.is_set():
            try:
                return results.put((kind, value), timeout=0.1)
            except queue.Full:
                continue
        return None

    def work() -> None:
        try:
            for item in items:
                if stop.is_set():
                    return
                put("batch", produce(item))
            put("end", None)
        except BaseException as error:  # whatever went wrong belongs to the consumer
            put("error", error)

    thread = threading.Thread(target=work, daemon=True, name="uhm-prefetch")
    thread.start()
    try:
        while True:
            kind, value = results.get()
            if kind == "end":
                return
            if kind == "error":
                raise value
            yield value
    finally:
        stop.set()
        thread.join()
