"""The building blocks of layers: matmuls with optional rounding, bias and GELU with custom gradients, and LayerNorm.

JAX's own gradient rules are correct but store more. With these, the gradient of a layer up to its activation needs only
the layer's input and matmul result, in bfloat16 where that is the compute precision. In a profile of 25 members on an
H200 (docs/performance.md) more time was spent between matmuls than in them. Bias and GELU gained 2 % there; on a CPU,
nothing.
"""

import functools
import math
from collections.abc import Callable
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

EPSILON = 1e-6  # of a variance
_Tree = TypeVar("_Tree")
MultiplyAdd = Callable[[Any, Any, Any], Array]
GELU = math.sqrt(2 / math.pi), math.sqrt(2 / math.pi) * 0.044715


def apart(tree: _Tree) -> _Tree:
    """The same values behind an optimization barrier, which their gradients pass in the backward pass too.

    XLA fuses operations that read the same array, or end in the same result. On a GPU that can make one wait for the
    other: a loss that needs only the batch, for a target that takes half of the step. XLA does not fuse across a
    barrier, and the compiled program has no trace of it left.
    """
    return jax.lax.optimization_barrier(tree)


def product(
    x: Float[Array, "*batch I"], weight: Float[Array, "I O"], compute_dtype: str | None, hands_on: bool
) -> Float[Array, "*batch O"]:
    """x W. The result is rounded only if another layer takes it as input (`hands_on`)."""
    if compute_dtype is None:
        return x @ weight
    return _rounded_product(x.astype(compute_dtype), weight, compute_dtype if hands_on else "float32")


@functools.partial(jax.custom_vjp, nondiff_argnums=(2,))
def _rounded_product(x: Float[Array, "*batch I"], weight: Float[Array, "I O"], out: str) -> Float[Array, "*batch O"]:
    """x W with W rounded like x, if it is not already. By JAX's own rule the gradient's matmuls would be float32."""
    return _matmul(x, weight.astype(x.dtype), out)


def _rounded_product_forward(x: Array, weight: Array, out: str) -> tuple[Array, tuple[Array, Array]]:
    return _rounded_product(x, weight, out), (x, weight)


def _rounded_product_backward(out: str, factors: tuple[Array, Array], slope: Array) -> tuple[Array, Array]:
    x, weight = factors
    slope = slope.astype(x.dtype)
    rows, slopes = (leaf.reshape(-1, leaf.shape[-1]) for leaf in (x, slope))
    return _matmul(slope, weight.astype(x.dtype).T, x.dtype.name), _matmul(rows.T, slopes, weight.dtype.name)


_rounded_product.defvjp(_rounded_product_forward, _rounded_product_backward)


def _matmul(a: Float[Array, "*batch I"], b: Float[Array, "I O"], out: str) -> Float[Array, "*batch O"]:
    """A matmul of rounded inputs, accumulated in float32. On a CPU XLA lacks such matmuls, or has not all shapes."""
    return jax.lax.platform_dependent(
        a,
        b,
        cpu=lambda a, b: jnp.matmul(a.astype(jnp.float32), b.astype(jnp.float32)).astype(out),
        default=lambda a, b: jnp.matmul(a, b, preferred_element_type=jnp.dtype(out)),
    )


def halves(x: Float[Array, "*shape"]) -> tuple[Float[Array, "*shape"], Int[Array, "*shape"]]:
    """x rounded to bfloat16, and the 16 bits by which it differs from that: together they are x, exactly.

    Ties are rounded away from zero, so that the difference fits into a signed 16-bit integer.
    """
    bits = jax.lax.bitcast_convert_type(x, jnp.int32) + 0x8000
    rest = (bits & 0xFFFF) - 0x8000
    return jax.lax.bitcast_convert_type((bits >> 16).astype(jnp.int16), jnp.bfloat16), rest.astype(jnp.int16)


def whole(rounded: Float[Array, "*shape"], rest: Int[Array, "*shape"]) -> Float[Array, "*shape"]:
    """The inverse of `halves`."""
    upper = jax.lax.bitcast_convert_type(rounded, jnp.int16).astype(jnp.int32) << 16
    return jax.lax.bitcast_convert_type(upper + rest.astype(jnp.int32), jnp.float32)


def biased(y: Float[Array, "*batch O"], bias: Float[Array, "*rows O"]) -> Float[Array, "*batch O"]:
    """y + b, where b is a vector, or a matrix with a row for each row of y."""
    return _biased(y, bias) if bias.ndim == 1 else y + bias


@jax.custom_vjp
def _biased(y: Float[Array, "*batch O"], bias: Float[Array, " O"]) -> Float[Array, "*batch O"]:
    """If y was rounded, so is its gradient, and b's is summed from the rounded one: then only that has to be stored."""
    return y + bias


def _biased_backward(like: Array, slope: Array) -> tuple[Array, Array]:
    rounded = slope.astype(like.dtype)
    return rounded, rounded.astype(slope.dtype).reshape(-1, slope.shape[-1]).sum(0)


_biased.defvjp(lambda y, bias: (y + bias, y), _biased_backward)


def multiply_add(a: Array | float, b: Array, c: Array | float) -> Array:
    """a b + c, which a GPU can do in one instruction."""
    return a * b + c


@jax.custom_vjp
def gelu(x: Float[Array, "*batch H"]) -> Float[Array, "*batch H"]:
    """x/2 (1 + tanh u) with u = sqrt(2/pi) (x + 0.044715 x^3), written as x sigmoid(2u).

    Its gradient computes the sigmoid again, so that none has to be stored.
    """
    return x * gate(x)


def gate(x: Array, tanh: Callable[[Array], Array] | None = None, fma: MultiplyAdd = multiply_add) -> Array:
    """gelu(x) / x; computed with `tanh` if given, since a kernel may have a fast one."""
    u = x * fma(GELU[1], x * x, GELU[0])
    return jax.nn.sigmoid(2 * u) if tanh is None else fma(0.5, tanh(u), 0.5)


def gate_slope(x: Array, gated: Array, fma: MultiplyAdd = multiply_add) -> Array:
    """The derivative of `gelu` at x, where `gated` is its gate: with g = gated, g + g (1 - g) 2 x du/dx."""
    return fma(fma(-gated, gated, gated), x * fma(6 * GELU[1], x * x, 2 * GELU[0]), gated)


def _gelu_backward(x: Array, slope: Array) -> tuple[Array]:
    return (slope * gate_slope(x, gate(x)),)


gelu.defvjp(lambda x: (gelu(x), x), _gelu_backward)


def layer_norm(
    x: Float[Array, "*batch H"], scale: Float[Array, " H"], shift: Float[Array, " H"]
) -> Float[Array, "*batch H"]:
    """(x - mean) / sqrt(variance + 1e-6) over features, then scale and shift."""
    return normalised(x)[0] * scale + shift


def normalised(x: Float[Array, "*batch H"]) -> tuple[Float[Array, "*batch H"], Float[Array, "*batch 1"]]:
    """(x - mean) / deviation over features, and 1 / deviation."""
    centred = x - mean(x)
    rate = jax.lax.rsqrt(mean(centred * centred) + EPSILON)
    return centred * rate, rate


def mean(x: Float[Array, "*batch H"]) -> Float[Array, "*batch 1"]:
    """Over features."""
    return x.sum(-1, keepdims=True) / x.shape[-1]
