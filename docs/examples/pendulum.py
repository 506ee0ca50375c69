"""Logs of a pendulum that a rule swings up, with more or less noise: `python pendulum.py` writes pendulum.npz."""

import gymnasium
import numpy as np

EPISODES = 100
NOISE = (1.0, 6.0)  # standard deviation of the torque's, which the pendulum cuts to [-2, 2]


def torque(cos: float, sin: float, speed: float) -> float:
    """Near the top it holds the pendulum; elsewhere it gives it the energy that it lacks to get there."""
    energy = speed**2 / 6 + 5 * cos  # 5 at rest at the top
    return -10 * sin - 2 * speed if cos > 0.9 else np.sign(speed) * (5 - energy)


def trajectory(env: gymnasium.Env, seed: int, noise: float, rng: np.random.Generator) -> dict[str, np.ndarray]:
    """The rows of one episode: T + 1 of them for T transitions, so that the last one is where the last action led."""
    observations, actions, rewards = [env.reset(seed=seed)[0]], [], []
    cut = False
    while not cut:
        action = np.clip((torque(*observations[-1]) + noise * rng.normal()) / 2, -1, 1)
        observation, reward, _, cut, _ = env.step(np.array([2 * action]))
        observations, actions, rewards = [*observations, observation], [*actions, [action]], [*rewards, reward]
    return {
        "observations": np.array(observations, np.float32),
        # The last row has no action of its own; agents read it as the one that follows the last transition.
        "actions": np.array([*actions, actions[-1]], np.float32),
        "rewards": np.array([*rewards, 0.0], np.float32),
        "terminals": np.arange(len(observations)) == len(actions),
    }


def main() -> None:
    env, rng = gymnasium.make("Pendulum-v1"), np.random.default_rng(0)
    rows = [trajectory(env, seed, rng.uniform(*NOISE), rng) for seed in range(EPISODES)]
    np.savez("pendulum.npz", allow_pickle=False, **{name: np.concatenate([r[name] for r in rows]) for name in rows[0]})
    print(f"pendulum.npz: {EPISODES} episodes, mean return {np.mean([r['rewards'].sum() for r in rows]):.0f}")


if __name__ == "__main__":
    main()
