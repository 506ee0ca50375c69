"""Measures over horizons: how far ahead a Bellman target looks, and with which weights.

Every measure here has nu(k) >= 0 over k = 1, 2, ... with sum nu <= 1 (a sub-probability), and stands for the nu-Bellman
operator of the paper (proposition 1)

    T Q(s, a) = E[ R(s, a) + gamma * sum_k ( xi(k) R(s_k, a_k) + nu(k) Q(s_k, a_k) ) ],
    xi(k) = gamma^(k-1) - sum_{j=0}^{k-1} gamma^j nu(k-j),

whose fixed point is Q^pi. One sampled horizon estimates the sum: n ~ p_H, weights w_xi = xi(n) / p_H(n) and
w_nu = nu(n) / p_H(n), target r + gamma (w_xi R + w_nu Q).

The definition is the recurrence xi(k) = gamma xi(k-1) - nu(k) from xi(0) = 1/gamma. So beyond the support {1..K} of nu
xi(k) = gamma^(k-K) xi(K), where xi(K) = gamma^(K-1) (1 - D), D = sum_k gamma^(1-k) nu(k). xi stops with nu only if
D = 1, which holds for n-step TD, TD(lambda) and the winsorized geometric measure; D < 1 leaves a geometric tail of
rewards, D > 1 (possible although sum nu <= 1) a tail of negative weights. All xi are >= 0 exactly if D <= 1.

Measures are pytrees of array scalars: lam, discount and k_max may be traced or batched with vmap, and changing them
along a schedule does not recompile. Concrete values are checked when a measure is made; traced ones cannot be.
"""

from abc import abstractmethod
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jaxtyping import Array, Float, Int, PRNGKeyArray
from numpy.typing import ArrayLike

from uhm.errors import UhmError

Horizon = int | Int[Array, "..."] | Int[np.ndarray, "..."]
Real = float | Float[Array, "..."] | Float[np.ndarray, "..."]
Weights = Float[Array, "..."]
_Table = Float[Array, " SA"]
_Scalar = float | Float[Array, ""] | Float[np.ndarray, ""] | np.floating
_Count = int | Int[Array, ""] | Int[np.ndarray, ""] | np.integer


class Measure(eqx.Module):
    """The interface of a measure. To add one, subclass this and implement the abstract methods."""

    discount: eqx.AbstractVar[Float[Array, ""]]

    @abstractmethod
    def nu(self, k: Horizon) -> Weights:
        """Weight of Q(s_k, a_k)."""

    @abstractmethod
    def xi(self, k: Horizon) -> Weights:
        """Weight of R(s_k, a_k)."""

    @abstractmethod
    def pmf(self, k: Horizon) -> Weights:
        """p_H(k): sums to 1, and is positive wherever nu or xi is not zero."""

    @abstractmethod
    def sample(self, key: PRNGKeyArray, shape: tuple[int, ...] = ()) -> Int[Array, "..."]:
        """Horizons n ~ p_H."""

    def weights(self, n: Horizon) -> tuple[Weights, Weights]:
        """(w_xi, w_nu) = (xi(n), nu(n)) / p_H(n); zero where p_H is."""
        p = self.pmf(n)
        p = jnp.where(p > 0, p, 1.0)
        return self.xi(n) / p, self.nu(n) / p


def _check(name: str, value: Any, low: float, high: float, interval: str) -> None:
    if not isinstance(value, Tracer) and not low <= float(value) < high:
        raise UhmError(f"{name} is {value}, and must be in {interval}.")


def _lam(value: _Scalar) -> Float[Array, ""]:
    _check("lambda", value, 0, 1, "[0, 1)")
    return jnp.asarray(value, float)


def _discount(value: _Scalar) -> Float[Array, ""]:
    _check("the discount", value, np.nextafter(0, 1), 1, "(0, 1)")
    return jnp.asarray(value, float)


def _steps(value: _Count) -> Int[Array, ""]:
    _check("the horizon (n or k_max)", value, 1, np.inf, "1, 2, ...")
    return jnp.asarray(value, jnp.int32)


def _geometric(key: PRNGKeyArray, ratio: Float[Array, ""], shape: tuple[int, ...]) -> Int[Array, "..."]:
    """n >= 1 with P(n) = (1 - ratio) ratio^(n-1). Ratio 0 gives 1: the exponential is finite, -log(0) is not."""
    return 1 + jnp.floor(jax.random.exponential(key, shape) / -jnp.log(ratio)).astype(jnp.int32)


class NStep(Measure):
    """n-step TD: nu(n) = gamma^(n-1), and xi(k) = gamma^(k-1) before n.

    p_H is proportional to nu + xi, i.e. to gamma^(k-1) on {1..n}: both weights are the constant (1-gamma^n)/(1-gamma).
    """

    n: Int[Array, ""]
    discount: Float[Array, ""]

    def __init__(self, n: _Count, discount: _Scalar):
        self.n, self.discount = _steps(n), _discount(discount)

    def nu(self, k: Horizon) -> Weights:
        k = jnp.asarray(k)
        return jnp.where(k == self.n, self.discount ** (k - 1), 0.0)

    def xi(self, k: Horizon) -> Weights:
        k = jnp.asarray(k)
        return jnp.where((k >= 1) & (k < self.n), self.discount ** (k - 1), 0.0)

    def pmf(self, k: Horizon) -> Weights:
        mass = -jnp.expm1(self.n * jnp.log(self.discount)) / (1 - self.discount)
        return (self.nu(k) + self.xi(k)) / mass

    def sample(self, key: PRNGKeyArray, shape: tuple[int, ...] = ()) -> Int[Array, "..."]:
        log_discount = jnp.log(self.discount)
        # Inverse distribution function of a geometric cut at n; expm1 and log1p keep it exact near gamma = 1.
        u = jax.random.uniform(key, shape)
        k = 1 + jnp.floor(jnp.log1p(u * jnp.expm1(self.n * log_discount)) / log_discount)
        return jnp.clip(k.astype(jnp.int32), 1, self.n)


class WinsorizedGeometric(Measure):
    """TD(lambda) with horizons capped at k_max, the paper's choice: all mass beyond k_max moves onto k_max.

    nu(k) = (1-lam) (lam gamma)^(k-1), xi(k) = lam (lam gamma)^(k-1) before k_max; nu = (lam gamma)^(k_max-1), xi = 0 at
    k_max. p_H is min(Geom(1 - lam gamma), k_max).
    """

    lam: Float[Array, ""]
    discount: Float[Array, ""]
    k_max: Int[Array, ""]

    def __init__(self, lam: _Scalar, discount: _Scalar, k_max: _Count):
        self.lam, self.discount, self.k_max = _lam(lam), _discount(discount), _steps(k_max)

    def _winsorize(self, k: Horizon, before, at) -> Weights:
        k = jnp.asarray(k)
        return jnp.where((k >= 1) & (k < self.k_max), before, jnp.where(k == self.k_max, at, 0.0))

    def _decay(self, k: Horizon) -> Weights:
        return (self.lam * self.discount) ** jnp.maximum(jnp.asarray(k) - 1, 0)

    def nu(self, k: Horizon) -> Weights:
        decay = self._decay(k)
        return self._winsorize(k, (1 - self.lam) * decay, decay)

    def xi(self, k: Horizon) -> Weights:
        return self._winsorize(k, self.lam * self._decay(k), 0.0)

    def pmf(self, k: Horizon) -> Weights:
        decay = self._decay(k)
        return self._winsorize(k, (1 - self.lam * self.discount) * decay, decay)

    def sample(self, key: PRNGKeyArray, shape: tuple[int, ...] = ()) -> Int[Array, "..."]:
        return jnp.minimum(_geometric(key, self.lam * self.discount, shape), self.k_max)

    def weights(self, n: Horizon) -> tuple[Weights, Weights]:
        stop = 1 - self.lam * self.discount
        return self._winsorize(n, self.lam / stop, 0.0), self._winsorize(n, (1 - self.lam) / stop, 1.0)


class TDLambda(WinsorizedGeometric):
    """TD(lambda): nu(k) = (1-lam) (lam gamma)^(k-1), xi(k) = lam (lam gamma)^(k-1), p_H = Geom(1 - lam gamma), no cap.

    The weights do not depend on n, which is why a geometric horizon model, blind to n, can use it and nothing else.
    """

    def __init__(self, lam: _Scalar, discount: _Scalar):
        super().__init__(lam, discount, np.iinfo(np.int32).max)


def _masses(value: ArrayLike) -> Float[Array, " K"]:
    if np.ndim(value) != 1 or np.size(value) == 0:
        raise UhmError(f"nu must be a non-empty list nu(1), nu(2), ..., not of shape {np.shape(value)}.")
    if not isinstance(value, Tracer):
        nu = np.asarray(value, np.float64)
        if not (np.isfinite(nu).all() and (nu >= 0).all()):
            raise UhmError(f"nu must be non-negative and finite; its smallest entry is {nu.min():g}.")
        if nu.sum() > 1 + 1e-6:
            raise UhmError(f"nu sums to {nu.sum():g}; above 1 the operator need not contract, so scale it down.")
    return jnp.asarray(value, float)


class Custom(Measure):
    """Any measure on {1..K}: `nu_array[k-1]` is nu(k).

    p_H is proportional to nu + |xi|, so |w_xi| + w_nu is one constant and no horizon has an outsized weight. Where D is
    not 1 (module docstring) it has a tail of ratio gamma beyond K, long if gamma is near 1; if each nu(k) is a
    probability times gamma^(k-1), D is 1 and there is none. A |1 - D| below rounding counts as D = 1.
    """

    nu_array: Float[Array, " K"]
    discount: Float[Array, ""]

    def __init__(self, nu_array: ArrayLike, discount: _Scalar):
        self.nu_array, self.discount = _masses(nu_array), _discount(discount)

    def _tables(self) -> tuple[Float[Array, " K"], Float[Array, " K"], Float[Array, ""]]:
        """xi and nu + |xi| on {1..K}, and the sum of the latter beyond K."""
        steps = jnp.arange(self.nu_array.size)
        lag = steps[:, None] - steps
        # The definition, as multiply and sum: a matmul could run in reduced precision on a GPU.
        powers = jnp.where(lag >= 0, self.discount ** jnp.maximum(lag, 0), 0.0)
        xi = powers[:, 0] - (powers * self.nu_array).sum(-1)
        rounding = 2 * self.nu_array.size * jnp.finfo(xi.dtype).eps
        xi = jnp.where(jnp.abs(xi) <= rounding * powers[:, 0], 0.0, xi)
        mass = self.nu_array + jnp.abs(xi)
        return xi, mass, jnp.abs(xi[-1]) * self.discount / (1 - self.discount)

    def _lookup(self, k: Horizon, table: Float[Array, " K"], last: Real, ratio: Real) -> Weights:
        """table on {1..K}, last * ratio^(k-K) beyond it, 0 below 1."""
        k, size = jnp.asarray(k), table.size
        inside = table[jnp.clip(k - 1, 0, size - 1)]
        beyond = last * ratio ** jnp.maximum(k - size, 0)
        return jnp.where(k < 1, 0.0, jnp.where(k <= size, inside, beyond))

    def nu(self, k: Horizon) -> Weights:
        return self._lookup(k, self.nu_array, 0.0, 1.0)

    def xi(self, k: Horizon) -> Weights:
        xi, _, _ = self._tables()
        return self._lookup(k, xi, xi[-1], self.discount)

    def pmf(self, k: Horizon) -> Weights:
        xi, mass, tail = self._tables()
        return self._lookup(k, mass, jnp.abs(xi[-1]), self.discount) / (mass.sum() + tail)

    def sample(self, key: PRNGKeyArray, shape: tuple[int, ...] = ()) -> Int[Array, "..."]:
        key_bucket, key_tail = jax.random.split(key)
        _, mass, tail = self._tables()
        # Buckets 1..K and the tail. u is less than the last entry, 1, and an empty bucket repeats the cdf before it, so
        # rounding can never draw an empty bucket or an empty tail.
        cdf = jnp.cumsum(jnp.append(mass, tail))
        u = jax.random.uniform(key_bucket, shape)
        k = 1 + jnp.searchsorted(cdf / cdf[-1], u, side="right").astype(jnp.int32)
        return jnp.where(k <= mass.size, k, mass.size + _geometric(key_tail, self.discount, shape))


def lambda_schedule(progress: Real, lambda_f: Real) -> Float[Array, "..."]:
    """lam = rho lambda_f / (1 - (1-rho) lambda_f): the effective horizon 1/(1-lam) grows linearly with progress rho."""
    progress, lambda_f = jnp.asarray(progress, float), jnp.asarray(lambda_f, float)
    return progress * lambda_f / (1 - (1 - progress) * lambda_f)


def k_max(lam: Real, discount: Real, q: Real) -> Int[Array, "..."]:
    """The cap max(1, ceil(ln q / ln(lam gamma))): the smallest k >= 1 with P(Geom(1 - lam gamma) > k) <= q.

    `q` is the mass of the UPPER tail that is cut (0.2 in the paper). lam = 0 gives 1.
    """
    if not isinstance(q, Tracer) and not ((np.asarray(q) > 0) & (np.asarray(q) <= 1)).all():
        raise UhmError(f"the tail mass q is {q}, and must be in (0, 1].")
    q, rate = jnp.asarray(q, float), -jnp.log(jnp.asarray(lam, float) * discount)
    # Rounding lam * gamma changes the quotient by about eps / rate: if it is this close above an integer, it is that
    # one.
    slack = 4 * jnp.finfo(rate.dtype).eps * (1 + 1 / rate)
    return jnp.maximum(jnp.ceil(-jnp.log(q) / rate * (1 - slack)).astype(jnp.int32), 1)


def literal_mve_weights(lam: Real, discount: Real) -> tuple[Weights, Weights]:
    """(w_xi, w_nu) of the gamma-MVE equation as the paper prints it, for comparison only: it counts R(s_e, a_e) twice.

    Its fixed point is not Q^pi; the TD(lambda) weights of `TDLambda` are the right ones for a geometric horizon model.
    """
    lam = jnp.asarray(lam, float)
    stop = 1 - lam * discount
    return 1 / stop, (1 - lam) * discount / stop


def bellman_operator(
    measure: Measure, q: _Table, reward: _Table, transition: Float[Array, "SA SA"], terms: int
) -> _Table:
    """T Q of a finite MDP in closed form, ignoring horizons above `terms`. Iterate it to check a measure of your own.

    `transition[i, j]` is the probability that state-action pair i is followed by pair j under the policy.
    """

    def step(after: _Table, k: Int[Array, ""]) -> tuple[_Table, None]:
        return transition @ (measure.xi(k) * reward + measure.nu(k) * q + after), None

    # Horner's scheme from the far end: sum_k P^k f_k = P (f_1 + P (f_2 + ...)).
    future, _ = jax.lax.scan(step, jnp.zeros_like(q), jnp.arange(1, terms + 1), reverse=True)
    return reward + measure.discount * future
