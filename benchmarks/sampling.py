"""How fast batches come out of data that live on the device, and out of data that stay memory-mapped on the host.

    python benchmarks/sampling.py [--transitions 1000000] [--members 5] [--steps 200]

Prints one table; the ratio is measured in one run. `device` draws and gathers inside one scanned program, as training
does; `host` is the background thread with prefetch. The rows are random: sampling does not look at them.
"""

import tempfile
import time
from pathlib import Path
from typing import NamedTuple

import jax
import numpy as np
import tyro
from rich.console import Console
from rich.table import Table

from uhm.data import sampling
from uhm.data.dataset import Dataset, make_dataset


class Row(NamedTuple):
    sampler: str
    device: float
    host: float


def build(transitions: int, observation: int, action: int, folder: Path) -> Dataset:
    """Five tasks over memory-mapped rows of trajectories of 1000 transitions."""
    rows = transitions // 1000 * 1001
    rng = np.random.default_rng(0)
    arrays = {}
    for name, width in (("observations", observation), ("actions", action)):
        array = np.lib.format.open_memmap(folder / f"{name}.npy", "w+", np.float32, (rows, width))
        for start in range(0, rows, 1 << 16):
            block = array[start : start + (1 << 16)]
            block[:] = rng.random(block.shape, np.float32)
        array.flush()
        arrays[name] = np.load(folder / f"{name}.npy", mmap_mode="r")
    rewards = -rng.integers(0, 5, (5, rows), dtype=np.int8)
    terminals = np.arange(rows) % 1001 == 1000
    return make_dataset(**arrays, terminals=terminals, rewards=rewards, masks=rewards < 0, names=tuple("12345"))


def on_device(sampler: sampling.Sampler, data: Dataset, keys: jax.Array) -> float:
    """Seconds for all steps as one scanned program that reduces each batch to a number, so that nothing is skipped."""
    members = jax.vmap(sampler, in_axes=(data.member_axes(), 0))

    @jax.jit
    def run(data: Dataset, keys: jax.Array) -> jax.Array:
        def step(total: jax.Array, key: jax.Array) -> tuple[jax.Array, None]:
            batch = members(data, key)
            return total + sum(leaf.sum() for leaf in jax.tree.leaves(batch)), None

        return jax.lax.scan(step, jax.numpy.zeros(()), keys)[0]

    run(data, keys).block_until_ready()
    start = time.perf_counter()
    run(data, keys).block_until_ready()
    return time.perf_counter() - start


def on_host(sampler: sampling.Sampler, data: Dataset, keys: jax.Array, chunk: int = 20) -> float:
    """Seconds for all steps through the background thread, `chunk` steps a transfer."""
    parts = [keys[i : i + chunk] for i in range(0, len(keys), chunk)]
    for batch in sampling.batches(sampler, data, parts[:2]):
        jax.block_until_ready(batch)
    start = time.perf_counter()
    for batch in sampling.batches(sampler, data, parts):
        jax.block_until_ready(batch)
    return time.perf_counter() - start


def main(
    transitions: int = 1_000_000,
    observation: int = 55,
    action: int = 5,
    members: int = 5,
    batch: int = 256,
    steps: int = 200,
) -> None:
    """Measure and print."""
    samplers = {
        "transitions": sampling.transitions(batch),
        "windows of 8": sampling.windows(batch, 8),
        "chunks of 10": sampling.chunks(batch, 10),
    }
    keys = jax.random.split(jax.random.key(0), (steps, members))
    with tempfile.TemporaryDirectory() as folder:
        host = build(transitions, observation, action, Path(folder)).with_task(np.arange(members, dtype=np.int32) % 5)
        device = host.to_device()
        rows = [Row(name, on_device(s, device, keys), on_host(s, host, keys)) for name, s in samplers.items()]
    samples = steps * members * batch
    title = f"{jax.devices()[0].device_kind}: {members} members, batch {batch}, {transitions:,} transitions"
    table = Table("sampler", "device, samples/s", "host, samples/s", "host : device time", title=title)
    for row in rows:
        table.add_row(
            row.sampler, f"{samples / row.device:,.0f}", f"{samples / row.host:,.0f}", f"{row.host / row.device:.2f}"
        )
    Console().print(table)


if __name__ == "__main__":
    tyro.cli(main)
