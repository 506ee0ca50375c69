"""What models say of the future of (s, a): the jump of UHM and GHM, and a one-step model rolled out."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, PRNGKeyArray

from uhm.agents.horizon_model import HorizonModel

Act = Callable[[PRNGKeyArray, Float[Array, "*B S"]], Float[Array, "*B A"]]


@jax.jit
def jump(
    model: HorizonModel,
    key: PRNGKeyArray,
    s: Float[Array, "*B S"],
    a: Float[Array, "*B A"],
    n: Int[Array, " horizons"],
) -> Float[Array, "horizons *B S"]:
    """One sample of s_n for each horizon and each (s, a), each in one shot."""

    def one(inputs: tuple[Array, Array]) -> Array:
        return model.sample(inputs[0], s, a, jnp.full(s.shape[:-1], inputs[1]))[0]

    # One horizon after the other: wide networks on all of them at once would need that much more memory.
    return jax.lax.map(one, (jax.random.split(key, n.shape[0]), n))


def roll(
    model: HorizonModel, act: Act, key: PRNGKeyArray, s: Float[Array, "*B S"], a: Float[Array, "*B A"], steps: int
) -> Float[Array, "steps *B S"]:
    """The states after 1 .. `steps` steps of the one-step model under the policy; what has ended stays."""

    def step(carry: tuple[Array, ...], key: PRNGKeyArray) -> tuple[tuple[Array, ...], Array]:
        s, a, ended = carry
        key_model, key_act = jax.random.split(key)
        after, flagged = model.sample(key_model, s, a)
        after = jnp.where(ended[..., None], s, after)
        return (after, act(key_act, after), ended | flagged), after

    start = (s, a, jnp.zeros(s.shape[:-1], bool))
    return jax.jit(lambda key: jax.lax.scan(step, start, jax.random.split(key, steps))[1])(key)
