"""The matrix products of a program: read off its jaxpr, loops multiplied out, and each shape timed by itself.

So they count what an agent says and not what anybody believes it says.
"""

import functools
import itertools
import time
from collections import Counter
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import ClosedJaxpr, Jaxpr

from uhm.errors import UhmError
from uhm.population import SIDE_BY_SIDE

_OPERANDS = 8  # of one timed product on each side, so that a processor's caches are as cold as in training
_COLD = 64 << 20  # bytes after which a cache is cold anyway
# Starting a program takes longer than a product on a GPU: each is of all pairs, and the next is started while one runs.
_CALLS = 10


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


def timed_product(kind: Product) -> Callable[[], float]:
    """A function that does the product on several operands and returns the seconds that one took."""
    gpu = on_gpu()
    larger = max(int(np.prod(shape)) * np.dtype(kind.dtype).itemsize for shape in (kind.left, kind.right))
    each = max(1, min(_OPERANDS, _COLD // larger))

    @jax.jit
    def operands() -> list[list[jax.Array]]:
        fill = lambda shape, i: jnp.full(shape, 0.5 + i / 16, kind.dtype)  # noqa: E731
        return [[fill(shape, i) for i in range(each)] for shape in (kind.left, kind.right)]

    # On a GPU side by side, as in training, and each a product of its own although they share factors.
    @functools.partial(jax.jit, compiler_options=SIDE_BY_SIDE)
    def products(lefts: list[jax.Array], rights: list[jax.Array]) -> list[jax.Array]:
        dot = lambda a, b: jax.lax.dot_general(  # noqa: E731
            a, b, kind.dimensions, preferred_element_type=jnp.dtype(kind.out_dtype)
        )
        pairs = itertools.product(lefts, rights) if gpu else zip(lefts, rights, strict=True)
        return [dot(a, b) for a, b in pairs]

    def run() -> float:
        # Made anew each time: those of all products together would not fit into memory.
        lefts, rights = jax.block_until_ready(operands())
        start, done = time.perf_counter(), []
        for _ in range(_CALLS if gpu else 1):
            done = products(lefts, rights)
        jax.block_until_ready(done)
        return (time.perf_counter() - start) / (_CALLS * each**2 if gpu else each)

    run()
    return run
