"""The ODE solve with a shorter chain of kernels: is it right, is it faster for few agents?

    python benchmarks/folded.py                            # on a GPU; with a small --hidden it is right on a CPU, too
    JAX_PLATFORMS=cpu python benchmarks/folded.py --count  # kernels and their longest chain, without one (see graph.py)

With in, skip and out the numbers of an evaluation e (`uhm.ode_kernel`), h what the field's last layer W is given, V the
first layer's rows for x, and w its row for tau, `HorizonModel.follow` computes

    z = (in_e x) V + tau_e w + c,   h = hidden layers of z,   x' = base + size_e (skip_e x + out_e (h W + b)),

and what z is next waits for two small products and a move between them. But z is linear in h:

    z' = h [W diag(size_e out_e in_e+1) V] + (in_e+1 (base + size_e (skip_e x + out_e b))) V + tau_e+1 w + c.

The matrix in brackets depends on weights alone and can be there before, the second summand is known before h is. So
one product is left in the chain where there were two and a move: 8 kernels an evaluation instead of 10. x itself is
computed beside it.
"""

import argparse
import contextlib
import dataclasses
import statistics
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float
from rich.console import Console
from rich.table import Table

from uhm import bench, kernels
from uhm.agents.horizon_model import HorizonModel
from uhm.bench.subject import several
from uhm.numerics import apart, product

TURNS = 5


def folded(model: HorizonModel, noise: Float[Array, "B X"], c: Float[Array, "B H"]) -> Float[Array, "B X"]:
    """`HorizonModel.follow` of one agent."""
    mlp, dtype = model.field.mlp, model.field.mlp.compute_dtype
    schedule, size = model.schedule(), noise.shape[-1]
    numbers = jnp.asarray(schedule.table[:, :, :size])  # in, skip and out of every evaluation
    first, w, last = mlp.layers[0].weight[:size], mlp.layers[0].weight[size], mlp.layers[-1]
    sizes = [schedule.sizes[e % len(schedule.sizes)] for e in range(len(numbers))]
    factors = jnp.stack([move * now[2] * then[0] for move, now, then in zip(sizes, numbers, numbers[1:], strict=False)])
    folds = jnp.einsum("hx,ex,xk->ehk", last.weight, factors, first, preferred_element_type=jnp.float32)
    x = base = noise
    z, bias = product(numbers[0, 0] * x, first, dtype, hands_on=True), c
    for e, (_, skip, out) in enumerate(numbers):
        h = z
        for i, layer in enumerate(mlp.layers[1:]):
            h = kernels.normed(z, bias, *((mlp.norms[i].scale, mlp.norms[i].bias) if mlp.norms else ()))
            z, bias = product(h, layer.weight, dtype, hands_on=layer is not last), layer.bias
        known = base + sizes[e] * (skip * x + out * last.bias)
        # Of what reads the same array now and when h is there XLA would make one kernel.
        known, again, c, w = apart((known, known, c, w))
        x = again + sizes[e] * out * z
        if (e + 1) % len(schedule.sizes) == 0:
            base = x
        if e + 1 < len(numbers):
            z = product(h, folds[e].astype(last.weight.dtype), dtype, hands_on=True)
            bias = product(numbers[e + 1, 0] * known, first, dtype, hands_on=False) + (e + 1) * schedule.gap * w + c
    return x


@contextlib.contextmanager
def solving(way: Callable[..., Array]) -> Iterator[None]:
    """While a program is traced whose solves are to be done in this way."""
    with mock.patch.object(HorizonModel, "follow", way):
        yield


def counted(members: int, setting: bench.Setting) -> Any:
    """The graph of an update as XLA compiles it for a GPU that need not be there."""
    import graph

    return graph.graph(graph.instructions(graph.compiled("uhm", members, setting)))


def error(way: Callable[..., Array], members: int, setting: bench.Setting) -> float:
    """Of a solve in this way: the largest difference to a plain one in float32, over the largest value."""
    keys = jax.random.split(jax.random.key(1))
    shapes = (members, setting.batch_size, setting.observation + 1), (members, setting.batch_size, setting.hidden[0])
    given = [jax.random.normal(key, shape) for key, shape in zip(keys, shapes, strict=True)]
    full = dataclasses.replace(setting, compute_dtype="float32")
    model, exact = (several("uhm", members, one).init().state.params.model for one in (setting, full))
    got = jax.jit(jax.vmap(way))(model, *given)
    with jax.default_matmul_precision("highest"):
        wanted = jax.jit(jax.vmap(HorizonModel.follow))(exact, *given)
    return float(jnp.abs(got - wanted).max() / jnp.abs(wanted).max())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--members", type=int, nargs="+", default=[1, 5, 10])
    parser.add_argument("--hidden", type=int, nargs="+", default=[512] * 4)
    parser.add_argument("--compute-dtype", choices=("float32", "bfloat16"), default="bfloat16")
    parser.add_argument("--chunk", type=int, help="steps of one timed program")
    parser.add_argument("--count", action="store_true", help="count kernels instead of timing them")
    args = parser.parse_args()
    setting = bench.Setting(hidden=tuple(args.hidden), compute_dtype=args.compute_dtype)
    heads = ("kernels, folded", "plain", "chain, folded", "plain") if args.count else ("ms, folded", "plain")
    table = Table("agents", *heads, "error, folded", "plain")
    ways = folded, HorizonModel.follow
    for members in args.members:
        made = []
        with bench.preparing():
            for way in ways:
                with solving(way):
                    made.append(
                        counted(members, setting) if args.count else bench.Subject("uhm", members, setting, args.chunk)
                    )
        if args.count:
            cells = [str(len(one.kernels)) for one in made] + [str(one.chain) for one in made]
        else:
            with bench.measuring():
                turns = [[one.run() for one in made] for _ in range(TURNS + 1)][1:]
            cells = [f"{1e3 * statistics.median(times):.3f}" for times in zip(*turns, strict=True)]
        table.add_row(str(members), *cells, *(f"{error(way, members, setting):.1e}" for way in ways))
    Console(width=100).print(table)


if __name__ == "__main__":
    main()
