"""How far samples are from the truth: the energy distance 2 E|X - Y| - E|X - X'| - E|Y - Y'|, 0 for equal laws."""

from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float


def energy_distance(x: Float[Array, "*k n d"], y: Float[Array, "*k m d"]) -> Float[Array, "*k"]:
    """Between the distributions that x and y are samples of; without bias, so it may be a little below 0."""

    def mean(a: Array, b: Array) -> Array:
        return jnp.linalg.norm(a[..., :, None, :] - b[..., None, :, :], axis=-1).mean((-1, -2))

    # A sample's distance to itself is no draw of |X - X'|.
    n, m = x.shape[-2], y.shape[-2]
    return 2 * mean(x, y) - n / (n - 1) * mean(x, x) - m / (m - 1) * mean(y, y)


def pick(states: Any, n: np.ndarray) -> Array:
    """Of states [steps, starts, draws, S] each draw's own horizon n [starts, draws]."""
    index = np.ogrid[tuple(slice(size) for size in n.shape)]
    return jnp.asarray(np.asarray(states)[(n - 1, *index)])
