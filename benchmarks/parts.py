"""Where the time of a UHM update goes: each of its parts by itself, in a compiled loop on the device.

    python benchmarks/parts.py --members 5 25 --dtypes float32 bfloat16

The parts are the backup (two actors, the ODE, reward and critics), the ODE inside it, the gradient of all losses and of
three of them alone, Adam with the slow copies, and drawing the batch. Backup, gradient of all, Adam and drawing add up
to the update. The last rows are fifty matmuls of the hidden layers' shape, as many as the ODE has layers:
what no arrangement of matmuls one after the other can beat.
"""

import argparse
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from rich.console import Console
from rich.table import Table

from uhm.agents import core, uhm
from uhm.agents.base import stop
from uhm.agents.descent import State, descend, working
from uhm.bench import Setting, median_seconds
from uhm.bench.subject import several

LAMBDA, K_MAX, LAYERS = 0.8, 8, 50


class Inputs(NamedTuple):
    """What the parts are given, for all members."""

    state: State
    hyper: core.Hyper
    batch: Any
    backup: core.Backup
    tau: jax.Array
    key: jax.Array
    data: Any
    weights: jax.Array


def backup_of(state: State, hyper: core.Hyper, batch: Any, key: jax.Array) -> core.Backup:
    params, targets = working(state)
    context = core.Context(targets, params.reward, hyper, jnp.float32(LAMBDA), jnp.int32(K_MAX), "mean")
    return uhm.backup(context, batch, key)


def solve(state: State, batch: Any, noise: jax.Array) -> jax.Array:
    horizon = jnp.full(noise.shape[:-1], 3)
    return working(state)[1].model.generate(noise, batch.next_observations, batch.actions, horizon)[0]


def all_losses(params: Any, hyper: core.Hyper, batch: Any, backup: core.Backup, tau: jax.Array) -> jax.Array:
    return core.losses(params, hyper, batch, stop(backup), tau, jnp.bool_(True), "mean")[0]


LOSSES: dict[str, Callable] = {
    "gradient of all losses": all_losses,
    "- critic": lambda params, hyper, batch, backup, tau: core.critic_loss(params.critic, batch, backup.y)[0],
    "- actor": lambda params, hyper, batch, backup, tau: core.actor_loss(
        params.actor, stop(params.critic), hyper, batch, "mean"
    )[0],
    "- model": lambda params, hyper, batch, backup, tau: core.model_loss(params.model, hyper, batch, backup.flow, tau)[
        0
    ],
}


def parts(members: int, setting: Setting) -> Iterator[tuple[str, Callable, Any, Inputs]]:
    """Name, what one turn of the loop does with what the last one left, what the first one gets, and the rest."""
    made = several("uhm", members, setting)
    hyper, pop, data = made.hyper, made.init(), made.data.to_device()
    draw = jax.vmap(made.agent.sample, in_axes=(data.member_axes(), 0))
    batch = jax.jit(draw)(data, pop.key)
    tau = jax.random.uniform(jax.random.key(0), (members, setting.batch_size))
    width = setting.hidden[0]
    weights = jnp.full((members, LAYERS, width, width), 1e-3)
    backup = jax.jit(jax.vmap(backup_of))(pop.state, hyper, batch, pop.key)
    inputs = Inputs(pop.state, hyper, batch, backup, tau, pop.key, data, weights)
    zero = jnp.float32(0)

    def moved(batch: Any, by: jax.Array) -> Any:
        """Almost the same batch, so that no turn can be left out."""
        return batch._replace(observations=batch.observations + by, next_observations=batch.next_observations + by)

    yield "backup", lambda c, i: _trace(jax.vmap(backup_of)(i.state, i.hyper, moved(i.batch, c), i.key)), zero, inputs
    noise = jax.random.normal(jax.random.key(1), (members, setting.batch_size, setting.observation + 1))
    yield "- ode", lambda c, i: jnp.pad(jax.vmap(solve)(i.state, i.batch, c), ((0, 0), (0, 0), (0, 1))), noise, inputs
    for name, loss in LOSSES.items():

        def gradient(carry: Any, i: Inputs, loss: Callable = loss) -> Any:
            by = 1e-30 * jax.tree.leaves(carry)[0].ravel()[0]
            return jax.vmap(jax.grad(loss))(working(i.state)[0], i.hyper, moved(i.batch, by), i.backup, i.tau)

        yield name, gradient, working(pop.state)[0], inputs

    def adam(state: State, _: Inputs) -> State:
        def one(state: State) -> State:
            # The gradient of this loss is the parameters themselves, which costs nothing to make.
            half_square = lambda p: (0.5 * jnp.stack([(x * x).sum() for x in jax.tree.leaves(p)]).sum(), {})  # noqa: E731
            return descend(state, half_square, 3e-4, 0.005)[0]

        return jax.vmap(one)(state)

    yield "adam, slow copies", adam, pop.state, inputs

    def drawn(step: jax.Array, i: Inputs) -> jax.Array:
        keys = jax.vmap(jax.random.fold_in, in_axes=(0, None))(i.key, step.astype(jnp.int32))
        return step + 1 + _trace(draw(i.data, keys))

    yield "drawing the batch", drawn, zero, inputs
    for dtype in (jnp.float32, jnp.bfloat16):

        def products(x: jax.Array, i: Inputs) -> jax.Array:
            weights = i.weights.astype(x.dtype)
            for layer in range(LAYERS):
                x = jnp.einsum("mbi,mio->mbo", x, weights[:, layer], preferred_element_type=x.dtype)
            return x

        start = jnp.ones((members, setting.batch_size, width), dtype)
        yield f"{LAYERS} matmuls, {start.dtype}", products, start, inputs


def _trace(tree: Any) -> jax.Array:
    """A number, almost zero, that depends on every array."""
    floats = [leaf for leaf in jax.tree.leaves(tree) if jnp.issubdtype(leaf.dtype, jnp.floating)]
    return 1e-30 * jnp.stack([leaf.sum() for leaf in floats]).sum()


def milliseconds(turn: Callable, start: Any, inputs: Inputs, turns: int) -> float:
    loop = jax.jit(lambda carry, inputs: jax.lax.scan(lambda c, _: (turn(c, inputs), None), carry, length=turns)[0])
    return 1e3 * median_seconds(lambda: loop(start, inputs), times=3) / turns


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--members", type=int, nargs="+", default=[5])
    parser.add_argument("--dtypes", nargs="+", default=["float32"], choices=["float32", "bfloat16"])
    parser.add_argument("--hidden", type=int, nargs="+", default=[512] * 4)
    parser.add_argument("--turns", type=int, default=100)
    options = parser.parse_args()
    rows: dict[str, list[str]] = {}
    columns = []
    for members in options.members:
        for dtype in options.dtypes:
            columns.append(f"{members} x {dtype}")
            for name, turn, start, inputs in parts(members, Setting(hidden=tuple(options.hidden), compute_dtype=dtype)):
                took = milliseconds(turn, start, inputs, options.turns)
                print(columns[-1], name, f"{took:.4f} ms", flush=True)
                rows.setdefault(name, []).append(f"{took:.3f}")
    table = Table("ms per update", *columns)
    for name, cells in rows.items():
        table.add_row(name, *cells)
    device = jax.devices()[0]
    Console(width=100).print(table, f"{device.device_kind}, jax {jax.__version__}")


if __name__ == "__main__":
    main()
