"""Ensemble dynamics for MOPO and MOBILE: Gaussian one-step models of the change of state, learned together.

    s' ~ N(s + d_i(s, a), diag sigma_i(s, a)^2),   log sigma in [-5, 1],   L = -mean_i log N(s'; mu_i, sigma_i).

All members see the same minibatch and differ only in their initialisation. There are no elites and no pretraining, as
in MAC's release, whose MOPO and MOBILE the paper ran. States are scaled to about [-1, 1] first.
"""

from collections.abc import Callable

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from uhm.agents.base import Spec
from uhm.nets import HIDDEN, MLP

LOG_STD = (-5.0, 1.0)  # a sigmoid keeps log sigma between these


def scaling(spec: Spec) -> Callable[[Float[Array, "*batch S"]], Float[Array, "*batch S"]]:
    """Each dimension from the data's range to about [-1, 1].

    The release takes the range from the validation split; here an agent only knows the rows it is trained on.
    """
    middle = jnp.asarray(spec.observation_high + spec.observation_low) / 2
    half = jnp.asarray(spec.observation_high - spec.observation_low) / 2 + 1e-3
    return lambda s: (s - middle) / half


class Dynamics(eqx.Module):
    """E independently initialised Gaussian models, stacked along the first axis of every leaf."""

    ensemble: MLP

    def __init__(
        self,
        state_size: int,
        action_size: int,
        key: PRNGKeyArray,
        hidden: tuple[int, ...] = HIDDEN,
        members: int = 7,
        compute_dtype: str | None = None,
    ):
        def member(key: PRNGKeyArray) -> MLP:
            inputs = state_size + action_size
            return MLP(inputs, 2 * state_size, key, hidden, layer_norm=True, compute_dtype=compute_dtype)

        self.ensemble = jax.vmap(member)(jax.random.split(key, members))

    def __call__(
        self, s: Float[Array, "*batch S"], a: Float[Array, "*batch A"]
    ) -> tuple[Float[Array, "E *batch S"], Float[Array, "E *batch S"]]:
        """Mean and log standard deviation of s', for every member."""
        x = jnp.concatenate([s, a], axis=-1)
        change, raw = jnp.split(jax.vmap(lambda member: member(x))(self.ensemble), 2, axis=-1)
        low, high = LOG_STD
        return s + change, low + (high - low) * jax.nn.sigmoid(raw)

    def sample(
        self, key: PRNGKeyArray, s: Float[Array, "*batch S"], a: Float[Array, "*batch A"]
    ) -> Float[Array, "*batch S"]:
        """s' from a member drawn independently for every row."""
        key_member, key_noise = jax.random.split(key)
        mean, log_std = self(s, a)
        who = jax.random.randint(key_member, (1, *s.shape[:-1], 1), 0, mean.shape[0])
        mean, log_std = (jnp.take_along_axis(x, who, axis=0)[0] for x in (mean, log_std))
        return mean + jnp.exp(log_std) * jax.random.normal(key_noise, s.shape)

    def loss(
        self, s: Float[Array, "*batch S"], a: Float[Array, "*batch A"], s_next: Float[Array, "*batch S"]
    ) -> Float[Array, ""]:
        """The negative log-likelihood, summed over dimensions, the mean over members and rows."""
        mean, log_std = self(s, a)
        return -gaussian_log_prob((s_next - mean) / jnp.exp(log_std), log_std).mean()


def gaussian_log_prob(noise: Float[Array, "*batch D"], log_std: Float[Array, "*batch D"]) -> Float[Array, "*batch"]:
    """log N(x; mean, std^2) of x = mean + std * noise, summed over dimensions."""
    return -(0.5 * jnp.square(noise) + log_std + 0.5 * jnp.log(2 * jnp.pi)).sum(-1)
