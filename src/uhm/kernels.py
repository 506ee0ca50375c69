"""What stands between two products of a network, bias, GELU and LayerNorm, as one kernel each way.

    h = LayerNorm(gelu(z + b))                  forward
    dh -> dz, and db, dscale, dshift            backward; the last three are sums over rows

XLA too makes one kernel of the way forward, but five or six of the way back. With these 25 agents take a fifth less
time for a step (docs/performance.md, which also says what was tried and given up).

`plain` is the definition and runs wherever `chosen` says no, or sizes do not fit. The kernels are written with Pallas
for Triton and chosen on Hopper GPUs in bfloat16, where they were measured; UHM_KERNELS=off leaves them out. Sums are
float32, and results are rounded as z is. GELU's tanh is the GPU's own instruction instead of exp and a division; its
error of 2^-11 is an eighth of what rounding a number near 1 to bfloat16 does. Programs write their shares of the sums
over rows, and those are added in one order, always, so that a run can be repeated bit by bit.
"""

import functools
import math
import os
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from uhm.errors import UhmError
from uhm.numerics import biased, gate, gate_slope, gelu, layer_norm, mean, normalised

Tanh = Callable[[Array], Array]

VARIABLE = "UHM_KERNELS"
_WIDTHS = (64, 128, 256, 512, 1024)
_HOPPER = "9.0"
_MOSAIC = {(0, 10), (0, 11)}  # versions of JAX: the interface that `uhm.ode_kernel` is written for still changes
ODE_AGENTS = 25  # `uhm.ode_kernel` was measured faster with so many, and slower with five


class Launch(NamedTuple):
    """How a kernel is run: rows and warps of one program. `interpret` is plain JAX on any device, slow, for tests."""

    rows: int
    warps: int
    interpret: bool = False


FORWARD = Launch(2, 2)
BACKWARD = Launch(8, 2)
_AT_ONCE = 2  # rows that a program has in hand on the way back


def chosen() -> bool:
    """Whether this process runs the kernels where they fit: it trains on a GPU of the kind they were measured on."""
    wanted = os.environ.get(VARIABLE) or "auto"
    if wanted not in ("auto", "off"):
        raise UhmError(f"{VARIABLE} is '{wanted}', and must be 'auto' or 'off'.")
    return wanted == "auto" and _hopper()


def knows_mosaic() -> bool:
    """Whether this is a version of JAX for which the kernel of ODE solves was written."""
    return jax.__version_info__[:2] in _MOSAIC


def description() -> str:
    """The choice, for people."""
    if chosen():
        return "fused in bfloat16" + (f", and of {ODE_AGENTS} agents the ODE solve" if knows_mosaic() else "")
    return f"XLA's, by {VARIABLE}" if _hopper() else "XLA's (fused ones are for Hopper GPUs)"


@functools.cache
def _hopper() -> bool:
    return jax.default_backend() == "gpu" and getattr(jax.devices()[0], "compute_capability", None) == _HOPPER


def normed(
    z: Float[Array, "*batch H"], bias: Float[Array, "*rows H"], scale: Float[Array, " H"], shift: Float[Array, " H"]
) -> Float[Array, "*batch H"]:
    """LayerNorm(gelu(z + bias)). The bias is a vector, or a matrix with a row for each row of z."""
    if not (chosen() and fits(z, bias)):
        return plain(z, bias, scale, shift)
    # An agent that learns on the device may be asked to act on the host.
    return jax.lax.platform_dependent(z, bias, scale, shift, default=plain, cuda=lambda *arguments: fused(*arguments))


def fits(z: Float[Array, "*batch H"], bias: Float[Array, "*rows H"]) -> bool:
    """Whether rows fill whole tiles, of bfloat16, for which the kernels were measured."""
    rows = z.size // z.shape[-1]
    whole = z.shape[-1] in _WIDTHS and rows % FORWARD.rows == 0 and rows % BACKWARD.rows == 0
    return whole and z.dtype == jnp.bfloat16 and bias.shape in (z.shape, z.shape[-1:])


def plain(
    z: Float[Array, "*batch H"], bias: Float[Array, "*rows H"], scale: Float[Array, " H"], shift: Float[Array, " H"]
) -> Float[Array, "*batch H"]:
    """The definition of `normed`."""
    return layer_norm(gelu(biased(z, bias)), scale, shift).astype(z.dtype)


@functools.partial(jax.custom_vjp, nondiff_argnums=(4, 5))
def fused(
    z: Float[Array, "*batch H"],
    bias: Float[Array, "*rows H"],
    scale: Float[Array, " H"],
    shift: Float[Array, " H"],
    forward: Launch = FORWARD,
    backward: Launch = BACKWARD,
) -> Float[Array, "*batch H"]:
    """`plain` as a kernel, and its gradient as another."""
    return _run(_forward, forward, (z, bias), (scale, shift), shares=0)[0]


def _fused_forward(
    z: Array, bias: Array, scale: Array, shift: Array, forward: Launch, backward: Launch
) -> tuple[Array, tuple[Array, Array, Array]]:
    return fused(z, bias, scale, shift, forward, backward), (z, bias, scale)


def _fused_backward(
    forward: Launch, backward: Launch, kept: tuple[Array, Array, Array], slope: Array
) -> tuple[Array, Array, Array, Array]:
    z, bias, scale = kept
    dz, shares = _run(_backward, backward, (z, bias, slope), (scale,), shares=3)
    dbias, dscale, dshift = shares.sum(0)
    return dz, dbias if bias.ndim == 1 else dz.astype(bias.dtype), dscale, dshift


fused.defvjp(_fused_forward, _fused_backward)


def _forward(tanh: Tanh, z: Any, bias: Any, scale: Any, shift: Any, h: Any) -> None:
    scales, shifts = scale[...], shift[...]
    x = _float(z) + _float(bias)
    unit, _ = normalised(x * gate(x, tanh))
    h[...] = (unit * scales + shifts).astype(h.dtype)


def _backward(tanh: Tanh, z: Any, bias: Any, slope: Any, scale: Any, dz: Any, shares: Any) -> None:
    from jax.experimental import pallas as pl

    scales, at_once = scale[...], math.gcd(_AT_ONCE, z.shape[0])

    def some(i: Array, sums: tuple[Array, ...]) -> tuple[Array, ...]:
        rows = pl.ds(i * at_once, at_once), slice(None)
        x = _float(z, rows) + (_float(bias, rows) if len(bias.shape) > 1 else _float(bias))
        g, gated = _float(slope, rows), gate(x, tanh)
        unit, rate = normalised(x * gated)
        dscale, dshift = (g * unit).sum(0), g.sum(0)
        g *= scales
        g = rate * (g - mean(g) - unit * mean(g * unit)) * gate_slope(x, gated)
        dz[rows] = g.astype(dz.dtype)
        return tuple(a + b for a, b in zip(sums, (g.sum(0), dscale, dshift), strict=True))

    zeros = (jnp.zeros(z.shape[1]),) * 3
    shares[0, 0], shares[0, 1], shares[0, 2] = jax.lax.fori_loop(0, z.shape[0] // at_once, some, zeros)


def _exact_tanh(x: Array) -> Array:
    return jnp.tanh(x)


def _float(ref: Any, rows: Any = ...) -> Array:
    return ref[rows].astype(jnp.float32)


def _run(
    kernel: Callable[..., None], launch: Launch, by_row: tuple[Array, ...], vectors: tuple[Array, ...], shares: int
) -> list[Array]:
    """A kernel over tiles of rows: an array like the first, and of every program `shares` sums over its rows."""
    # Here, because it takes a quarter of a second, which every command would pay.
    from jax.experimental import pallas as pl
    from jax.experimental.pallas import triton

    shape, dtype = by_row[0].shape, by_row[0].dtype
    width, count = shape[-1], by_row[0].size // shape[-1]
    programs = count // launch.rows
    rows = pl.BlockSpec((launch.rows, width), lambda i: (i, 0))
    vector = pl.BlockSpec((width,), lambda i: (0,))
    # A bias may be either.
    arguments = [x.reshape(-1, width) if x.ndim > 1 else x for x in (*by_row, *vectors)]
    outputs = [(rows, jax.ShapeDtypeStruct((count, width), dtype))]
    if shares:
        share = pl.BlockSpec((1, shares, width), lambda i: (i, 0, 0))
        outputs.append((share, jax.ShapeDtypeStruct((programs, shares, width), jnp.float32)))
    first, *rest = pl.pallas_call(
        functools.partial(kernel, _exact_tanh if launch.interpret else triton.approx_tanh),
        grid=(programs,),
        in_specs=[rows if x.ndim > 1 else vector for x in arguments],
        out_specs=[spec for spec, _ in outputs],
        out_shape=[like for _, like in outputs],
        compiler_params=None if launch.interpret else triton.CompilerParams(num_warps=launch.warps, num_stages=1),
        interpret=launch.interpret,
        name="normed" + kernel.__name__,
    )(*arguments)
    return [first.reshape(shape), *rest]
