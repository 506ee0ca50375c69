"""Methods learn a task of the embedded default, in a time that CI has.

`results/rooms` has all methods and tasks at the full length of the default. Not here: UHM's relatives, which share its
actor and critic; and MOPO, MOBILE and MAC, which learn this task in twice the time and not with every seed.
"""

import pytest

from uhm import tasks
from uhm.data.generate import make
from uhm.train import resolve, start


@pytest.fixture(scope="module")
def walks(tmp_path_factory):
    folder = tmp_path_factory.mktemp("data")
    make(tasks.ROOMS, folder, episodes=200, progress=False)
    return folder


# Steps and batch: UHM with its preset's 256, for with 64 it needs longer.
SETTINGS = {"uhm": (1500, 256), "iql": (1500, 64), "rebrac": (2000, 64), "fql": (1500, 64)}


@pytest.mark.slow
@pytest.mark.parametrize("name", SETTINGS)
def test_a_way_through_a_door_is_learned(name, walks, tmp_path):
    """One task of `rooms` in a quarter of the default's steps, on a fifth of its data."""
    steps, batch_size = SETTINGS[name]
    settings = {"seeds": 1, "batch_size": batch_size, "steps": steps, "eval_interval": steps, "eval_episodes": 20}
    (member,) = start(resolve(name, "rooms-task5", data_dir=walks, **settings), tmp_path / "run")["members"]
    assert member["score"] >= 0.8
