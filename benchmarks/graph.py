"""What XLA makes of an update for a Hopper GPU: how many kernels, their longest chain, and what may run beside it.

    pip install "jax[cuda12-local]"                     # XLA for GPUs; neither a GPU nor CUDA is needed
    python benchmarks/graph.py uhm dtd --members 1 5 25

The program is compiled as the trainer would, for a GPU that is only described, so matmuls are not tuned. What is
counted is one pass of its loop: a step, or two steps of one agent alone. Two kernels depend on each other here if one
reads what the other wrote. A chain takes as long as its kernels, however many multiprocessors idle; and where the graph
is one kernel wide for long, it is worth looking for work that could run there but waits, because XLA put something it
needs into one kernel with something that comes late.
"""

import argparse
import collections
import os
import re
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple
from unittest import mock

os.environ.setdefault("JAX_PLATFORMS", "cpu")

import jax
import numpy as np
from jax.experimental import topologies
from rich.console import Console
from rich.table import Table

from uhm import kernels, population
from uhm.bench.subject import Setting, several

BINS = 16
STEPS = 100  # of the loop, whose body does not depend on it
# An H200 as XLA describes it.
DEVICE = """
gpu_device_info {
  threads_per_block_limit: 1024 threads_per_warp: 32 threads_per_core_limit: 2048 core_count: 132 fpus_per_core: 128
  shared_memory_per_block: 49152 shared_memory_per_core: 233472 shared_memory_per_block_optin: 232448
  block_dim_limit_x: 2147483647 block_dim_limit_y: 65535 block_dim_limit_z: 65535
  registers_per_core_limit: 65536 registers_per_block_limit: 65536 clock_rate_ghz: 1.98
  memory_bandwidth: 4800000000000 l2_cache_size: 52428800 device_memory_size: 150000000000
  cuda_compute_capability { major: 9 }
}
runtime_version { major: 12 minor: 8 } dnn_version_info { major: 9 minor: 7 }
platform_name: "CUDA" device_description_str: "NVIDIA H200"
"""
_LINE = re.compile(r"\s+(?:ROOT )?%([\w.\-]+) = .*? ([\w\-]+)\((.*)$")
_NOTHING = {"parameter", "constant", "get-tuple-element", "tuple", "bitcast"}  # no kernel


class Instruction(NamedTuple):
    name: str
    operation: str
    reads: tuple[str, ...]


class Graph(NamedTuple):
    """Kernels in the order of the program, and the place of each in the longest chain that leads to it."""

    kernels: list[Instruction]
    depths: list[int]

    @property
    def chain(self) -> int:
        return max(self.depths, default=0)

    def widths(self, bins: int = BINS) -> list[float]:
        """Kernels per link of the longest chain, if each runs as soon as it can, from the chain's start to its end."""
        places = [(depth - 1) * bins // self.chain for depth in self.depths]
        links = collections.Counter(link * bins // self.chain for link in range(self.chain))
        found = collections.Counter(places)
        return [found[i] / links[i] for i in range(bins) if links[i]]


def instructions(program: str) -> list[Instruction]:
    """Those of the loop over steps; a loop within it counts as one."""
    _, _, entry = program.partition("\nENTRY ")
    found = re.search(r" while\(.*body=%([\w.\-]+)", entry)
    assert found, "the program has no loop"
    lines = iter(program.splitlines())
    for line in lines:
        if line.startswith(f"%{found[1]} "):
            break
    made = []
    for line in lines:
        if line.startswith("}"):
            break
        if matched := _LINE.match(line):
            name, operation, rest = matched.groups()
            made.append(Instruction(name, operation, tuple(re.findall(r"%([\w.\-]+)", _operands(rest)))))
    return made


def _operands(rest: str) -> str:
    """Up to the parenthesis that closes them."""
    depth = 1
    for i, character in enumerate(rest):
        depth += (character == "(") - (character == ")")
        if depth == 0:
            return rest[:i]
    return rest


def graph(made: Sequence[Instruction]) -> Graph:
    depth: dict[str, int] = {}
    found = Graph([], [])
    for one in made:
        before = max((depth.get(name, 0) for name in one.reads), default=0)
        if one.operation in _NOTHING:
            # A tuple only hands on; what is taken out of one waits for all of it, as one kernel writes all of it.
            depth[one.name] = before
            continue
        depth[one.name] = before + 1
        found.kernels.append(one)
        found.depths.append(before + 1)
    return found


def compiled(agent: str, members: int, setting: Setting) -> str:
    """The text of the trainer's program."""
    try:
        topology: Any = topologies.get_topology_desc("H200", "cuda", target_config=DEVICE, topology="1x1x1")
    except NotImplementedError:
        raise SystemExit('XLA for GPUs is missing: pip install "jax[cuda12-local]"') from None
    mesh = jax.sharding.Mesh(np.array(topology.devices), ("device",))
    there = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec())

    def described(make: Callable[[], Any]) -> Any:
        shape = lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=there)  # noqa: E731
        return jax.tree.map(shape, jax.eval_shape(make))

    made = several(agent, members, setting)
    data = lambda: jax.tree.map(jax.numpy.asarray, made.data)  # noqa: E731
    given = [described(made.init), described(lambda: made.hyper), described(data)]
    # Kernels are lowered for the device of the mesh, as there is no other (from jax 0.11 on).
    with (
        jax.sharding.use_abstract_mesh(mesh.abstract_mesh),
        mock.patch.object(jax, "default_backend", lambda: "gpu"),
        mock.patch.object(kernels, "chosen", lambda: True),
    ):
        lowered = population.advance.lower(made.agent, *given, STEPS)
    untuned: dict[str, str | bool] = {"xla_gpu_autotune_level": "0"}  # that needs a device
    return lowered.compile(untuned).as_text() or ""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("agents", nargs="*", default=["uhm"])
    parser.add_argument("--members", type=int, nargs="+", default=[5])
    parser.add_argument("--hidden", type=int, nargs="+", default=[512] * 4)
    parser.add_argument("--compute-dtype", choices=("float32", "bfloat16"), default="bfloat16")
    parser.add_argument("--names", action="store_true", help="also say how many kernels of each name there are")
    args = parser.parse_args()
    setting = Setting(hidden=tuple(args.hidden), compute_dtype=args.compute_dtype)
    table = Table(box=None)
    for head in ("agent", "members", "kernels", "matmuls", "fused by hand", "longest chain", "kernels wide along it"):
        table.add_column(head, justify="left" if head == "agent" else "right")
    for agent in args.agents:
        for members in args.members:
            found = graph(instructions(compiled(agent, members, setting)))
            names = [kernel.name for kernel in found.kernels]
            counts = (len(names), sum("gemm" in n or "cublas" in n for n in names), sum("pallas" in n for n in names))
            wide = " ".join(f"{width:.0f}" for width in found.widths())
            table.add_row(agent, str(members), *map(str, counts), str(found.chain), wide)
            if args.names:
                stems = collections.Counter(re.sub(r"[.\d]+$", "", name) for name in names)
                print(agent, members, *(f"{name} {count}" for name, count in stems.most_common()), sep=", ")
    Console(width=200).print(table)


if __name__ == "__main__":
    main()
