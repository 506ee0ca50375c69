"""One gradient step on the sum of an agent's losses, and the state that it changes.

One Adam updates all networks. Every loss sees the other networks through a stopped gradient, and Adam's steps do not
depend on the scale of a gradient, so the sum is as good as one optimiser per loss.

Where matmuls are in bfloat16, the state also holds every weight rounded: Adam's kernel writes it along with the new
weight, while rounding in a separate pass would read all weights again. Losses and targets use the rounded weights
(`working`), and the gradient of a weight is rounded too before it reaches Adam, whose own numbers are all float32.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, Int

from uhm import nets, numerics
from uhm.agents.base import Metrics
from uhm.numerics import apart

# The learning rate is a hyperparameter and applied by hand: it may differ between members.
_ADAM = optax.scale_by_adam(b1=0.9, b2=0.999, eps=1e-8)

HALVED = (512, 512)  # shape of the weights that `halved` splits; only for these the result was compared with a CPU's


class State(NamedTuple):
    """`params` is a named tuple of the networks that learn; `targets` and `rounded` have the same fields.

    `targets` are the target networks ("slow copies": moving averages of `params`), None for a network that has none.
    `rounded` are the rounded weights of both.
    """

    params: Any
    targets: Any
    adam: optax.OptState
    step: Int[Array, ""]
    rounded: Any


def start(params: Any, slow: Sequence[str]) -> State:
    """The state at step 0; `slow` names the networks that have a target network."""
    assert set(slow) <= set(params._fields), slow
    # Copied, because donated buffers must not alias.
    copied = jax.tree.map(jnp.copy, params)
    targets = copied._replace(**{name: None for name in params._fields if name not in slow})
    rounded = type(params)(*map(nets.rounded, zip(params, targets, strict=True)))
    return State(params, targets, _ADAM.init(params), jnp.zeros((), jnp.int32), rounded)


def working(state: State) -> tuple[Any, Any]:
    """Parameters and targets as losses use them, that is with rounded weights."""
    seen = _each(state, lambda network, weights: (nets.with_weights(network, weights), weights))
    return seen.params, seen.targets


def halved(state: State) -> State:
    """A smaller form of the state, carried from step to step on a GPU.

    For weights between hidden layers it holds the 16 bits that are missing in `rounded` instead of the whole weight.
    Adam and the target networks then move 34 bytes per weight instead of 38, and nothing is lost. First and last layers
    stay whole: with them in halves too, a GPU, and nothing else, left the actor's last layer behind in the target
    network, for a reason that was not found (docs/performance.md).
    """
    return _each(state, lambda network, _: _halved(network))


def whole(state: State) -> State:
    """The inverse of `halved`."""
    return _each(state, lambda network, weights: (_whole(network, weights), weights))


def _each(state: State, change: Callable[[Any, list[Array]], tuple[Any, list[Array]]]) -> State:
    """The state after `change` of every pair (network, target network) and its rounded weights."""
    pairs = zip(zip(state.params, state.targets, strict=True), state.rounded, strict=True)
    both, rounded = zip(*(change(pair, weights) for pair, weights in pairs), strict=True)
    params, targets = (type(state.params)(*networks) for networks in zip(*both, strict=True))
    return state._replace(params=params, targets=targets, rounded=type(state.params)(*rounded))


def _halved(network: Any) -> tuple[Any, list[Array]]:
    both = zip(nets.rounded(network), nets.weights(network), strict=True)
    pairs = [numerics.halves(weight) if weight.shape[-2:] == HALVED else (upper, weight) for upper, weight in both]
    return nets.with_weights(network, [rest for _, rest in pairs]), [rounded for rounded, _ in pairs]


def _whole(network: Any, rounded: list[Array]) -> Any:
    """The network with whole weights, whether it was `_halved` or not."""
    pairs = zip(rounded, nets.weights(network), strict=True)
    weights = [numerics.whole(upper, rest) if rest.dtype == jnp.int16 else rest for upper, rest in pairs]
    return nets.with_weights(network, weights)


def descend(
    state: State,
    loss: Callable[[Any], tuple[Float[Array, ""], Metrics]],
    learning_rate: Float[Array, ""] | float,
    ema_rate: Float[Array, ""] | float,
) -> tuple[State, Metrics]:
    """The state after one step of Adam, and the loss's metrics. Targets move towards the new networks by `ema_rate`.

    The gradient norm is not among the metrics: it would read all gradients again, 0.25 ms per step of 25 agents on a
    GPU.
    """
    gradients, metrics = jax.grad(loss, has_aux=True)(working(state)[0])
    adam: Any = state.adam
    common = adam.count, jnp.asarray(learning_rate), jnp.asarray(ema_rate)
    networks = zip(gradients, state.params, adam.mu, adam.nu, state.targets, state.rounded, strict=True)
    moved = zip(*(_moved(g, p, m, v, t, r, *common) for g, p, m, v, t, r in networks), strict=True)
    params, mu, nu, targets, rounded = (type(state.params)(*networks) for networks in moved)
    adam = adam._replace(count=optax.safe_increment(adam.count), mu=mu, nu=nu)
    return State(params, targets, adam, state.step + 1, rounded), metrics


def _moved(
    gradients: Any,
    params: Any,
    mu: Any,
    nu: Any,
    target: Any,
    rounded: Any,
    count: Int[Array, ""],
    learning_rate: Float[Array, ""],
    ema_rate: Float[Array, ""],
) -> tuple[Any, Any, Any, Any, Any]:
    """One network after the step: parameters, both moments, target network and rounded weights.

    Barriers (`apart`) separate it from the other networks, with which it shares the learning rate and the resulting
    state: one fused kernel for all networks would have to wait for the last gradient. Gradients have no barrier, or
    they would be written to memory before they are read.
    """
    # mu is in the barrier to make it this network's own: barriers around the same scalars only would be merged into
    # one. Scalars are duplicated into arrays of two, because XLA fuses the updates of many weights only if what they
    # share is an array, which a scalar of a single agent is not.
    mu, *shared = apart((mu, *(jnp.stack([number, number]) for number in (count, learning_rate, ema_rate))))
    count, learning_rate, ema_rate = (pair[0] for pair in shared)
    in_halves = any(weight.dtype == jnp.int16 for weight in nets.weights(params))
    params, target = _whole((params, target), rounded)
    gradients = jax.tree.map(lambda g, p: g.astype(p.dtype), gradients, params)
    adam: Any = optax.ScaleByAdamState(count, mu, nu)
    moves, adam = _ADAM.update(gradients, adam)
    params = jax.tree.map(lambda p, m: p - learning_rate * m, params, moves)
    both = params, None if target is None else nets.ema(target, params, ema_rate)
    (params, target), rounded = _halved(both) if in_halves else (both, nets.rounded(both))
    return apart((params, adam.mu, adam.nu, target, rounded))
