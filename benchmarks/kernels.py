"""The fused kernels of `uhm.kernels` beside their definition as XLA compiles it: do they agree, which is faster?

    python benchmarks/kernels.py --members 1 5 25

Each is a layer of a whole population: forward, and backward with all its sums. Times are of one call in a compiled
loop of several. The error is the largest difference over the largest value. Where there is no such GPU the kernels are
interpreted on small arrays, which shows that they agree; times mean nothing then.
"""

import argparse
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from rich.console import Console
from rich.table import Table

from uhm import bench, kernels

TURNS, IN_A_ROW = 20, 10


def arguments(members: int, rows: int, width: int) -> list[jax.Array]:
    """z, bias, scale, shift and the slope of the result."""
    keys = jax.random.split(jax.random.key(0), 5)
    z, slope = (jax.random.normal(key, (members, rows, width)).astype(jnp.bfloat16) for key in keys[:2])
    bias, scale, shift = (jax.random.normal(key, (members, width)) for key in keys[2:])
    return [z, bias, 1 + 0.1 * scale, 0.1 * shift, slope]


def forward(function: Callable[..., jax.Array], x: jax.Array, given: list[jax.Array]) -> list[jax.Array]:
    """The value at z = x."""
    return [jax.vmap(function)(x, *given[1:4])]


def backward(function: Callable[..., jax.Array], x: jax.Array, given: list[jax.Array]) -> list[jax.Array]:
    """All gradients where the result's is x."""
    return list(jax.vjp(jax.vmap(function), *given[:4])[1](x))


def milliseconds(way: Callable[..., Any], function: Any, given: list[jax.Array], turns: int, in_a_row: int) -> float:
    """One call among many, each of which waits for all results of the one before; nothing is the same in two calls."""

    def body(carry: tuple[jax.Array, list[jax.Array]], turn: None) -> tuple[tuple[jax.Array, list[jax.Array]], None]:
        x, given = carry
        for _ in range(in_a_row):
            first, *rest = way(function, x, given)
            x = first + sum((1e-6 * one.sum() for one in rest), jnp.zeros(())).astype(x.dtype)
            given = [x if way is backward else given[0], *(1.001 * vector for vector in given[1:4]), given[4]]
        return (x, given), None

    run = jax.jit(lambda x, given: jax.lax.scan(body, (x, given), length=turns)[0])
    return 1e3 * bench.median_seconds(lambda: run(given[-1], given)) / (turns * in_a_row)


def error(got: Any, wanted: Any) -> float:
    """The largest difference over the largest value, of any array."""
    pairs = [(a.astype(jnp.float32), b.astype(jnp.float32)) for a, b in zip(got, wanted, strict=True)]
    return max(float(jnp.abs(a - b).max() / jnp.abs(b).max()) for a, b in pairs)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--members", type=int, nargs="+", default=[1, 5, 25])
    parser.add_argument("--rows", type=int, default=256)
    parser.add_argument("--width", type=int, default=512)
    args = parser.parse_args()
    rows, width, turns, in_a_row = args.rows, args.width, TURNS, IN_A_ROW
    fused: Callable[..., jax.Array] = lambda *given: kernels.fused(*given)  # noqa: E731
    if not kernels.chosen():
        print("No GPU for which there are kernels: interpreted, on small arrays.")
        rows, width, turns, in_a_row = 16, 64, 1, 1
        launches = [launch._replace(interpret=True) for launch in (kernels.FORWARD, kernels.BACKWARD)]
        fused = lambda *given: kernels.fused(*given, *launches)  # noqa: E731
    table = Table("members", "way", "kernel, ms", "XLA, ms", "error")
    for members in args.members:
        given = arguments(members, rows, width)
        for way in (forward, backward):
            times = [milliseconds(way, function, given, turns, in_a_row) for function in (fused, kernels.plain)]
            at = given[0 if way is forward else -1]
            got, wanted = (jax.jit(way, static_argnums=0)(f, at, given) for f in (fused, kernels.plain))
            table.add_row(str(members), way.__name__, *(f"{ms:.4f}" for ms in times), f"{error(got, wanted):.1e}")
    Console(width=100).print(table)


if __name__ == "__main__":
    main()
