"""The fused kernels beside their definitions as XLA compiles them: do they agree, which is faster?

    python benchmarks/kernels.py --members 1 5 25

A layer of a whole population by `uhm.kernels`, forward, and backward with all its sums; and its ODE solve by
`uhm.ode_kernel`. Times are of one call in a compiled loop of several. The error is the largest difference over the
largest value. Where there is no such GPU the kernels are interpreted on small arrays, which shows that they agree;
times mean nothing then.
"""

import argparse
import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from rich.console import Console
from rich.table import Table

from uhm import bench, kernels, ode_kernel
from uhm.agents import horizon_model
from uhm.agents.horizon_model import HorizonModel
from uhm.bench.subject import several

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


def solves(members: int, rows: int, width: int) -> tuple[Any, jax.Array, jax.Array]:
    """Models, noise and condition of a population."""
    setting = bench.Setting(hidden=(width,) * 4, compute_dtype="bfloat16")
    model = several("uhm", members, setting).init().state.params.model
    keys = jax.random.split(jax.random.key(1))
    shapes = (members, rows, setting.observation + 1), (members, rows, width)
    noise, c = (jax.random.normal(key, shape) for key, shape in zip(keys, shapes, strict=True))
    return model, noise, c


def solve_milliseconds(follow: Any, model: Any, noise: jax.Array, c: jax.Array, turns: int) -> float:
    """One solve among many, each of which starts where the one before it ended."""
    again = lambda x, _: (jax.vmap(follow)(model, x, c), None)  # noqa: E731
    run = jax.jit(lambda noise: jax.lax.scan(again, noise, length=turns)[0])
    return 1e3 * bench.median_seconds(lambda: run(noise)) / turns


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
    follow: Callable[..., jax.Array] = horizon_model.fused
    if not kernels.chosen():
        print("No GPU for which there are kernels: interpreted, on small arrays.")
        rows, width, turns, in_a_row = 16, 64, 1, 1
        launches = [launch._replace(interpret=True) for launch in (kernels.FORWARD, kernels.BACKWARD)]
        fused = lambda *given: kernels.fused(*given, *launches)  # noqa: E731
        from jax._src.pallas.mosaic_gpu.interpret.params import InterpretGPUParams

        follow = functools.partial(horizon_model.fused, interpret=InterpretGPUParams())
    table = Table("members", "way", "kernel, ms", "XLA, ms", "error")
    for members in args.members:
        given = arguments(members, rows, width)
        for way in (forward, backward):
            times = [milliseconds(way, function, given, turns, in_a_row) for function in (fused, kernels.plain)]
            at = given[0 if way is forward else -1]
            got, wanted = (jax.jit(way, static_argnums=0)(f, at, given) for f in (fused, kernels.plain))
            table.add_row(str(members), way.__name__, *(f"{ms:.4f}" for ms in times), f"{error(got, wanted):.1e}")
        # Rows and width that the kernel can do.
        given = solves(members, -(-rows // ode_kernel.ROWS) * ode_kernel.ROWS, max(width, 128))
        both = follow, HorizonModel.follow
        got, wanted = (jax.jit(jax.vmap(way))(*given) for way in both)
        # Interpreted it takes seconds.
        times = [f"{solve_milliseconds(way, *given, turns):.4f}" if kernels.chosen() else "" for way in both]
        table.add_row(str(members), "ODE", *times, f"{error([got], [wanted]):.1e}")
    Console(width=100).print(table)


if __name__ == "__main__":
    main()
