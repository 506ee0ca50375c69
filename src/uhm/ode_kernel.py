"""A flow model's whole ODE solve as one kernel: activations stay on the multiprocessor, weights stream through it.

A program (one thread block) takes 64 rows of a batch through all evaluations e of the velocity,

    z_1 = (in_e x) W_1 + c + tau_e w,   h_i = LayerNorm(gelu(z_i)),   z_i+1 = h_i W_i+1 + b_i+1,
    v = skip_e x + out_e (h_L W + b),   x <- base + size_e v,   base <- x at the end of a step,

where `in`, `skip` and `out` are numbers for each evaluation and dimension (they differ only for the flag of
`uhm.agents.horizon_model`), and c is the contribution of state, action and horizon to the first layer. Plain JAX
launches two kernels for each of 50 layers, and each waits for the one before it.

Three warpgroups share a program. Two compute, each one half of a layer's columns: 128 accumulators per thread. They
synchronise twice per layer: when both have summed their halves of all rows (for LayerNorm), and when both have written
their halves of h. The third loads weights and c, tile by tile in the order of their use, through one ring buffer for
each of the two.

What it has to compute is defined by `HorizonModel.follow`, in plain JAX. It is written with Pallas for Mosaic GPU, for
Hopper's warpgroup matmuls (wgmma), and selected where it was measured to be faster (docs/performance.md): with few
agents the plain solve keeps more multiprocessors busy.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from uhm import kernels
from uhm.nets import MLP
from uhm.numerics import EPSILON, GELU

ROWS = 64  # of a program: the least that a wgmma takes
SIZE = 64  # of x, padded
_WIDTHS = {128, 256, 512}
_MEASURED_WIDTH = 512  # the others are for tests
_MEASURED_ROWS = 256  # of an agent; larger batches were not measured
_MULTIPROCESSORS = 132  # of a Hopper GPU; each runs one program at a time
_SHARED_MEMORY = 224 << 10  # bytes that a program may have; Hopper's 227 KB less what barriers take
_HALVES = 2  # warpgroups that compute
_STAGES = 4  # tiles in a ring buffer
_COMPUTING, _LOADING = 232, 40  # registers of a thread; all threads together have 504 times 128 of them


class Weights(NamedTuple):
    """The parameters of a solve, in the kernel's layout."""

    first: Float[Array, "64 H"]
    hidden: tuple[Float[Array, "H H"], ...]
    last: Float[Array, "64 H"]  # see `blocks`
    vectors: Float[Array, "V H"]  # scale and shift of every norm, then the bias of every hidden layer, then w
    end: Float[Array, " 64"]  # bias of the last layer


class Schedule(NamedTuple):
    """The evaluations of a solve."""

    table: Float[np.ndarray, "E 3 64"]  # in, skip and out
    gap: float  # difference of tau between two evaluations
    sizes: tuple[float, ...]  # of the moves of x within one solver step (midpoint has two)


def pays(members: int, rows: int, width: int) -> bool:
    """Whether it was measured to be faster for this number of agents and of rows per agent, and this layer width."""
    if not (kernels.knows_mosaic() and width == _MEASURED_WIDTH and rows <= _MEASURED_ROWS):
        return False
    # It was with 25, 50 or 100 agents; not with 34, of whose 136 programs four do not fit into the first wave.
    programs, least = members * rows // ROWS, kernels.ODE_AGENTS * _MEASURED_ROWS // ROWS
    turns = -(-programs // _MULTIPROCESSORS)
    return programs >= least * max(turns, 1)


def fits(mlp: MLP, rows: int, size: int) -> bool:
    """Whether the kernel can solve for this number of rows, with an x of this size."""
    widths = {norm.scale.shape[-1] for norm in mlp.norms}
    whole = rows % ROWS == 0 and size <= SIZE and len(mlp.norms) > 1
    if not (whole and len(widths) == 1 and widths <= _WIDTHS and mlp.compute_dtype == "bfloat16"):
        return False
    (width,) = widths
    halves = _HALVES * _STAGES * SIZE * _tile(width)
    return 2 * (ROWS * width + halves) + 4 * 3 * len(mlp.norms) * width <= _SHARED_MEMORY


def _tile(width: int) -> int:
    """Columns of a tile of weights."""
    return min(128, width // _HALVES)


def weights(mlp: MLP, size: int) -> Weights:
    """The kernel's weights, from a network whose first inputs are x and tau."""
    first, *hidden, last = mlp.layers
    rows, columns = ((0, SIZE - size), (0, 0)), ((0, 0), (0, SIZE - size))
    norms = [vector for norm in mlp.norms for vector in (norm.scale, norm.bias)]
    vectors = [*norms, *(layer.bias for layer in hidden), first.weight[size].astype(jnp.float32)]
    return Weights(
        first=jnp.pad(first.weight[:size], rows).astype(jnp.bfloat16),
        hidden=tuple(layer.weight.astype(jnp.bfloat16) for layer in hidden),
        last=blocks(jnp.pad(last.weight, columns)).astype(jnp.bfloat16),
        vectors=jnp.stack(vectors),
        end=jnp.pad(last.bias, (0, SIZE - size)),
    )


def blocks(last: Float[Array, "H 64"]) -> Float[Array, "64 H"]:
    """The last weight as the kernel reads it: blocks of 64 rows side by side, so its tiles are as high as others."""
    width, size = last.shape
    return last.reshape(width // size, size, size).swapaxes(0, 1).reshape(size, width)


def solve(
    x: Float[Array, "B 64"], c: Float[Array, "B H"], weights: Weights, schedule: Schedule, interpret: Any = None
) -> Float[Array, "B 64"]:
    """x at the end. `interpret` are the parameters of Pallas's interpreter, for tests."""
    # Imported here, because it takes a quarter of a second, which every command would pay.
    from jax.experimental import pallas as pl
    from jax.experimental.pallas import mosaic_gpu as gpu

    rows, width = c.shape
    half, depth = width // _HALVES, len(weights.hidden)
    tile = _tile(width)
    across, down, ends = half // tile, width // SIZE, width // tile  # tiles in half a layer, and in the last layer
    evaluations = schedule.table.shape[0]
    of_evaluation = 2 * across + depth * down * across + ends
    norms = 2 * (depth + 1)
    assert max(across, ends) <= _STAGES  # tiles that are released together

    def place(e: Any, i: Any) -> Any:
        """Index of the first tile of hidden layer i in evaluation e, in the sequence of all tiles of one half.

        Within an evaluation the first layer and c come before the hidden layers, the last layer after them.
        """
        return e * of_evaluation + 2 * across + i * (down * across)

    def columns(who: Any, j: int) -> Any:
        """The columns of a layer that are in tile j of half `who`."""
        return pl.ds(who * half + j * tile, tile)

    def read(ref: Any, *where: Any) -> Array:
        """Load from global memory, without requiring a coalesced layout."""
        return ref[where] if interpret is not None else gpu.load(ref, where, optimized=False)

    def by_column(vector: Array, like: Array) -> Array:
        return jax.lax.broadcast_in_dim(vector, like.shape, [1])

    def by_row(vector: Array, like: Array) -> Array:
        return jax.lax.broadcast_in_dim(vector, like.shape, [0])

    def compute(refs: Any, scratch: dict[str, Any], who: Array, mine: Any) -> None:
        x_ref, _, weights_ref, table_ref, out_ref = refs
        h, vectors, sums, met = scratch["h"], scratch["vectors"].at[who], scratch["sums"], scratch["met"]
        gpu.copy_gmem_to_smem(
            weights_ref.vectors.at[:, pl.ds(who * half, half)], vectors, scratch["vectors_there"].at[who]
        )
        gpu.barrier_wait(scratch["vectors_there"].at[who])

        def meet(where: int) -> None:
            gpu.barrier_arrive(met.at[where])
            gpu.barrier_wait(met.at[where])

        def slot(count: Array) -> tuple[Any, Any, Any]:
            stage = jax.lax.rem(count, jnp.int32(_STAGES))
            barrier = who * _STAGES + stage
            return scratch["ring"].at[who, stage], scratch["filled"].at[barrier], scratch["emptied"].at[barrier]

        def multiply(count: Array, total: Any, factor: Any) -> None:
            weight, filled, _ = slot(count)
            gpu.barrier_wait(filled)
            gpu.wgmma(total, factor, weight)

        def release(count: Array) -> None:
            gpu.barrier_arrive(slot(count)[2])

        def column(j: int) -> Any:
            return pl.ds(j * tile, tile)

        def normed(z: list[Array], i: Any) -> None:
            """h becomes LayerNorm(gelu(z)); z are the pieces of this warpgroup's half."""
            pieces, total, squares = [], 0.0, 0.0
            for piece in z:
                # Twice GELU: LayerNorm cancels the factor (hence 4 EPSILON below).
                piece = piece + piece * jnp.tanh(piece * (GELU[0] + GELU[1] * (piece * piece)))
                total, squares = total + piece.sum(axis=1), squares + (piece * piece).sum(axis=1)
                pieces.append(piece)
            sums[0, who], sums[1, who] = total, squares
            meet(0)
            mean, square = ((sums[k, 0] + sums[k, 1]) * (1 / width) for k in (0, 1))
            rate = jax.lax.rsqrt(jnp.maximum(square - mean * mean, 0.0) + 4 * EPSILON)
            offset = -mean * rate
            for j, piece in enumerate(pieces):
                unit = piece * by_row(rate, piece) + by_row(offset, piece)
                scale, shift = vectors[2 * i, column(j)], vectors[2 * i + 1, column(j)]
                made = unit * by_column(scale, piece) + by_column(shift, piece)
                h[:, columns(who, j)] = made.astype(jnp.bfloat16)
            gpu.commit_smem()
            meet(1)

        def evaluate(e: Array, carry: tuple[Array, Array]) -> tuple[Array, Array]:
            base, x = carry
            start = e * of_evaluation
            meet(0)  # both are done with h

            @pl.when(who == 0)
            def _() -> None:
                h[:, pl.ds(0, SIZE)] = (x * by_column(read(table_ref, e, 0), x)).astype(jnp.bfloat16)
                gpu.commit_smem()

            meet(1)

            def first(*totals: Any) -> list[Array]:
                for j, total in enumerate(totals):
                    multiply(start + j, total, h.at[:, pl.ds(0, SIZE)])
                gpu.wgmma_wait(0)
                for j in range(across):
                    release(start + j)
                return [total[...] for total in totals]

            totals = [gpu.WGMMAAccumulatorRef((ROWS, tile), jnp.float32)] * across
            z = pl.run_scoped(first, *totals)
            tau = e.astype(jnp.float32) * schedule.gap
            for j, piece in enumerate(z):
                given, filled, _ = slot(start + across + j)
                gpu.barrier_wait(filled)
                z[j] = (
                    piece + given[...].astype(jnp.float32) + by_column(tau * vectors[norms + depth, column(j)], piece)
                )
                release(start + across + j)
            normed(z, 0)

            @pl.loop(0, depth)
            def _(i: Array) -> None:
                begin = place(e, i)

                def products(*totals: Any) -> list[Array]:
                    for k in range(down):
                        for j, total in enumerate(totals):
                            count = begin + k * across + j
                            multiply(count, total, h.at[:, pl.ds(k * SIZE, SIZE)])
                            if k or j:
                                gpu.wgmma_wait(1)
                                release(count - 1)
                    gpu.wgmma_wait(0)
                    release(begin + down * across - 1)
                    return [total[...] for total in totals]

                z = pl.run_scoped(products, *totals)
                normed([z[j] + by_column(vectors[norms + i, column(j)], z[j]) for j in range(across)], i + 1)

            begin = place(e, depth)

            def last(total: Any) -> Array:
                for q in range(ends):
                    weight, filled, _ = slot(begin + q)
                    gpu.barrier_wait(filled)
                    for k in range(0, tile, SIZE):
                        gpu.wgmma(total, h.at[:, pl.ds(q * tile + k, SIZE)], weight.at[:, pl.ds(k, SIZE)])
                gpu.wgmma_wait(0)
                for q in range(ends):
                    release(begin + q)
                return total[...]

            said = pl.run_scoped(last, gpu.WGMMAAccumulatorRef((ROWS, SIZE), jnp.float32))
            said += by_column(read(weights_ref.end, slice(None)), said)
            velocity = by_column(read(table_ref, e, 1), x) * x + by_column(read(table_ref, e, 2), x) * said
            at_end = jax.lax.rem(e, jnp.int32(len(schedule.sizes))) == len(schedule.sizes) - 1
            size = jnp.where(at_end, jnp.float32(schedule.sizes[-1]), jnp.float32(schedule.sizes[0]))
            x = base + size * velocity
            moves = jnp.where(at_end, jnp.float32(1), jnp.float32(0))
            return base + moves * (x - base), x

        x = read(x_ref, mine, slice(None))
        x, _ = jax.lax.fori_loop(0, evaluations, evaluate, (x, x))

        @pl.when(who == 0)
        def _() -> None:
            out_ref[mine, :] = x

    def load(refs: Any, scratch: dict[str, Any], mine: Any) -> None:
        c_ref, weights_ref = refs[1:3]

        def put(count: Array, tile_of: Any) -> None:
            stage = jax.lax.rem(count, jnp.int32(_STAGES))
            for who in range(_HALVES):
                barrier = who * _STAGES + stage

                @pl.when(count >= _STAGES)
                def _(barrier: Array = barrier) -> None:
                    gpu.barrier_wait(scratch["emptied"].at[barrier])

                gpu.copy_gmem_to_smem(tile_of(who), scratch["ring"].at[who, stage], scratch["filled"].at[barrier])

        @pl.loop(0, evaluations)
        def _(e: Array) -> None:
            for j in range(across):
                put(e * of_evaluation + j, lambda who, j=j: weights_ref.first.at[:, columns(who, j)])
            for j in range(across):
                put(e * of_evaluation + across + j, lambda who, j=j: c_ref.at[mine, columns(who, j)])
            for i, weight in enumerate(weights_ref.hidden):

                @pl.loop(0, down)
                def _(k: Array, i: int = i, weight: Any = weight) -> None:
                    for j in range(across):
                        tile_of = lambda who, j=j: weight.at[pl.ds(k * SIZE, SIZE), columns(who, j)]  # noqa: E731
                        put(place(e, i) + k * across + j, tile_of)

            for q in range(ends):
                put(place(e, depth) + q, lambda who, q=q: weights_ref.last.at[:, pl.ds(q * tile, tile)])

        for barrier in range(_HALVES * _STAGES):  # no copy may be in flight when the program ends
            gpu.barrier_wait(scratch["emptied"].at[barrier])

    def body(*refs: Any, **scratch: Any) -> None:
        refs = jax.tree.unflatten(structure, refs)
        who = jax.lax.axis_index("warpgroup")
        mine = pl.ds(jax.lax.axis_index("rows") * ROWS, ROWS)

        @pl.when(who < _HALVES)
        def _() -> None:
            if interpret is None and across > 1:
                gpu.set_max_registers(_COMPUTING, action="increase")
            compute(refs, scratch, who, mine)

        @pl.when(who == _HALVES)
        def _() -> None:
            if interpret is None and across > 1:
                gpu.set_max_registers(_LOADING, action="decrease")
            load(refs, scratch, mine)

    swizzled = gpu.TilingTransform((8, SIZE)), gpu.SwizzleTransform(128)
    ring = _HALVES * _STAGES
    given = x, c.astype(jnp.bfloat16), weights, jnp.asarray(schedule.table)
    structure = jax.tree.structure((*given, x))  # the last is the result
    return gpu.kernel(
        body,
        out_type=jax.ShapeDtypeStruct(x.shape, jnp.float32),
        scratch_types={
            "h": gpu.SMEM((ROWS, width), jnp.bfloat16, transforms=swizzled),
            "ring": gpu.SMEM((_HALVES, _STAGES, SIZE, tile), jnp.bfloat16, transforms=swizzled),
            "vectors": gpu.SMEM((_HALVES, weights.vectors.shape[0], half), jnp.float32),
            "sums": gpu.SMEM((2, _HALVES, ROWS), jnp.float32),
            "filled": gpu.Barrier(num_barriers=ring),
            "emptied": gpu.Barrier(num_barriers=ring),
            "vectors_there": gpu.Barrier(num_barriers=_HALVES),
            "met": gpu.Barrier(num_arrivals=_HALVES, num_barriers=2),
        },
        grid=(rows // ROWS,),
        grid_names=("rows",),
        num_threads=_HALVES + 1,
        thread_name="warpgroup",
        compiler_params=gpu.CompilerParams(approx_math=True, lowering_semantics=gpu.LoweringSemantics.Warpgroup),
        **({} if interpret is None else {"interpret": interpret}),
    )(*jax.tree.leaves(given))
