"""The universal horizon model: a flow that samples the state n steps ahead, s_n ~ m(. | s, a, n), for any n at once.

The flow generates x = (state part, flag). The state part is the change s_n - s divided by its standard deviation in the
data, the unscaled change, or s_n itself. The flag is 1 where the task has ended by then: a predicted output,
thresholded at 0.5, never an input. Without the horizon input the same class is a geometric horizon model or a one-step
model.

For the state the network outputs the velocity. For the flag, which is almost always 0, the velocity would be nearly all
noise, -x_0, and errors in predicting it would be as large as an end. So the flag is preconditioned by its scale, as in
diffusion models: if sigma is its standard deviation and D = tau^2 sigma^2 + (1 - tau)^2, the network is given
x / sqrt(D) and outputs

    F = ((1 - tau) x_1 / sigma - tau sigma x_0) / sqrt(D),   v = (tau sigma^2 - (1 - tau)) / D x + sigma / sqrt(D) F,

so that input and target have variance 1 at every tau, F = 0 turns noise into N(0, sigma^2), and a unit error of F
becomes an error of about sigma in the sample (pi / 2 sigma, if it is the same at every tau).
"""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from uhm import flow, kernels, ode_kernel
from uhm.agents.base import Spec
from uhm.nets import VectorField

THRESHOLD = 0.5


class HorizonModel(eqx.Module):
    """`model.sample(key, s, a, n)` for any n and any leading axes.

    `mean` and `std` scale the states that the field is given, `scale[n - 1]` what it generates for n (the last row also
    for longer horizons). They are leaves so that a model saves and stacks as one tree, but they never learn: their
    gradients are stopped.
    """

    field: VectorField
    mean: Float[Array, " S"]
    std: Float[Array, " S"]
    scale: Float[Array, "K S"]
    delta: bool = eqx.field(static=True)
    steps: int = eqx.field(static=True)
    ode: str = eqx.field(static=True)
    flag_std: float = eqx.field(static=True)

    def __init__(
        self,
        spec: Spec,
        key: PRNGKeyArray,
        *,
        hidden: tuple[int, ...],
        embedding: str = "sincos",
        layer_norm: bool = True,
        delta: bool = True,
        standardise: bool = False,
        changes: Float[Array, "K S"] | np.ndarray | None = None,
        flag_std: float = 0.0,
        steps: int = 5,
        ode: str = "midpoint",
        compute_dtype: str | None = None,
    ):
        self.field = VectorField(
            spec.observation_size + 1,
            spec.observation_size,
            spec.action_size,
            key,
            hidden,
            embedding,
            spec.k_max,
            layer_norm,
            compute_dtype,
        )
        size = spec.observation_size
        self.mean = jnp.asarray(spec.observation_mean) if standardise else jnp.zeros(size)
        self.std = jnp.asarray(spec.observation_std) if standardise else jnp.ones(size)
        self.scale = self.std[None] if changes is None else jnp.asarray(changes)
        self.delta, self.steps, self.ode, self.flag_std = delta, steps, ode, flag_std or spec.flag_std

    def sample(
        self,
        key: PRNGKeyArray,
        s: Float[Array, "*batch S"],
        a: Float[Array, "*batch A"],
        n: int | Int[Array, "*batch"] = 1,
        threshold: float | Float[Array, ""] = THRESHOLD,
    ) -> tuple[Float[Array, "*batch S"], Bool[Array, "*batch"]]:
        """States n steps after (s, a), and whether the task has ended by then (the flag is above `threshold`)."""
        n = jnp.broadcast_to(jnp.asarray(n, jnp.int32), s.shape[:-1])
        noise = jax.random.normal(key, (*s.shape[:-1], s.shape[-1] + 1))
        return self.generate(noise, s, a, n, threshold)

    def generate(
        self,
        noise: Float[Array, "*batch X"],
        s: Float[Array, "*batch S"],
        a: Float[Array, "*batch A"],
        n: Int[Array, "*batch"],
        threshold: float | Float[Array, ""] = THRESHOLD,
    ) -> tuple[Float[Array, "*batch S"], Bool[Array, "*batch"]]:
        """The same for given noise: follow the flow from x_0 = noise to x_1 and decode."""
        condition = self.field.condition(self._scaled(s), a, n)
        x = (followed if kernels.chosen() else HorizonModel.follow)(self, noise, condition)
        base, scale = self._code(s, n)
        return base + scale * x[..., :-1], x[..., -1] > threshold

    def follow(self, noise: Float[Array, "*batch X"], c: Float[Array, "*batch H"]) -> Float[Array, "*batch X"]:
        """x_1, from x_0 = noise; c is the field's condition."""
        return flow.solve(lambda x, tau: self._velocity(x, tau, c), noise, self.steps, self.ode)

    def schedule(self) -> ode_kernel.Schedule:
        """The evaluations of `follow`, for the kernel."""
        moves = (0.5, 1.0) if self.ode == "midpoint" else (1.0,)
        gap = 1 / (self.steps * len(moves))
        tau = gap * np.arange(self.steps * len(moves))
        with jax.ensure_compile_time_eval():  # concrete numbers, even while tracing
            root = np.asarray(self._root(jnp.asarray(tau)))
        table = np.tile(np.array([[1], [0], [1]], np.float32), (tau.size, 1, ode_kernel.SIZE))
        flag = self.field.x_size - 1
        table[:, :, flag] = np.stack([1 / root, self._skip(tau, root), self.flag_std / root], axis=-1)
        return ode_kernel.Schedule(table, gap, tuple(move / self.steps for move in moves))

    def encode(
        self,
        s: Float[Array, "*batch S"],
        s_n: Float[Array, "*batch S"],
        ended: Bool[Array, "*batch"],
        n: Int[Array, "*batch"],
    ) -> Float[Array, "*batch X"]:
        """x_1 of a known future: where the flow from (s, a, n) should end."""
        base, scale = self._code(s, n)
        state = (s_n - base) / scale
        return jnp.concatenate([state, ended[..., None].astype(state.dtype)], axis=-1)

    def _code(
        self, s: Float[Array, "*batch S"], n: Int[Array, "*batch"]
    ) -> tuple[Float[Array, "*batch S"], Float[Array, "*batch S"]]:
        """Origin and unit of predicted states."""
        mean, scale = jax.lax.stop_gradient((self.mean, self.scale))
        rows = jnp.minimum(n, scale.shape[0]) - 1
        return (s if self.delta else jnp.broadcast_to(mean, s.shape)), scale[rows]

    def velocity(
        self,
        x: Float[Array, "*batch X"],
        tau: Float[Array, "*batch"],
        s: Float[Array, "*batch S"],
        a: Float[Array, "*batch A"],
        n: Int[Array, "*batch"],
    ) -> Float[Array, "*batch X"]:
        """v(x | s, a, n, tau)."""
        return self._velocity(x, tau, self.field.condition(self._scaled(s), a, n))

    def flag_error(self, error: Float[Array, "*batch"], tau: Float[Array, "*batch"]) -> Float[Array, "*batch"]:
        """The error of F, given that of the flag's velocity."""
        return error * self._root(tau) / self.flag_std

    def _velocity(
        self, x: Float[Array, "*batch X"], tau: Float[Array, "..."], c: Float[Array, "*batch H"]
    ) -> Float[Array, "*batch X"]:
        flag, root = x[..., -1], self._root(tau)
        said = self.field(x.at[..., -1].divide(root), tau, c)
        skip = self._skip(tau, root)
        return said.at[..., -1].set(skip * flag + self.flag_std / root * said[..., -1])

    def _skip(self, tau: Any, root: Any) -> Any:
        return (tau * self.flag_std**2 - (1 - tau)) / root**2

    def _root(self, tau: Float[Array, "..."]) -> Float[Array, "..."]:
        """sqrt(D): the flag's standard deviation on the path at tau."""
        return jnp.sqrt((tau * self.flag_std) ** 2 + (1 - tau) ** 2)

    def _scaled(self, s: Float[Array, "*batch S"]) -> Float[Array, "*batch S"]:
        mean, std = jax.lax.stop_gradient((self.mean, self.std))
        return (s - mean) / std


def fused(
    model: HorizonModel, noise: Float[Array, "*batch X"], c: Float[Array, "*batch H"], interpret: Any = None
) -> Float[Array, "*batch X"]:
    """`follow`, computed by the kernel; `interpret` is for tests."""
    size = noise.shape[-1]
    x = jnp.pad(noise.reshape(-1, size), ((0, 0), (0, ode_kernel.SIZE - size)))
    weights = ode_kernel.weights(model.field.mlp, size)
    made = ode_kernel.solve(x, c.reshape(-1, c.shape[-1]), weights, model.schedule(), interpret)
    return made[:, :size].reshape(noise.shape)


@jax.custom_vjp
def followed(model: HorizonModel, noise: Any, c: Any) -> Any:
    """`follow`, by the kernel in populations where that was measured to be faster; the gradient is that of `follow`."""
    return _chosen(model, noise, c)


def _followed_backward(given: tuple[HorizonModel, Any, Any], slope: Any) -> Any:
    return jax.vjp(HorizonModel.follow, *given)[1](slope)


followed.defvjp(lambda *given: (_chosen(*given), given), _followed_backward)


@jax.custom_batching.custom_vmap
def _chosen(model: HorizonModel, noise: Any, c: Any) -> Any:
    return model.follow(noise, c)


@_chosen.def_vmap
def _(members: int, mapped: Any, model: HorizonModel, noise: Any, c: Any) -> tuple[Any, bool]:
    """Decides by the number of members, assumed to be the size of the innermost vmapped axis, as in all agents."""

    def one(model: HorizonModel, noise: Any, c: Any) -> Any:
        size, mlp = noise.shape[-1], model.field.mlp
        rows = noise.size // size
        if not (ode_kernel.pays(members, rows, c.shape[-1]) and ode_kernel.fits(mlp, rows, size)):
            return model.follow(noise, c)
        # A model that learns on the GPU may be asked for a sample on the CPU.
        return jax.lax.platform_dependent(model, noise, c, default=HorizonModel.follow, cuda=fused)

    axes = jax.tree.map(lambda has: 0 if has else None, tuple(mapped))
    return jax.vmap(one, in_axes=axes)(model, noise, c), True
