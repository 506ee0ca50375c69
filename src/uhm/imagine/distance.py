"""How far samples are from the truth.

The energy distance 2 E|X - Y| - E|X - X'| - E|Y - Y'| is 0 for equal laws. The energy score E|X - y| - E|X - X'| / 2
needs only one draw y of the truth, and its mean over many y is smallest for their law.
"""

from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float


def energy_distance(x: Float[Array, "*k n d"], y: Float[Array, "*k m d"]) -> Float[Array, "*k"]:
    """Between the distributions that x and y are samples of; without bias, so it may be a little below 0."""
    return 2 * _between(x, y) - _within(x) - _within(y)


def energy_score(x: Float[Array, "*k n d"], y: Float[Array, "*k d"]) -> Float[Array, "*k"]:
    """Of the samples x for the one outcome y; without bias."""
    return _between(x, y[..., None, :]) - _within(x) / 2


def _between(x: Float[Array, "*k n d"], y: Float[Array, "*k m d"]) -> Float[Array, "*k"]:
    """E|X - Y|."""
    return jnp.linalg.norm(x[..., :, None, :] - y[..., None, :, :], axis=-1).mean((-1, -2))


def _within(x: Float[Array, "*k n d"]) -> Float[Array, "*k"]:
    """E|X - X'|: a sample's distance to itself is no draw of it."""
    n = x.shape[-2]
    return n / (n - 1) * _between(x, x)


def pick(states: Any, n: np.ndarray) -> Array:
    """Of states [steps, starts, draws, S] each draw's own horizon n [starts, draws]."""
    index = np.ogrid[tuple(slice(size) for size in n.shape)]
    return jnp.asarray(np.asarray(states)[(n - 1, *index)])
