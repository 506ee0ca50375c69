"""Flow matching: the straight path from noise to data, the loss that learns its velocity, the ODE that follows it.

    x_tau = (1-tau) x_0 + tau x_1,   L = | v(x_tau, tau) - (x_1 - x_0) |^2,   dx/dtau = v(x, tau) from tau = 0 to 1.

Everything takes the velocity as a function `velocity(x, tau)`; what it is conditioned on is bound by the caller
(`VectorField.condition` in `uhm.nets`), so that one ODE solve pays for it once.
"""

from collections.abc import Callable
from typing import Literal, get_args

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from uhm.errors import unknown

Velocity = Callable[[Float[Array, "*batch X"], Float[Array, "..."]], Float[Array, "*batch X"]]
Method = Literal["midpoint", "euler"]


def path(
    x0: Float[Array, "*batch X"], x1: Float[Array, "*batch X"], tau: Float[Array, "*batch"]
) -> Float[Array, "*batch X"]:
    """The point x_tau on the straight line from noise x0 to data x1."""
    tau = tau[..., None]
    return (1 - tau) * x0 + tau * x1


def matching_loss(
    velocity: Velocity, x0: Float[Array, "*batch X"], x1: Float[Array, "*batch X"], tau: Float[Array, "*batch"]
) -> Float[Array, "*batch"]:
    """Squared error of the velocity at x_tau, the mean over dimensions, one number per row.

    If x1 is a solution of the ODE started at the same x0, this is coupled flow matching, which UHM bootstraps with.
    """
    error = velocity(path(x0, x1, tau), tau) - (x1 - x0)
    return jnp.square(error).mean(-1)


def solve(
    velocity: Velocity,
    x0: Float[Array, "*batch X"],
    steps: int = 5,
    method: str = "midpoint",
    unroll: int | bool = True,
) -> Float[Array, "*batch X"]:
    """x at tau = 1 from x0 at tau = 0 in equal steps: two evaluations each for `midpoint`, one for `euler`.

    `velocity` is given tau as a scalar. `unroll` is `jax.lax.scan`'s: a loop compiles faster, unrolled steps fuse.
    """
    if method not in get_args(Method):
        raise unknown("ODE method", method, get_args(Method))
    h = 1 / steps

    def step(x: Float[Array, "*batch X"], tau: Float[Array, ""]) -> tuple[Float[Array, "*batch X"], None]:
        slope = velocity(x, tau)
        if method == "midpoint":
            slope = velocity(x + 0.5 * h * slope, tau + 0.5 * h)
        return x + h * slope, None

    x1, _ = jax.lax.scan(step, x0, jnp.arange(steps, dtype=x0.dtype) * h, unroll=unroll)
    return x1
