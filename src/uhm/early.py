"""The critics' backward pass, most of which is done before the target is known.

The gradient of mean_b (q_b - y_b)^2 is linear in the error e_b = 2 (q_b - y_b) / B of each row. So the derivatives of q
are propagated back through all layers while the target y is still being computed, and only sums over rows are left for
afterwards:

    h_i = LayerNorm(gelu(z_i)),   z_i = h_i-1 W_i + b_i,   derivatives g_i = dq/dh_i and d_i = dq/dz_i
    dW_i = h_i-1' (e d_i),   db_i = sum_b e d_i,   dscale_i = sum_b e g_i unit_i,   dshift_i = sum_b e g_i

These do not wait for one another. The total work is larger, so this is only for a single agent, which leaves most of a
GPU idle. What it has to compute is defined by `MLP.__call__`.
"""

from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from uhm import kernels
from uhm.nets import MLP, Linear
from uhm.numerics import biased, gelu, normalised, product


def pays(mlp: MLP) -> bool:
    """Whether this was measured to be faster: on a Hopper GPU in bfloat16, for one agent whose target takes a solve."""
    return kernels.chosen() and kernels.agents() == 1 and mlp.compute_dtype == "bfloat16" and bool(mlp.norms)


class _Layer(NamedTuple):
    """What is kept of a hidden layer: input x and matmul result z, and the derivatives of q by its output and by z."""

    x: Float[Array, "B I"]
    z: Float[Array, "B O"]
    by_h: Float[Array, "B O"]
    by_z: Float[Array, "B O"]


def values(mlp: MLP, x: Float[Array, "B I"]) -> Float[Array, "B 1"]:
    """mlp(x), for a network with LayerNorm and one output."""
    return _values(mlp, x.astype(mlp.compute_dtype or x.dtype))


@jax.custom_vjp
def _values(mlp: MLP, x: Float[Array, "B I"]) -> Float[Array, "B 1"]:
    return mlp(x)


def _forward(mlp: MLP, x: Float[Array, "B I"]) -> tuple[Float[Array, "B 1"], Any]:
    *hidden, last = mlp.layers
    dtype, given, pulls = mlp.compute_dtype, [x], []
    for layer, norm in zip(hidden, mlp.norms, strict=True):
        z = product(given[-1], layer.weight, dtype, hands_on=True)
        # Bias and norm get their gradients in `_backward`, so this backward pass skips their sums over rows.
        h, pull = jax.vjp(lambda z, norm=norm, layer=layer: kernels.normed(z, layer.bias, norm.scale, norm.bias), z)
        given.append(h)
        pulls.append((z, pull))
    end = given[-1]
    q = biased(product(end, last.weight, dtype, hands_on=False), last.bias)
    by_h, kept = jnp.broadcast_to(last.weight[:, 0].astype(end.dtype), end.shape), []
    for layer, x, (z, pull) in reversed(list(zip(hidden, given, pulls, strict=False))):
        (by_z,) = pull(by_h)
        kept.append(_Layer(x, z, by_h, by_z))
        by_h = product(by_z, layer.weight.T, dtype, hands_on=True)
    return q, (mlp, kept[::-1], end, by_h)


def _backward(kept: Any, e: Float[Array, "B 1"]) -> tuple[MLP, Float[Array, "B I"]]:
    mlp, layers, h, by_x = kept
    made, norms = [], []
    for (x, z, by_h, by_z), layer, norm in zip(layers, mlp.layers, mlp.norms, strict=False):
        slope = (e * by_z).astype(by_z.dtype)
        weight = product(x.T, slope, mlp.compute_dtype, hands_on=layer.weight.dtype == slope.dtype)
        made.append(Linear(weight, (e * by_z).sum(0)))
        unit = normalised(gelu(z.astype(jnp.float32) + layer.bias))[0]
        of_norm = (e * by_h * unit).sum(0), (e * by_h).sum(0)
        norms.append(eqx.tree_at(lambda norm: (norm.scale, norm.bias), norm, of_norm))
    weight = (e * h).sum(0)[:, None].astype(mlp.layers[-1].weight.dtype)
    made.append(Linear(weight, e.sum(0)))
    slopes = eqx.tree_at(lambda mlp: (mlp.layers, mlp.norms), mlp, (tuple(made), tuple(norms)))
    return slopes, (e * by_x).astype(by_x.dtype)


_values.defvjp(_forward, _backward)
