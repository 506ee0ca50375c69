"""Returns over stretches of a trajectory: winsorized TD(lambda), and n-step TD as its lambda = 1 case.

`uhm.horizons` estimates the winsorized geometric measure with one sampled horizon; here all horizons of one trajectory
are summed, which DTD(lambda) does on stored and MBTD(lambda) on imagined steps. For step t let

    r_j, m_j  reward and mask (0 = the task ended) of transition t+j,   q_j  the value Q(s_{t+j}, pi(s_{t+j})),

and k* = min(k_max, L), where L <= K steps are available before the stored trajectory ends. Then

    G_{k*} = q_{k*},   G_j = r_j + gamma m_j [ (1-lam) q_{j+1} + lam G_{j+1} ],   y = G_0.

The end of a trajectory is a truncation, not a termination: k* moves to its last state and the target bootstraps there.
A mask of 0 cuts off everything after it, because stored trajectories continue after success with rewards that must not
count.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from uhm.horizons import Real


def lambda_returns(
    rewards: Float[Array, "*batch K"],
    masks: Float[Array, "*batch K"],
    values: Float[Array, "*batch K"],
    lam: Real,
    discount: Real,
    k_max: int | Int[Array, "..."],
    length: int | Int[Array, "..."] | None = None,
) -> Float[Array, "*batch"]:
    """The target y of the module docstring for every row, with `values[..., j]` = q_{j+1}.

    `lam`, `discount`, `k_max` and `length` (L; None means K) are scalars or one per row and may be traced; K is static.
    Entries at or after k* never enter y. Where q and R are already zero after a termination (imagined steps), pass
    masks of ones.
    """
    window = rewards.shape[-1]
    cap = jnp.minimum(k_max, window if length is None else length)

    def step(later: Float[Array, "..."], row: tuple[Array, ...]) -> tuple[Float[Array, "..."], None]:
        j, r, m, q = row
        later = jnp.where(j + 1 < cap, later, q)
        return r + discount * m * ((1 - lam) * q + lam * later), None

    first = (jnp.moveaxis(x, -1, 0) for x in (rewards, masks, values))
    # Unrolled, the recursion fuses into one elementwise kernel; a loop would launch K of them.
    y, _ = jax.lax.scan(step, values[..., -1], (jnp.arange(window), *first), reverse=True, unroll=min(window, 32))
    return y


def n_step_return(
    rewards: Float[Array, "*batch K"],
    masks: Float[Array, "*batch K"],
    values: Float[Array, "*batch K"],
    discount: Real,
    n: int | Int[Array, "..."],
    length: int | Int[Array, "..."] | None = None,
) -> Float[Array, "*batch"]:
    """y = sum_{j<n*} gamma^j r_j + gamma^n* q_{n*}, n* = min(n, L), stopping at the first mask of 0."""
    return lambda_returns(rewards, masks, values, 1.0, discount, n, length)
