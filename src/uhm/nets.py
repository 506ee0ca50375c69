"""The networks: MLP, critic ensemble, tanh actor, reward, and the vector field of a flow model.

A module is its own parameter pytree: all leaves are arrays, everything else is static, so targets, EMA, ensembles and
populations are `jax.tree.map` and `jax.vmap` over modules. Inputs are `[..., features]` with any leading axes, matrices
act from the right, and vmapping a module over members turns its matmuls into batched ones.

`compute_dtype="bfloat16"` rounds the inputs of every matmul, forward and backward, and the activations passed between
layers; accumulation, biases, GELU, LayerNorm and a network's output are float32. Weights may be passed in already
rounded; their gradients are then rounded too.
"""

import math
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any, Literal, TypeVar, get_args

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, PRNGKeyArray

from uhm.errors import unknown
from uhm.kernels import normed
from uhm.numerics import biased, product

HIDDEN = (512, 512, 512, 512)
Embedding = Literal["sincos", "scalar", "onehot", "none"]
_SINCOS_SIZE = 64
_Tree = TypeVar("_Tree")


def _join(*parts: Float[Array, "..."] | None) -> Float[Array, "..."]:
    """Concatenate features, leaving out what is None."""
    return jnp.concatenate([part for part in parts if part is not None], axis=-1)


class Linear(eqx.Module):
    """The parameters of x W + b."""

    weight: Float[Array, "I O"]
    bias: Float[Array, " O"]


class LayerNorm(eqx.Module):
    """The parameters of `numerics.layer_norm`, which calls its bias a shift."""

    scale: Float[Array, " H"]
    bias: Float[Array, " H"]

    def __init__(self, size: int):
        self.scale, self.bias = jnp.ones(size), jnp.zeros(size)


class MLP(eqx.Module):
    """Dense, GELU (tanh form), LayerNorm, repeated; the last layer is a plain Dense.

    LayerNorm comes after the activation. Kernels start uniform with variance 1 / mean(fan in, fan out), times
    `final_scale` in the last layer (Glorot at 1), and biases at 0.
    """

    layers: tuple[Linear, ...]
    norms: tuple[LayerNorm, ...]
    compute_dtype: str | None = eqx.field(static=True)

    def __init__(
        self,
        inputs: int,
        outputs: int,
        key: PRNGKeyArray,
        hidden: tuple[int, ...] = HIDDEN,
        layer_norm: bool = False,
        final_scale: float = 1.0,
        compute_dtype: str | None = None,
    ):
        shapes = tuple(pairwise((inputs, *hidden, outputs)))
        # One draw for all kernels: each random call costs a third of a second of compilation on a CPU.
        draw = jax.random.uniform(key, (sum(i * o for i, o in shapes),), minval=-1.0)
        layers, used = [], 0
        for i, o in shapes:
            scale = final_scale if len(layers) == len(hidden) else 1.0
            weight = math.sqrt(6 * scale / (i + o)) * draw[used : used + i * o].reshape(i, o)
            layers.append(Linear(weight, jnp.zeros(o)))
            used += i * o
        self.layers = tuple(layers)
        self.norms = tuple(LayerNorm(size) for size in hidden) if layer_norm else ()
        self.compute_dtype = compute_dtype

    def __call__(self, x: Float[Array, "*batch I"]) -> Float[Array, "*batch O"]:
        first = self.layers[0]
        z = product(x, first.weight, self.compute_dtype, hands_on=len(self.layers) > 1)
        return self.after_first(z, first.bias)

    def after_first(self, z: Float[Array, "*batch H"], bias: Float[Array, "*rows H"]) -> Float[Array, "*batch O"]:
        """The rest of the network, given the first matmul's result and a bias: a vector, or a row for each row of z."""
        for i, layer in enumerate(self.layers[1:]):
            h = normed(z, bias, *((self.norms[i].scale, self.norms[i].bias) if self.norms else ()))
            z = product(h, layer.weight, self.compute_dtype, hands_on=layer is not self.layers[-1])
            bias = layer.bias
        return biased(z, bias)


class Critic(eqx.Module):
    """An ensemble of independently initialised Q(s, a), stacked along the first axis of every leaf.

    With `action_size=0` and no action it is an ensemble of V(s).
    """

    ensemble: MLP

    def __init__(
        self,
        state_size: int,
        action_size: int,
        key: PRNGKeyArray,
        hidden: tuple[int, ...] = HIDDEN,
        members: int = 2,
        layer_norm: bool = True,
        compute_dtype: str | None = None,
    ):
        def member(key: PRNGKeyArray) -> MLP:
            return MLP(state_size + action_size, 1, key, hidden, layer_norm, compute_dtype=compute_dtype)

        self.ensemble = jax.vmap(member)(jax.random.split(key, members))

    def __call__(
        self,
        s: Float[Array, "*batch S"],
        a: Float[Array, "*batch A"] | None = None,
        apply: Callable[[MLP, Array], Array] = MLP.__call__,
    ) -> Float[Array, " E *batch"]:
        """All values of every row; `apply` is how one of the networks is evaluated."""
        x = _join(s, a)
        # The input is copied for each critic: for a shared input XLA does one matmul with all weights side by side, and
        # then has to transpose the result.
        members = self.ensemble.layers[0].bias.shape[0]
        return jax.vmap(apply)(self.ensemble, jnp.broadcast_to(x, (members, *x.shape)))[..., 0]


class Actor(eqx.Module):
    """Deterministic policy: tanh of an MLP whose last layer starts small, so that actions start near 0."""

    mlp: MLP

    def __init__(
        self,
        state_size: int,
        action_size: int,
        key: PRNGKeyArray,
        hidden: tuple[int, ...] = HIDDEN,
        layer_norm: bool = False,
        final_scale: float = 0.01,
        compute_dtype: str | None = None,
    ):
        self.mlp = MLP(state_size, action_size, key, hidden, layer_norm, final_scale, compute_dtype)

    def __call__(self, s: Float[Array, "*batch S"]) -> Float[Array, "*batch A"]:
        return jnp.tanh(self.mlp(s))


class RewardNet(eqx.Module):
    """R(s, a), one number per row."""

    mlp: MLP

    def __init__(
        self,
        state_size: int,
        action_size: int,
        key: PRNGKeyArray,
        hidden: tuple[int, ...] = HIDDEN,
        layer_norm: bool = True,
        compute_dtype: str | None = None,
    ):
        self.mlp = MLP(state_size + action_size, 1, key, hidden, layer_norm, compute_dtype=compute_dtype)

    def __call__(self, s: Float[Array, "*batch S"], a: Float[Array, "*batch A"]) -> Float[Array, "*batch"]:
        return self.mlp(_join(s, a))[..., 0]


class VectorField(eqx.Module):
    """The velocity v(x_tau | s, a, n, tau) of a flow model: an MLP on the concatenation [x, tau, s, a, embedding(n)].

    The horizon n enters as 64 sine and cosine features (`sincos`), as n/K (`scalar`), one-hot over 1..K (`onehot`), or
    not at all (`none`: a geometric horizon model, a one-step model, or with `action_size=0` a flow policy).

    The first Dense is split by rows: `c = condition(s, a, n)` is the part that stays the same during an ODE solve and
    `field(x, tau, c)` adds the part that moves, so 10 evaluations pay for the conditioning once.
    """

    mlp: MLP
    x_size: int = eqx.field(static=True)
    horizon: str = eqx.field(static=True)
    max_horizon: int = eqx.field(static=True)

    def __init__(
        self,
        x_size: int,
        state_size: int,
        action_size: int,
        key: PRNGKeyArray,
        hidden: tuple[int, ...] = HIDDEN,
        horizon: str = "sincos",
        max_horizon: int = 1,
        layer_norm: bool = True,
        compute_dtype: str | None = None,
    ):
        sizes = {"sincos": _SINCOS_SIZE, "scalar": 1, "onehot": max_horizon, "none": 0}
        if horizon not in sizes:
            raise unknown("embedding of the horizon", horizon, get_args(Embedding))
        inputs = x_size + 1 + state_size + action_size + sizes[horizon]
        self.mlp = MLP(inputs, x_size, key, hidden, layer_norm, compute_dtype=compute_dtype)
        self.x_size, self.horizon, self.max_horizon = x_size, horizon, max_horizon

    def embed(self, n: Int[Array, "*batch"]) -> Float[Array, "*batch N"] | None:
        """Features of the horizon n >= 1."""
        if self.horizon == "none":
            return None
        if self.horizon == "onehot":
            return jax.nn.one_hot(n - 1, self.max_horizon)
        if self.horizon == "scalar":
            return (n / self.max_horizon)[..., None]
        frequencies = jnp.logspace(0, -4, _SINCOS_SIZE // 2)
        angles = n[..., None] * frequencies
        return _join(jnp.sin(angles), jnp.cos(angles))

    def condition(
        self,
        s: Float[Array, "*batch S"],
        a: Float[Array, "*batch A"] | None = None,
        n: Int[Array, "*batch"] | None = None,
    ) -> Float[Array, "*batch H"]:
        """What (s, a, n) contribute to the first Dense, its bias included. `n` is ignored by the embedding `none`."""
        if n is None and self.horizon != "none":
            raise ValueError(f"a vector field with the '{self.horizon}' embedding needs the horizon n")
        first, features = self.mlp.layers[0], _join(s, a, None if n is None else self.embed(n))
        weight = first.weight[self.x_size + 1 :]
        return biased(product(features, weight, self.mlp.compute_dtype, hands_on=False), first.bias)

    def __call__(
        self, x: Float[Array, "*batch X"], tau: Float[Array, "..."], c: Float[Array, "*batch H"]
    ) -> Float[Array, "*batch X"]:
        """The velocity at x, given `c` from `condition`. `tau` is a scalar or one per row."""
        tau = jnp.broadcast_to(tau[..., None], (*x.shape[:-1], 1))
        weight = self.mlp.layers[0].weight[: self.x_size + 1]
        moving = product(_join(x, tau), weight, self.mlp.compute_dtype, hands_on=True)
        return self.mlp.after_first(moving, c)

    def velocity(
        self,
        x: Float[Array, "*batch X"],
        tau: Float[Array, "..."],
        s: Float[Array, "*batch S"],
        a: Float[Array, "*batch A"] | None = None,
        n: Int[Array, "*batch"] | None = None,
    ) -> Float[Array, "*batch X"]:
        """v(x | s, a, n, tau) in one call."""
        return self(x, tau, self.condition(s, a, n))


def rounded(tree: Any) -> list[Float[Array, "..."]]:
    """The weights of every MLP with a `compute_dtype`, rounded to it."""
    return [layer.weight.astype(mlp.compute_dtype) for mlp in _rounding(tree) for layer in mlp.layers]


def weights(tree: Any) -> list[Any]:
    """The unrounded weights, in the order of `rounded`."""
    return [layer.weight for mlp in _rounding(tree) for layer in mlp.layers]


def with_weights(tree: _Tree, new: Sequence[Array]) -> _Tree:
    """The tree with `new` in place of its `weights`."""
    return eqx.tree_at(weights, tree, new) if new else tree


def _rounding(tree: Any) -> list[MLP]:
    nodes = jax.tree.leaves(tree, is_leaf=lambda node: isinstance(node, MLP))
    return [node for node in nodes if isinstance(node, MLP) and node.compute_dtype]


def ema(target: _Tree, online: _Tree, rate: float | Float[Array, ""]) -> _Tree:
    """The target moved towards the online tree by `rate` (the paper's eta = 0.005, which it calls a decay)."""
    return jax.tree.map(lambda t, o: t + rate * (o - t), target, online)


def parameter_count(tree: Any) -> int:
    """How many numbers a pytree of arrays holds."""
    return sum(leaf.size for leaf in jax.tree.leaves(tree))
