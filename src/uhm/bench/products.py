"""The matrix products of a program: read off its jaxpr, loops multiplied out, and each shape timed by itself.

So they count what an agent says and not what anybody believes it says.
"""

import functools
import time
from collections import Counter
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import ClosedJaxpr, Jaxpr

from uhm.errors import UhmError

_OPERANDS = 8  # of one timed product on each side, so that a processor's caches are as cold as in training
_COLD = 64 << 20  # bytes after which a cache is cold anyway
# Starting a program takes longer than a product on a GPU: many are done at once, and started while others run.
_CALLS = 10
_AT_ONCE_FLOPS, _AT_ONCE_BYTES = 10**11, 512 << 20


class Product(NamedTuple):
    """One kind of matrix product, as `jax.lax.dot_general` takes it."""

    left: tuple[int, ...]
    right: tuple[int, ...]
    dimensions: Any  # ((contracted left, right), (batch left, right))
    dtype: str
    out_dtype: str

    @property
    def flops(self) -> int:
        """Two for each multiplication and addition."""
        (_, contracted), (_, batch) = self.dimensions
        free = [size for axis, size in enumerate(self.right) if axis not in (*contracted, *batch)]
        return 2 * int(np.prod(self.left)) * int(np.prod(free))

    @property
    def single(self) -> "Product":
        """One of the products of two matrices that it consists of: without axes that both have."""
        (of_left, of_right), (batch_left, batch_right) = self.dimensions
        left, of_left = _without(self.left, batch_left, of_left)
        right, of_right = _without(self.right, batch_right, of_right)
        return Product(left, right, ((of_left, of_right), ((), ())), self.dtype, self.out_dtype)


def _without(shape: tuple[int, ...], axes: tuple[int, ...], others: tuple[int, ...]) -> tuple[Any, Any]:
    """The shape without these axes, and what the others are in it."""
    kept = [axis for axis in range(len(shape)) if axis not in axes]
    return tuple(shape[axis] for axis in kept), tuple(kept.index(axis) for axis in others)


def products_of(traced: ClosedJaxpr | Jaxpr) -> Counter[Product]:
    """Every matrix product of a program, and how often it is done: loops count as often as they turn."""
    found: Counter[Product] = Counter()
    for equation in (traced.jaxpr if isinstance(traced, ClosedJaxpr) else traced).eqns:
        name, parameters = equation.primitive.name, equation.params
        if name == "dot_general":
            avals: list[Any] = [variable.aval for variable in (*equation.invars, *equation.outvars)]
            left, right, out = avals
            dimensions = jax.tree.map(int, parameters["dimension_numbers"])
            found[Product(left.shape, right.shape, dimensions, str(left.dtype), str(out.dtype))] += 1
            continue
        inner = [products_of(j) for value in parameters.values() for j in _jaxprs(value)]
        if name == "while" and any(inner):
            raise UhmError("a matrix product sits in a loop of unknown length, so products cannot be counted.")
        if name == "cond":  # one branch is taken: the dearest
            inner = sorted(inner, key=lambda c: sum(k.flops * n for k, n in c.items()))[-1:]
        turns = parameters["length"] if name == "scan" else 1
        for counted in inner:
            for kind, count in counted.items():
                found[kind] += turns * count
    return found


def _jaxprs(value: Any) -> list[Any]:
    if isinstance(value, ClosedJaxpr | Jaxpr):
        return [value]
    return [j for one in value for j in _jaxprs(one)] if isinstance(value, tuple | list) else []


def on_gpu() -> bool:
    return jax.default_backend() == "gpu"


def timed_as(kind: Product) -> Product:
    """What is timed for it: on a GPU one of its matrices, for which all populations are the same."""
    return kind.single if on_gpu() else kind


def timed_product(kind: Product) -> Callable[[], float]:
    """A function that does the product often and returns the seconds that one took."""
    run = _at_once(kind) if on_gpu() else _one_by_one(kind)
    run()  # compiled
    return run


def _at_once(kind: Product) -> Callable[[], float]:
    """As one product of very many matrices, so that a GPU is full."""
    out = kind.flops // (2 * int(np.prod([kind.left[axis] for axis in kind.dimensions[0][0]])))
    itemsizes = [jnp.dtype(dtype).itemsize for dtype in (kind.dtype, kind.out_dtype)]
    each = itemsizes[0] * int(np.prod(kind.left) + np.prod(kind.right)) + itemsizes[1] * out
    copies = max(1, min(_AT_ONCE_FLOPS // kind.flops, _AT_ONCE_BYTES // each))
    (of_left, of_right), _ = jax.tree.map(lambda axis: axis + 1, kind.dimensions)
    many = kind._replace(dimensions=((of_left, of_right), ((0,), (0,))))
    products = jax.jit(functools.partial(_dot, many))

    def run() -> float:
        # Made anew each time: those of all products together would not fit into memory. Random, because how much power
        # a GPU needs, and how fast it is, depends on the numbers.
        keys = jax.random.split(jax.random.key(0))
        left, right = (
            jax.random.normal(key, (copies, *shape), kind.dtype)
            for key, shape in zip(keys, (kind.left, kind.right), strict=True)
        )
        jax.block_until_ready((left, right))
        start, done = time.perf_counter(), None
        for _ in range(_CALLS):
            done = products(left, right)
        jax.block_until_ready(done)
        return (time.perf_counter() - start) / (_CALLS * copies)

    return run


def _one_by_one(kind: Product) -> Callable[[], float]:
    larger = max(int(np.prod(shape)) * np.dtype(kind.dtype).itemsize for shape in (kind.left, kind.right))
    each = max(1, min(_OPERANDS, _COLD // larger))

    @jax.jit
    def products(lefts: list[jax.Array], rights: list[jax.Array]) -> list[jax.Array]:
        return [_dot(kind, left, right) for left, right in zip(lefts, rights, strict=True)]

    def run() -> float:
        fill = lambda shape, i: jnp.full(shape, 0.5 + i / 16, kind.dtype)  # noqa: E731
        operands = [[fill(shape, i) for i in range(each)] for shape in (kind.left, kind.right)]
        jax.block_until_ready(operands)
        start = time.perf_counter()
        jax.block_until_ready(products(*operands))
        return (time.perf_counter() - start) / each

    return run


def _dot(kind: Product, left: jax.Array, right: jax.Array) -> jax.Array:
    return jax.lax.dot_general(left, right, kind.dimensions, preferred_element_type=jnp.dtype(kind.out_dtype))
