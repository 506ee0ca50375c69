"""What is between two matmuls of a network (bias, GELU and LayerNorm) as one kernel per direction.

    h = LayerNorm(gelu(z + b)), or gelu(z + b)      forward
    dh -> dz, and db, dscale, dshift                backward; the last three are sums over rows

XLA also makes one kernel of the forward pass, but two to six of the backward pass. With these kernels a step of 25
agents takes a quarter less time (docs/performance.md, which also describes what was tried and given up).

`plain` is the definition, and is used wherever `chosen` is False or sizes do not fit. The kernels are written with
Pallas for Triton and selected on Hopper GPUs in bfloat16, where they were measured; UHM_KERNELS=off disables them. Sums
are float32, and results are rounded like z. GELU's tanh is the GPU's own instruction instead of exp and a division; its
error of 2^-11 is an eighth of the error of rounding a number near 1 to bfloat16. A program (one thread block) writes
its partial sums over rows ("shares"), which are always added up in the same order, so that runs repeat bit by bit.
"""

import contextlib
import contextvars
import dataclasses
import functools
import math
import os
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from uhm.errors import UhmError
from uhm.numerics import EPSILON, MultiplyAdd, biased, gate, gate_slope, gelu, layer_norm, multiply_add

VARIABLE = "UHM_KERNELS"
_WIDTHS = (64, 128, 256, 512, 1024)
_HOPPER = "9.0"
_MOSAIC = {(0, 10), (0, 11)}  # JAX versions: the API that `uhm.ode_kernel` is written for still changes
ODE_AGENTS = 25  # `uhm.ode_kernel` was measured to be faster with this many agents, and slower with five


class Launch(NamedTuple):
    """How a kernel is launched: rows and warps per program. `interpret` runs it as plain JAX, slowly, for tests."""

    rows: int
    warps: int
    interpret: bool = False


FORWARD = Launch(8, 8)
BACKWARD = Launch(8, 1)  # for many agents
OF_FEW = Launch(4, 1)  # backward for few: uses more multiprocessors, but leaves more partial sums to add
MANY = 25  # agents; nothing was measured between five and 25
_agents: contextvars.ContextVar[int] = contextvars.ContextVar("agents", default=1)
_left_out: contextvars.ContextVar[bool] = contextvars.ContextVar("left out", default=False)
_PIECE = 128  # columns that a warp reads at once


def chosen() -> bool:
    """Whether this process uses the kernels where they fit: its GPU is of the kind they were measured on."""
    if _left_out.get():
        return False
    wanted = os.environ.get(VARIABLE) or "auto"
    if wanted not in ("auto", "off"):
        raise UhmError(f"{VARIABLE} is '{wanted}', and must be 'auto' or 'off'.")
    return wanted == "auto" and _hopper()


@contextlib.contextmanager
def left_out() -> Iterator[None]:
    """While a program is traced that must run on any device."""
    token = _left_out.set(True)
    try:
        yield
    finally:
        _left_out.reset(token)


def knows_mosaic() -> bool:
    """Whether the ODE kernel was written for this version of JAX."""
    return jax.__version_info__[:2] in _MOSAIC


@contextlib.contextmanager
def for_agents(count: int) -> Iterator[None]:
    """Active while a program for `count` agents is traced: the tracing itself sees one agent, vmap adds the others."""
    token = _agents.set(count)
    try:
        yield
    finally:
        _agents.reset(token)


def agents() -> int:
    """The number of agents of the program that is being traced, as set by `for_agents`."""
    return _agents.get()


def description() -> str:
    """Which kernels are used, in words."""
    if chosen():
        return "fused in bfloat16" + (f", and of {ODE_AGENTS} agents the ODE solve" if knows_mosaic() else "")
    return f"XLA's, by {VARIABLE}" if _hopper() else "XLA's (fused ones are for Hopper GPUs)"


@functools.cache
def _hopper() -> bool:
    return jax.default_backend() == "gpu" and getattr(jax.devices()[0], "compute_capability", None) == _HOPPER


def normed(
    z: Float[Array, "*batch H"],
    bias: Float[Array, "*rows H"],
    scale: Float[Array, " H"] | None = None,
    shift: Float[Array, " H"] | None = None,
) -> Float[Array, "*batch H"]:
    """LayerNorm(gelu(z + bias)), or gelu(z + bias) if `scale` and `shift` are None.

    The bias is a vector, or a matrix with a row for each row of z.
    """
    if not (chosen() and fits(z, bias)):
        return plain(z, bias, scale, shift)
    backward = BACKWARD if agents() >= MANY else OF_FEW
    # An agent that learns on the GPU may be asked to act on the CPU.
    return jax.lax.platform_dependent(
        z, bias, scale, shift, default=plain, cuda=lambda *arguments: fused(*arguments, FORWARD, backward)
    )


def fits(z: Float[Array, "*batch H"], bias: Float[Array, "*rows H"]) -> bool:
    """Whether rows fill whole tiles, in a supported width, and are bfloat16, for which the kernels were measured."""
    rows = z.size // z.shape[-1]
    whole = z.shape[-1] in _WIDTHS and rows % FORWARD.rows == 0 and rows % BACKWARD.rows == 0
    return whole and z.dtype == jnp.bfloat16 and bias.shape in (z.shape, z.shape[-1:])


def plain(
    z: Float[Array, "*batch H"],
    bias: Float[Array, "*rows H"],
    scale: Float[Array, " H"] | None = None,
    shift: Float[Array, " H"] | None = None,
) -> Float[Array, "*batch H"]:
    """The definition of `normed`."""
    h = gelu(biased(z, bias))
    return (h if scale is None or shift is None else layer_norm(h, scale, shift)).astype(z.dtype)


@functools.partial(jax.custom_vjp, nondiff_argnums=(4, 5))
def fused(
    z: Float[Array, "*batch H"],
    bias: Float[Array, "*rows H"],
    scale: Float[Array, " H"] | None = None,
    shift: Float[Array, " H"] | None = None,
    forward: Launch = FORWARD,
    backward: Launch = BACKWARD,
) -> Float[Array, "*batch H"]:
    """`plain` as a kernel, and its gradient as another."""
    return _made(z, bias, scale, shift, forward)[0]


def _made(z: Array, bias: Array, scale: Array | None, shift: Array | None, launch: Launch) -> list[Array]:
    """The result and, if there is a norm, mean and 1 / deviation of each row."""
    if scale is None or shift is None:
        return _run(_gelu_forward, launch, (z, bias))
    return _run(_normed_forward, launch, (z, bias), (scale, shift), more=2)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class _Kept:
    """Residuals for the backward pass. A frozen network (the critics in the actor's loss) needs no sums over rows."""

    z: Array
    bias: Array
    scale: Array | None
    numbers: tuple[Array, ...]  # mean and 1 / deviation of each row
    learns: bool = dataclasses.field(metadata={"static": True})


def _fused_forward(z: Any, bias: Any, scale: Any, shift: Any, forward: Launch, backward: Launch) -> tuple[Array, _Kept]:
    of_norm = [None if vector is None else vector.value for vector in (scale, shift)]
    h, *numbers = _made(z.value, bias.value, of_norm[0], of_norm[1], forward)
    vectors = [vector for vector in (scale, shift, bias) if vector is not None and vector.value.ndim == 1]
    return h, _Kept(z.value, bias.value, of_norm[0], tuple(numbers), any(vector.perturbed for vector in vectors))


def _fused_backward(forward: Launch, backward: Launch, kept: _Kept, slope: Any) -> tuple[Array | None, ...]:
    by_row = kept.z, kept.bias, slope
    if kept.scale is None:
        dz, *shares = _run(_gelu_backward, backward, by_row, shares=1 if kept.learns else 0)
    else:
        dz, *shares = _run(_normed_backward, backward, by_row, (kept.scale,), kept.numbers, shares=3 * kept.learns)
    dbias, dscale, dshift = [*(shares[0].astype(jnp.float32).sum(0) if shares else []), None, None, None][:3]
    return dz, dbias if kept.bias.ndim == 1 else dz.astype(kept.bias.dtype), dscale, dshift


fused.defvjp(_fused_forward, _fused_backward, symbolic_zeros=True)


class _How(NamedTuple):
    """The instructions that kernels compute with, and the number of rows that a program processes at once."""

    tanh: Callable[[Array], Array]
    fma: MultiplyAdd
    at_once: int


def _normed_forward(how: _How, z: Any, bias: Any, scale: Any, shift: Any, h: Any, means: Any, rates: Any) -> None:
    fma, columns, width = how.fma, _columns(z), z.shape[1]
    y = [x * gate(x, how.tanh, fma) for x in (_float(z, c) + _float(bias, c) for c in columns)]
    mean = functools.reduce(jnp.add, y).sum(1) / width
    y = [piece - mean[:, None] for piece in y]
    squares = jnp.zeros(y[0].shape)
    for piece in y:
        squares = fma(piece, piece, squares)
    rate = jax.lax.rsqrt(squares.sum(1) / width + EPSILON)
    for c, piece in zip(columns, y, strict=True):
        h[:, c] = fma(piece * rate[:, None], scale[c], shift[c]).astype(h.dtype)
    means[...], rates[...] = mean, rate


def _gelu_forward(how: _How, z: Any, bias: Any, h: Any) -> None:
    for c in _columns(z):
        x = _float(z, c) + _float(bias, c)
        h[:, c] = (x * gate(x, how.tanh, how.fma)).astype(h.dtype)


def _normed_backward(
    how: _How, z: Any, bias: Any, slope: Any, means: Any, rates: Any, scale: Any, dz: Any, *shares: Any
) -> None:
    fma, columns, width = how.fma, _columns(z), z.shape[1]

    def some(rows: Any, given: list[tuple[Array, Array]]) -> list[tuple[Array, ...]]:
        rate = rates[rows][:, None]
        offset, pieces, first, second = -means[rows][:, None] * rate, [], *[jnp.zeros(given[0][0].shape)] * 2
        for c, (x, g) in zip(columns, given, strict=True):
            gated = gate(x, how.tanh, fma)
            unit, scaled = fma(x * gated, rate, offset), g * scale[c]
            first, second = first + scaled, fma(scaled, unit, second)
            pieces.append((x, gated, unit, g, scaled))
        first, second = (-rate * total.sum(1)[:, None] / width for total in (first, second))
        made = []
        for x, gated, unit, g, scaled in pieces:
            dx = fma(unit, second, fma(scaled, rate, first)) * gate_slope(x, gated, fma)
            made.append((dx, g * unit, g))
        return made

    _row_by_row(how, (z, bias, slope), some, dz, *shares)


def _gelu_backward(how: _How, z: Any, bias: Any, slope: Any, dz: Any, *shares: Any) -> None:
    def some(rows: Any, given: list[tuple[Array, Array]]) -> list[tuple[Array, ...]]:
        return [(g * gate_slope(x, gate(x, how.tanh, how.fma), how.fma),) for x, g in given]

    _row_by_row(how, (z, bias, slope), some, dz, *shares)


def _row_by_row(
    how: _How, by_row: tuple[Any, Any, Any], some: Callable[[Any, Any], list[tuple[Array, ...]]], dz: Any, *shares: Any
) -> None:
    """A program's backward pass, `how.at_once` rows at a time, which `some` computes.

    `some` is given z + bias and the gradient of the result, and returns the gradient of z followed by whatever else is
    to be summed over rows.
    """
    from jax.experimental import pallas as pl

    z, bias, slope = by_row
    columns, turns = _columns(z), z.shape[0] // how.at_once

    def rows_of(turn: Array | int) -> Any:
        return pl.ds(turn * how.at_once, how.at_once)

    def fetched(turn: Array | int) -> list[tuple[Array, Array]]:
        return [(z[rows_of(turn), c], slope[rows_of(turn), c]) for c in columns]

    def one(turn: Array, carry: tuple[Any, list[Any]]) -> tuple[Any, list[Any]]:
        at_hand, sums = carry
        # Prefetch: the next rows are loaded while these are computed. In the last turn these rows are loaded again, and
        # not used.
        coming, rows = fetched(jnp.minimum(turn + 1, turns - 1)), rows_of(turn)
        given = [
            (x.astype(jnp.float32) + _float(bias, c, rows), g.astype(jnp.float32))
            for c, (x, g) in zip(columns, at_hand, strict=True)
        ]
        made = some(rows, given)
        for c, (first, *_) in zip(columns, made, strict=True):
            dz[rows, c] = first.astype(dz.dtype)
        return coming, jax.tree.map(jnp.add, sums, made) if shares else sums

    # Sums are kept per row until the end of the loop: adding up rows means adding across warps, which then have to wait
    # for one another.
    count = shares[0].shape[1] if shares else 0
    zeros = [(jnp.zeros((how.at_once, c.size)),) * count for c in columns]
    _, sums = jax.lax.fori_loop(0, turns, one, (fetched(0), zeros))
    for c, of_piece in zip(columns, sums, strict=True):
        for k, total in enumerate(of_piece):
            shares[0][0, k, c] = total.sum(0).astype(shares[0].dtype)


def _columns(z: Any) -> list[Any]:
    from jax.experimental import pallas as pl

    piece = min(z.shape[1], _PIECE)
    return [pl.ds(i, piece) for i in range(0, z.shape[1], piece)]


def _how(launch: Launch) -> _How:
    from jax.experimental.pallas import triton

    at_once = math.gcd(launch.rows, launch.warps)
    return _How(_exact_tanh, multiply_add, at_once) if launch.interpret else _How(triton.approx_tanh, _fma, at_once)


def _exact_tanh(x: Array) -> Array:
    return jnp.tanh(x)


def _fma(a: Any, b: Any, c: Any) -> Array:
    """a b + c in one instruction; Triton by itself would use two here."""
    from jax.experimental.pallas import triton

    a, b, c = jnp.broadcast_arrays(*(jnp.asarray(x, jnp.float32) for x in (a, b, c)))
    like = jax.ShapeDtypeStruct(a.shape, a.dtype)
    (made,) = triton.elementwise_inline_asm(
        "fma.rn.f32 $0, $1, $2, $3;", args=[a, b, c], constraints="=f,f,f,f", pack=1, result_shape_dtypes=[like]
    )
    return made


def _float(ref: Any, columns: Any, rows: Any = slice(None)) -> Array:
    """The given columns in float32: of a matrix for `rows`, of a vector as one row for all."""
    return (ref[rows, columns] if len(ref.shape) > 1 else ref[columns]).astype(jnp.float32)


# Jitted so that it is traced once for all layers of a kind; tracing each of them would take seconds in every program.
@functools.partial(jax.jit, static_argnames=("kernel", "launch", "more", "shares"), inline=True)
def _run(
    kernel: Callable[..., None],
    launch: Launch,
    by_row: tuple[Array, ...],
    vectors: tuple[Array, ...] = (),
    numbers: tuple[Array, ...] = (),
    more: int = 0,
    shares: int = 0,
) -> list[Array]:
    """Run a kernel over tiles of rows.

    `by_row` are matrices with one row for each (or a bias vector for all), `numbers` have one number per row, `vectors`
    are shared by all rows. The results are an array like `by_row[0]`, `more` arrays of one number per row and, if
    `shares` is not 0, that many sums over rows for every program. The sums are rounded like `by_row[0]`: in float32
    they would be two fifths of what the backward pass writes.
    """
    # Imported here, because it takes a quarter of a second, which every command would pay.
    from jax.experimental import pallas as pl
    from jax.experimental.pallas import triton

    shape, dtype = by_row[0].shape, by_row[0].dtype
    width, count = shape[-1], by_row[0].size // shape[-1]
    programs = count // launch.rows
    rows = pl.BlockSpec((launch.rows, width), lambda i: (i, 0))
    number = pl.BlockSpec((launch.rows,), lambda i: (i,))
    vector = pl.BlockSpec((width,), lambda i: (0,))
    like = lambda *shape: jax.ShapeDtypeStruct(shape, jnp.float32)  # noqa: E731
    outputs = [(rows, jax.ShapeDtypeStruct((count, width), dtype)), *[(number, like(count))] * more]
    if shares:
        sums = jax.ShapeDtypeStruct((programs, shares, width), dtype)
        outputs.append((pl.BlockSpec((1, shares, width), lambda i: (i, 0, 0)), sums))
    first, *rest = pl.pallas_call(
        functools.partial(kernel, _how(launch)),
        grid=(programs,),
        in_specs=[
            *(rows if x.ndim > 1 else vector for x in by_row),
            *[number] * len(numbers),
            *[vector] * len(vectors),
        ],
        out_specs=[spec for spec, _ in outputs],
        out_shape=[like for _, like in outputs],
        compiler_params=None if launch.interpret else triton.CompilerParams(num_warps=launch.warps, num_stages=1),
        interpret=launch.interpret,
        name=kernel.__name__[1:],
    )(*(x.reshape(-1, width) if x.ndim > 1 else x for x in by_row), *numbers, *vectors)
    return [first.reshape(shape), *rest]
