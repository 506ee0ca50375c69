"""Transitions of other libraries as logs: what is learned from is what was given."""

import json
from typing import Any

import numpy as np
import pytest

from uhm import cli
from uhm.data import load
from uhm.data.convert import convert, read, remarks
from uhm.data.npz_write import save
from uhm.data.sampling import gather_transitions
from uhm.errors import UhmError


def given(**changes: Any) -> dict[str, np.ndarray]:
    """Seven transitions: 0 to 2 end the task, 3 and 4 were cut, 5 and 6 just stop with the file."""
    s = np.arange(7.0)[:, None]
    found = {
        "observations": s,
        "actions": np.linspace(-1, 1, 14).reshape(7, 2),
        "rewards": np.arange(7.0) + 10,
        "next_observations": s + 1.0,
        "terminals": np.array([0, 0, 1, 0, 0, 0, 0]),
        "timeouts": np.array([0, 0, 0, 0, 1, 0, 0]),
    }
    found["next_observations"][[2, 4]] += 0.5  # where the next row is of another trajectory
    return {name: value for name, value in (found | changes).items() if value is not None}


def test_rows_by_hand():
    done = convert(given())
    assert done.arrays["observations"][:, 0].tolist() == [0, 1, 2, 3.5, 3, 4, 5.5, 5, 6, 7]
    assert done.arrays["rewards"].tolist() == [10, 11, 12, 0, 13, 14, 0, 15, 16, 0]
    assert done.arrays["masks"].tolist() == [True, True, False] + 7 * [True]
    assert np.flatnonzero(done.arrays["terminals"]).tolist() == [3, 6, 9]
    np.testing.assert_allclose(done.arrays["actions"][3], given()["actions"][2], rtol=1e-6)  # no action of its own
    assert (done.trajectories, done.transitions, done.ends, done.lost, done.repeated) == (3, 7, 1, 0, 0)
    assert remarks(done) == []


def test_a_successor_that_is_not_the_next_row_ends_a_trajectory():
    """Without `timeouts`, and also where they say nothing of it."""
    for cuts in (None, np.zeros(7)):
        done = convert(given(timeouts=cuts))
        assert done.arrays["observations"][:, 0].tolist() == [0, 1, 2, 3.5, 3, 4, 5.5, 5, 6, 7]


def test_without_successors_what_was_cut_loses_a_transition_by_hand():
    done = convert(given(next_observations=None))
    assert done.arrays["observations"][:, 0].tolist() == [0, 1, 2, 2, 3, 4, 5, 6]
    assert done.arrays["rewards"].tolist()[:5] == [10, 11, 12, 0, 13]
    assert done.arrays["masks"].tolist() == [True, True, False] + 5 * [True]
    assert np.flatnonzero(done.arrays["terminals"]).tolist() == [3, 5, 7]
    assert (done.trajectories, done.transitions, done.ends, done.lost, done.repeated) == (3, 5, 1, 2, 1)
    lost, repeated = remarks(done)
    assert lost.startswith("2 transitions are lost") and repeated.startswith("after 1 ends the last state")
    # A row that was cut at once has nothing left.
    done = convert(given(next_observations=None, timeouts=np.array([0, 0, 0, 1, 0, 0, 0])))
    assert done.arrays["observations"][:, 0].tolist() == [0, 1, 2, 2, 4, 5, 6]
    assert (done.trajectories, done.transitions, done.lost) == (2, 5, 2)


def test_what_is_sampled_is_what_was_given(tmp_path):
    rng, n = np.random.default_rng(0), 200
    ends, cuts = rng.random(n) < 0.05, rng.random(n) < 0.05
    s = rng.normal(size=(n + 1, 3)).astype(np.float32)
    log = {"observations": s[:-1], "next_observations": s[1:].copy(), "actions": rng.uniform(-1, 1, (n, 2))}
    log["next_observations"][ends | cuts] += 1
    save(tmp_path / "in.npz", log | {"rewards": rng.normal(size=n), "terminals": ends, "timeouts": cuts})
    assert cli.run(["data", "convert", str(tmp_path / "in.npz"), str(tmp_path / "log.npz")]) == 0
    data = load(str(tmp_path / "log.npz"), placement="host").with_task(0)
    assert data.size == n
    batch = gather_transitions(data, np.flatnonzero(np.asarray(data.last) != np.arange(len(data.last))))
    for name in ("observations", "next_observations", "actions"):
        np.testing.assert_allclose(getattr(batch, name), log[name], rtol=1e-5)
    np.testing.assert_array_equal(batch.masks, ~ends)


@pytest.mark.parametrize(
    ("names", "ends"),
    [
        ({"terminals": "terminations", "timeouts": "truncations", "observations": "obs"}, 1),
        ({"terminals": "dones"}, 1),
        ({"next_observations": "next_obs", "rewards": "reward", "actions": "action"}, 1),
    ],
)
def test_other_names_are_known(names, ends):
    other = {names.get(name, name): value for name, value in given().items()}
    found, expected = convert(other), convert(given())
    assert found.ends == ends
    for name, rows in expected.arrays.items():
        np.testing.assert_array_equal(found.arrays[name], rows)


def test_done_may_be_a_cut():
    """It is one where `timeouts` say so; else it is taken for an end, which is said."""
    both = given(terminals=None, done=np.array([0, 0, 1, 0, 1, 0, 0]))
    assert convert(both).arrays["masks"].tolist() == [True, True, False] + 7 * [True]
    assert remarks(convert(both)) == []
    alone = convert({name: value for name, value in both.items() if name != "timeouts"})
    assert alone.ends == 2
    assert remarks(alone) == [
        "every 'done' was taken for an end of the task: if some are cuts, add 'timeouts' and try again"
    ]


def test_what_follows_an_end_and_is_where_the_next_episode_begins_is_not_learned():
    """As d4rl.qlearning_dataset has it: the next row is the successor everywhere, and cut transitions are gone."""
    s = np.array([0.0, 1, 2, 50, 51, 90, 91, 92])[:, None]
    flat = {
        "observations": s,
        "actions": np.zeros((8, 1)),
        "rewards": np.zeros(8),
        "next_observations": np.append(s[1:], [[93.0]], axis=0),
        "terminals": np.array([0, 0, 1, 0, 1, 0, 0, 0]),
    }
    done = convert(flat)
    assert done.arrays["observations"][:, 0].tolist() == [0, 1, 2, 2, 50, 51, 51, 90, 91, 92, 93]
    assert (done.repeated, done.lost) == (2, 0)
    assert remarks(done)[0].startswith("after 2 ends the last state is repeated")
    known = flat | {"next_observations": flat["next_observations"] + 0.5 * flat["terminals"][:, None]}
    assert convert(known).arrays["observations"][:, 0].tolist() == [0, 1, 2, 50.5, 50, 51, 90.5, 90, 91, 92, 93]


def test_actions_are_scaled_by_their_bounds():
    wide = given(actions=np.array([[-2.0, 0.0]] * 6 + [[2.0, 10.0]]))
    found = convert(wide, (-2.0, 0.0), (2.0, 10.0)).arrays["actions"]
    assert found[0].tolist() == [-1.0, -1.0] and found[-1].tolist() == [1.0, 1.0]
    narrow = convert(given(actions=0.4 * given()["actions"]))
    assert remarks(narrow) == ["actions reach 0.4: if their space has other bounds than -1 and 1, give these"]
    assert convert(given(), -2.0, 2.0).arrays["actions"][0].tolist() == pytest.approx([-0.5, -11 / 26])
    with pytest.raises(UhmError, match=r"there are actions up to 10: give the bounds, --low and --high"):
        convert(wide)
    with pytest.raises(UhmError, match="there are actions beyond these bounds"):
        convert(wide, -2.0, 2.0)


def test_shuffled_transitions_are_noticed():
    order = np.random.default_rng(0).permutation(7)
    done = convert({name: value[order] for name, value in given(timeouts=None).items()})
    assert done.transitions == 7 and done.trajectories > 4
    assert remarks(done) == ["most trajectories have one transition: are they in the order in which they happened?"]


@pytest.mark.parametrize(
    ("changes", "bounds", "message"),
    [
        ({"rewards": None}, (), r"no field 'rewards' \(or reward\); it has observations, actions"),
        ({"terminals": None}, (), r"no field 'terminals' \(or terminations, terminated, dones, done\)"),
        ({"timeouts": None, "next_observations": None}, (), "where a trajectory was cut cannot be known"),
        ({"rewards": np.zeros(3)}, (), "field 'rewards' has 3 rows, 'observations' has 7"),
        ({"rewards": np.zeros((7, 2))}, (), r"field 'rewards' has shape \(7, 2\)"),
        ({"actions": np.array(["a"] * 7)}, (), "field 'actions' has type <U1, expected numbers"),
        ({"actions": np.ones((7, 1), int)}, (), "the actions are int64: only continuous ones"),
        ({"actions": np.full((7, 1), np.nan)}, (), "field 'actions' has NaN or infinite values, the first at row 0"),
        (
            {"rewards": np.append(np.zeros(6), np.nan)},
            (),
            "field 'rewards' has NaN or infinite values, the first at row 6",
        ),
        ({"terminals": np.full(7, 2)}, (), "the flags of ends must be 0 or 1"),
        ({"next_observations": np.zeros((7, 3))}, (), "next observations have 3 numbers"),
        ({}, ((-1.0,),), "bounds of actions come in two"),
        ({}, ((-1.0, -1.0, -1.0), (1.0,)), "actions have 2 numbers: give one bound for all, or as many"),
        ({}, ((1.0,), (1.0,)), "must be below"),
        (
            {"timeouts": np.ones(7), "terminals": np.zeros(7), "next_observations": None},
            (),
            "no trajectory has a trans",
        ),
    ],
)
def test_what_cannot_be_converted(changes, bounds, message):
    with pytest.raises(UhmError, match=message):
        convert(given(**changes), *bounds)


def test_the_command(tmp_path, capsys):
    source, out = tmp_path / "buffer.npz", tmp_path / "new" / "log.npz"
    save(source, given(next_observations=None, actions=4 * given()["actions"]))
    assert cli.run(["data", "check", str(source)]) == 1
    assert f"uhm data convert {source} buffer-rows.npz" in capsys.readouterr().out
    save(tmp_path / "flat.npz", given(rewards=np.array(1.0)))
    flags = ["--low", "-4", "--high", "4"]
    assert cli.run(["data", "convert", str(source), str(out), *flags]) == 0
    first, *rest = capsys.readouterr().out.splitlines()
    assert first == f"{out}: 5 transitions in 3 trajectories, 1 of them end the task"
    assert len(rest) == 2
    assert cli.run(["data", "check", str(out)]) == 0
    assert cli.run(["data", "convert", str(source), str(tmp_path / "two.npz"), *flags, "--json"]) == 0
    assert json.loads(capsys.readouterr().out.split("\n", 1)[1])["lost"] == 2
    for arguments, message in (
        ([source, out], f"{out} is there already"),
        ([source, "x.txt"], "x.txt must end in .npz"),
        ([tmp_path / "none.npz", "x.npz"], "none.npz: no such file"),
        (["log.pkl", "x.npz"], "log.pkl is no .npz, .hdf5 or .h5 file"),
        ([source, tmp_path / "x.npz"], "there are actions up to 4: give the bounds, --low and --high"),
        ([tmp_path / "flat.npz", "x.npz"], "field 'rewards' has shape (), expected 1 dimension"),
    ):
        assert cli.run(["data", "convert", *map(str, arguments)]) == 2
        said = capsys.readouterr().err
        assert message in said and len(said.splitlines()) == 1
    assert sorted(path.name for path in tmp_path.iterdir()) == ["buffer.npz", "flat.npz", "new", "two.npz"]


def test_hdf5_as_d4rl_has_it(tmp_path):
    h5py = pytest.importorskip("h5py")
    with h5py.File(tmp_path / "d4rl.hdf5", "w") as file:
        for name, value in given().items():
            file[name] = value
        file["infos/qpos"] = np.zeros(7)
        file["metadata/algorithm"] = "none"
    found, expected = convert(read(tmp_path / "d4rl.hdf5")), convert(given())
    for name, rows in expected.arrays.items():
        np.testing.assert_array_equal(found.arrays[name], rows)
    (tmp_path / "bad.h5").write_bytes(b"nothing")
    with pytest.raises(UhmError, match=r"bad.h5: not a readable HDF5 file"):
        read(tmp_path / "bad.h5")
    with pytest.raises(UhmError, match=r"none.h5: no such file"):
        read(tmp_path / "none.h5")
