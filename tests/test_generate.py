"""Generating data: what may be asked for, and the driver that must survive anything that happens to it."""

import json
import os
import signal
import subprocess
import sys
import textwrap
import time
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from uhm import cli, tasks
from uhm.data import collect, generate, order
from uhm.data.generate_worker import episode_rng
from uhm.data.npz_write import concatenate
from uhm.data.parts import Parts
from uhm.errors import UhmError

POINT = tasks.environment("pointmaze-medium-navigate")
ROWS = 11

# A worker like the real one but for what it collects: random numbers, and a note of each episode it made.
TOY = """
import os, sys, time
from uhm.data import collect, generate_worker
class Toy:
    def episode(self, rng):
        time.sleep({delay})
        {extra}
        assert os.environ["OMP_NUM_THREADS"] == "1" and "jax" not in sys.modules
        x = rng.normal(size=(11, 2))
        return collect.pack({{"observations": list(x), "actions": list(x), "qpos": list(x), "qvel": list(x)}})
collect.recipe = lambda environment: collect.Recipe(11, lambda *_: Toy())
save = generate_worker.Parts.save
def noted(self, split, episode, arrays):
    {on_save}
    save(self, split, episode, arrays)
    print(split, episode, os.getpid(), file=open(os.path.join(os.path.dirname(self.folder), "made.txt"), "a"))
generate_worker.Parts.save = noted
generate_worker.main()
"""


def toy(delay: float = 0.0, extra: str = "pass", on_save: str = "pass") -> tuple[str, str]:
    return "-c", TOY.format(delay=delay, extra=extra, on_save=on_save)


@pytest.fixture
def toys(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(generate, "_WORKER", toy())


def made(data_dir: Path) -> list[str]:
    """The episodes that toy workers made, as "split episode"."""
    return [line.rsplit(" ", 1)[0] for line in (data_dir / "made.txt").read_text().splitlines()]


def workers_ended(data_dir: Path) -> bool:
    pids = {line.split()[2] for line in (data_dir / "made.txt").read_text().splitlines()}
    states = subprocess.run(["ps", "-o", "stat=", "-p", ",".join(pids)], stdout=subprocess.PIPE, text=True).stdout
    return all(state.startswith("Z") for state in states.split())


def make_toys(data_dir: Path, episodes: int = 3, seed: int = 0) -> list[Path]:
    return generate.make(POINT, data_dir, episodes=episodes, workers=1, seed=seed, rows=ROWS, progress=False)


def in_process(data_dir: Path, call: str, worker: tuple[str, str], before: str = "") -> subprocess.Popen[str]:
    """A process of its own that runs `make` with toy workers, to be killed."""
    script = f"""
import signal
from pathlib import Path
from uhm import tasks
from uhm.data import generate
signal.signal(signal.SIGINT, signal.default_int_handler)  # tests that a shell runs in the background inherit none
{before}
generate._WORKER = {worker!r}
generate.make(tasks.environment("pointmaze-medium-navigate"), Path({str(data_dir)!r}), rows=11, {call})
"""
    return subprocess.Popen([sys.executable, "-c", script], stderr=subprocess.PIPE, text=True, start_new_session=True)


def wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline, "nothing happened in 30 seconds"
        time.sleep(0.01)


# --- what is asked for -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "path", "message"),
    [
        ("antmaze-large-explore", "nothing.npz", "no expert policy at"),
        ("cube-single-play", "nothing.npz", "leave out --expert"),
        ("humanoidmaze-medium-navigate", None, r"no scripted expert .* put humanoidmaze-medium-navigate-v0\.npz"),
        ("humanoidmaze-giant-navigate", None, "folder of files"),
        ("antsoccer-arena-navigate", None, "no scripted expert"),
    ],
)
def test_what_cannot_be_generated_says_why(name: str, path: str | None, message: str, tmp_path: Path) -> None:
    with pytest.raises(UhmError, match=message) as caught:
        generate.make(tasks.environment(name), tmp_path, expert=None if path is None else Path(path))
    assert "\n" not in str(caught.value)
    assert not list(tmp_path.iterdir())


# --- sizes and files --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "rows", "episodes"),
    [
        ("cube-double-play", 1001, 1000),
        ("pointmaze-giant-navigate", 2001, 500),
        ("antmaze-medium-explore", 501, 10_000),
        ("cube-triple-play", 1001, 10_000),
    ],
)
def test_official_sizes(name: str, rows: int, episodes: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    asked: list[Any] = []
    monkeypatch.setattr(generate, "_fill", lambda shards, parts, setup, *_: asked.append((shards, setup)))
    generate.make(tasks.environment(name), tmp_path)
    [(shards, setup)] = asked
    assert setup["rows"] == rows
    assert sum(len(shard.episodes[0]) for shard in shards) == episodes
    assert sum(len(shard.episodes[1]) for shard in shards) == episodes // 10


def test_shards(tmp_path: Path) -> None:
    shards = order.plan(tasks.environment("cube-triple-play"), tmp_path, 2504)
    assert [shard.episodes for shard in shards] == [
        (range(1000), range(100)),
        (range(1000, 2000), range(100, 200)),
        (range(2000, 2504), range(200, 250)),
    ]
    folder = tmp_path / "cube-triple-play-100m-v0"
    assert shards[0].path(0) == folder / "cube-triple-play-v0-000.npz"
    assert shards[2].path(1) == folder / "cube-triple-play-v0-002-val.npz"


def test_sharded_files_hold_their_own_episodes(toys: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(order, "EPISODES_PER_SHARD", 10)
    environment = tasks.environment("cube-triple-play")
    paths = generate.make(environment, tmp_path, episodes=15, workers=2, rows=ROWS, progress=False)
    names = [f"cube-triple-play-v0-00{k}{val}.npz" for k in (0, 1) for val in ("", "-val")]
    assert [path.relative_to(tmp_path / "cube-triple-play-100m-v0").name for path in paths] == names
    assert [np.load(path)["terminals"].sum() for path in paths] == [10, 1, 5, 1]
    with np.load(paths[2]) as file:  # its first episode is number 10
        np.testing.assert_array_equal(
            file["observations"][:ROWS], episode_rng(0, 0, 10).normal(size=(ROWS, 2)).astype(np.float32)
        )


def test_joined_files_hold_all_rows_and_repeat_byte_for_byte(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    parts, wanted = [], []
    for k in range(3):
        arrays = {"x": rng.normal(size=(4 + k, 3)).astype(np.float32), "flags": rng.random(4 + k) < 0.5}
        np.savez(tmp_path / f"{k}.npz", **arrays)
        parts.append(tmp_path / f"{k}.npz")
        wanted.append(arrays)
    path = tmp_path / "all.npz"
    concatenate(path, parts)
    first = path.read_bytes()
    concatenate(path, parts)
    assert path.read_bytes() == first
    with zipfile.ZipFile(path) as archive:
        assert archive.testzip() is None
        members = archive.infolist()
    assert [member.filename for member in members] == ["x.npy", "flags.npy"]
    for member in members:
        assert member.compress_type == zipfile.ZIP_STORED
        name = member.filename.removesuffix(".npy")
        with np.load(path, allow_pickle=False) as file:
            np.testing.assert_array_equal(file[name], np.concatenate([arrays[name] for arrays in wanted]))


# --- the driver -------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_same_bytes_for_any_number_of_workers(tmp_path: Path) -> None:
    environment = tasks.environment("scene-noisy")
    options: dict[str, Any] = {"episodes": 3, "rows": 80, "progress": False}
    one = generate.make(environment, tmp_path / "one", workers=1, **options)
    two = generate.make(environment, tmp_path / "two", workers=2, **options)
    assert [path.name for path in one] == [path.name for path in two]
    assert all(a.read_bytes() == b.read_bytes() for a, b in zip(one, two, strict=True))


def test_killed_runs_go_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(generate, "_WORKER", toy())
    reference = [path.read_bytes() for path in make_toys(tmp_path / "whole", 20)]

    broken, parts = tmp_path / "broken", Parts(tmp_path / "broken" / "pointmaze-medium-navigate-v0.parts")
    process = in_process(broken, "episodes=20, workers=2", toy(delay=0.1))
    wait_for(lambda: len(list(parts.folder.glob("train-*.npz"))) >= 4)
    process.kill()
    process.communicate()
    wait_for(lambda: workers_ended(broken))  # by themselves: nobody told them
    before, kept = len(made(broken)), {int(path.stem[-6:]) for path in parts.folder.glob("train-*.npz")}
    assert 4 <= len(kept) < 20 and not list(broken.glob("*.npz"))
    # Episodes that a power failure cut short or left empty in the middle are not believed.
    short, empty = parts.path(0, 0), parts.path(0, 1)
    short.write_bytes(short.read_bytes()[:-100])
    data = empty.read_bytes()
    start = data.index(b"NUMPY") + 128
    empty.write_bytes(data[:start] + bytes(32) + data[start + 32 :])

    assert [path.read_bytes() for path in make_toys(broken, 20)] == reference
    missing = set(range(20)) - kept | {0, 1}
    assert made(broken)[before:] == [*(f"0 {k}" for k in sorted(missing)), "1 0", "1 1"]
    assert not parts.folder.exists()


def test_episodes_may_be_added_on_resume(toys: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reference = [path.read_bytes() for path in make_toys(tmp_path / "whole", 20)]
    # The first run fails at its validation episode, when all training episodes are there.
    monkeypatch.setattr(generate, "_WORKER", toy(on_save="assert split == 0"))
    with pytest.raises(UhmError, match="val episode 0 failed: AssertionError"):
        make_toys(tmp_path, 5)
    monkeypatch.setattr(generate, "_WORKER", toy())
    assert [path.read_bytes() for path in make_toys(tmp_path, 20)] == reference
    assert len(made(tmp_path)) == len(set(made(tmp_path))) == 22


def test_a_smaller_set_does_not_cost_the_episodes_of_a_larger_one(toys: None, tmp_path: Path) -> None:
    parts = Parts(tmp_path / f"{POINT.dataset}.parts")
    parts.folder.mkdir()
    asked = order.order(POINT, tmp_path, 5, 0, None, ROWS)
    parts.belong_to(asked.manifest)
    parts.save(0, 4, {"observations": np.zeros((1, 2))})
    with pytest.raises(UhmError, match=r"holds 1 episodes of a larger set that is not finished: ask for as many again"):
        make_toys(tmp_path, episodes=3)
    assert parts.path(0, 4).exists()
    (parts.folder / "manifest.json").write_text("{")
    with pytest.raises(UhmError, match=r"manifest\.json is damaged: delete the folder"):
        make_toys(tmp_path, episodes=5)


def test_interrupted_between_two_shards(toys: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(order, "EPISODES_PER_SHARD", 10)
    environment = tasks.environment("cube-triple-play")
    options: dict[str, Any] = {"episodes": 20, "workers": 1, "rows": ROWS, "progress": False}
    reference = [path.read_bytes() for path in generate.make(environment, tmp_path / "whole", **options)]
    monkeypatch.setattr(generate, "_WORKER", toy(on_save="assert episode < 13"))
    with pytest.raises(UhmError, match="train episode 13 failed"):
        generate.make(environment, tmp_path, **options)
    folder = tmp_path / "cube-triple-play-100m-v0"
    assert len(list(folder.iterdir())) == 2  # the first shard is joined, and its episodes are not kept twice
    assert len(list(tmp_path.glob("*.parts/*.npz"))) == 3
    monkeypatch.setattr(generate, "_WORKER", toy())
    assert [path.read_bytes() for path in generate.make(environment, tmp_path, **options)] == reference
    assert len(made(tmp_path)) == 22


def test_runs_are_not_mixed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(generate, "_WORKER", toy(on_save="assert episode < 2"))
    with pytest.raises(UhmError):
        make_toys(tmp_path)
    monkeypatch.setattr(generate, "_WORKER", toy())
    with pytest.raises(UhmError, match="made with seed 0, not 1: use the same seed"):
        make_toys(tmp_path, seed=1)
    monkeypatch.setattr(order.importlib.metadata, "version", lambda name: "0.0.1")
    with pytest.raises(UhmError, match=r"made with mujoco .*, not 0\.0\.1"):
        make_toys(tmp_path)


def test_finished_files_are_never_overwritten(toys: None, tmp_path: Path) -> None:
    train, val = make_toys(tmp_path)
    before = train.read_bytes()
    with pytest.raises(UhmError, match=r"made with seed 0, not 1, and is never overwritten.*--data-dir"):
        make_toys(tmp_path, seed=1)
    with pytest.raises(UhmError, match=r"exists with 3 episodes, not 4, and is never overwritten"):
        make_toys(tmp_path, 4)
    val.unlink()
    for seed in (0, 1):
        with pytest.raises(UhmError, match="never overwritten"):
            make_toys(tmp_path, seed=seed)
    assert train.read_bytes() == before and list(tmp_path.glob("*.npz")) == [train]
    train.write_bytes(before[: len(before) // 2])
    with pytest.raises(UhmError, match="not a readable npz file"):
        make_toys(tmp_path)


def test_a_finished_set_is_left_as_it_is(toys: None, tmp_path: Path) -> None:
    paths = make_toys(tmp_path)
    before = [(path.read_bytes(), path.stat().st_mtime_ns) for path in paths]
    assert make_toys(tmp_path) == paths
    assert [(path.read_bytes(), path.stat().st_mtime_ns) for path in paths] == before
    assert len(made(tmp_path)) == 4


@pytest.mark.parametrize("environment", [POINT, tasks.ROOMS], ids=lambda environment: environment.name)
def test_files_that_do_not_say_how_they_were_made_are_taken_for_the_default(
    environment: tasks.Environment, toys: None, tmp_path: Path
) -> None:
    def call(seed: int) -> list[Path]:
        return generate.make(environment, tmp_path, episodes=3, seed=seed, rows=ROWS, progress=False)

    paths = call(0)
    for path in paths:  # as OGBench's own are, and those that earlier versions made
        with np.load(path) as file:
            arrays = {name: file[name] for name in file.files}
        np.savez(path, allow_pickle=False, **arrays)
    assert call(0) == paths
    with pytest.raises(UhmError, match="does not say that it was made with seed 1, and is never overwritten"):
        call(1)


def test_more_shards_than_asked_for_are_not_what_was_asked_for(
    toys: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(order, "EPISODES_PER_SHARD", 10)
    environment = tasks.environment("cube-triple-play")
    options: dict[str, Any] = {"workers": 2, "rows": ROWS, "progress": False}
    paths = generate.make(environment, tmp_path, episodes=20, **options)
    assert generate.make(environment, tmp_path, episodes=20, **options) == paths
    with pytest.raises(UhmError, match=r"play-v0-001\.npz exists and is not part of what is asked for"):
        generate.make(environment, tmp_path, episodes=10, **options)


def test_an_interrupted_command_with_several_names_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def build(*_: Any) -> Any:
        raise AssertionError("only workers build simulators, and these are toys")

    monkeypatch.setattr(collect, "recipe", lambda environment: collect.Recipe(ROWS, build))
    names = ["rooms", "pointmaze-medium-navigate", "pointmaze-large-navigate"]
    command = ["data", "make", *names, "--episodes", "2", "--workers", "1", "--data-dir", str(tmp_path)]
    monkeypatch.setattr(generate, "_WORKER", toy(on_save="assert 'large' not in str(self.folder) or episode == 0"))
    assert cli.run(command) == 2
    assert "the same command again goes on" in capsys.readouterr().err
    before = {path: path.read_bytes() for path in tmp_path.glob("*.npz")}
    assert len(before) == 4
    monkeypatch.setattr(generate, "_WORKER", toy())
    assert cli.run(command) == 0
    said = capsys.readouterr()
    for name in names:
        assert (f"{name}: there already" in said.err) == (name != names[2])
    assert said.out.split() == [str(tmp_path / f"{name}-v0{val}.npz") for name in names for val in ("", "-val")]
    assert all(path.read_bytes() == data for path, data in before.items())
    assert sorted(made(tmp_path)) == ["0 0", "0 0", "0 1", "0 1", "1 0", "1 0"]
    assert cli.run(command) == 0  # `uhm data make X && uhm train uhm X` works twice
    assert cli.run([*command, "--seed", "1"]) == 2
    said = capsys.readouterr().err
    assert "made with seed 0, not 1" in said.splitlines()[-1]


def test_what_cannot_be_made_is_said_before_anything_is(
    toys: None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    names = ["pointmaze-medium-navigate", "rooms", "humanoidmaze-medium-navigate"]
    assert cli.run(["data", "make", *names, "--data-dir", str(tmp_path)]) == 2
    assert "no scripted expert" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_rooms_killed_between_its_two_files_goes_on(tmp_path: Path) -> None:
    train, val = generate.make(tasks.ROOMS, tmp_path, episodes=3)
    whole, kept = val.read_bytes(), train.stat().st_mtime_ns
    val.unlink()
    assert generate.make(tasks.ROOMS, tmp_path, episodes=3) == [train, val]
    assert val.read_bytes() == whole and train.stat().st_mtime_ns == kept


def test_files_say_how_they_were_made(toys: None, tmp_path: Path) -> None:
    for path in [*make_toys(tmp_path, seed=5), *generate.make(tasks.ROOMS, tmp_path, episodes=3, seed=5)]:
        with zipfile.ZipFile(path) as archive:
            note = json.loads(archive.comment)
        assert note["seed"] == 5 and path.name.startswith(note["environment"])


def test_only_one_process_at_a_time(toys: None, tmp_path: Path) -> None:
    held = Parts(tmp_path / "pointmaze-medium-navigate-v0.parts").claimed()
    with held, pytest.raises(UhmError, match="another process is making pointmaze-medium-navigate-v0"):
        make_toys(tmp_path)
    make_toys(tmp_path)


@pytest.mark.parametrize(("what", "message"), [("raise ValueError('a b')", "ValueError: a b"), ("os._exit(7)", "7")])
def test_a_failing_worker_names_its_episode(
    what: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fail = f"if episode == 2: {what}"
    monkeypatch.setattr(generate, "_WORKER", toy(on_save=fail))
    answer = generate._answer
    monkeypatch.setattr(generate, "_answer", lambda *given: time.sleep(0.2) or answer(*given))  # it is not in a hurry
    with pytest.raises(UhmError, match=f"train episode 2 failed: .*{message}") as caught:
        make_toys(tmp_path, 5)
    assert "\n" not in str(caught.value)
    assert made(tmp_path) == ["0 0", "0 1"]
    assert len(list(tmp_path.glob("*.parts/train-*.npz"))) == 2


def test_a_worker_that_dies_when_it_has_nothing_left_to_do_is_not_missed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of three episodes the second worker gets one, and ends while the first is at the last of its two."""
    dies = "import threading; episode == 1 and threading.Timer(0.2, os._exit, (9,)).start(); split and time.sleep(1)"
    monkeypatch.setattr(generate, "_WORKER", toy(on_save=dies))
    paths = generate.make(POINT, tmp_path, episodes=2, workers=2, rows=ROWS, progress=False)
    assert sorted(made(tmp_path)) == ["0 0", "0 1", "1 0"]
    assert all(path.exists() for path in paths)


def test_ctrl_c_stops_workers_and_says_how_to_go_on(tmp_path: Path) -> None:
    # So many that none of this comes too late, however busy the machine is: half a minute's work.
    process = in_process(tmp_path, "episodes=500, workers=2", toy(delay=0.1))
    wait_for(lambda: (tmp_path / "made.txt").exists() and len(made(tmp_path)) >= 2)
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does
    _, error = process.communicate(timeout=10)
    assert workers_ended(tmp_path)
    assert "of 550 episodes on disk: the same command again goes on" in error.splitlines()[-1]
    logs = [path.read_text() for path in tmp_path.glob("*.parts/*.log")]
    assert logs == ["", ""]  # they were ended, they did not fail


def test_unwritable_directory(toys: None, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for environment in (POINT, tasks.ROOMS):
        with pytest.raises(UhmError, match=r"cannot write .*file.*: Not a directory; .* --data-dir or UHM_DATA_DIR"):
            generate.make(environment, tmp_path / "file" / "data", episodes=1)


def test_full_disk(tmp_path: Path) -> None:
    # A limit on the size of files is what a full disk looks like to the one who writes: first to a worker, which
    # inherits it, then, with a limit that single episodes stay below, to the process that joins them.
    limit = "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, ({0}, {0}))"
    process = in_process(tmp_path, "episodes=2, workers=1", toy(), limit.format(1000))
    assert "train episode 0 failed: cannot write" in process.communicate()[1].splitlines()[-1]
    process = in_process(tmp_path, "episodes=20, workers=1", toy(), limit.format(4000))
    error = process.communicate()[1].splitlines()[-1]
    assert error.startswith("uhm.errors.UhmError: cannot write") and "File too large" in error
    assert not list(tmp_path.glob("*.npz")) and not list(tmp_path.glob("*.tmp*"))


@pytest.mark.parametrize("environment", [POINT, tasks.ROOMS], ids=lambda environment: environment.name)
@pytest.mark.parametrize(("option", "value"), [("episodes", 0), ("workers", 0), ("seed", -1)])
def test_numbers_that_make_no_sense(environment: tasks.Environment, option: str, value: int, tmp_path: Path) -> None:
    with pytest.raises(UhmError, match=f"{option} is {value}"):
        options: dict[str, Any] = {option: value}
        generate.make(environment, tmp_path, **options)
    assert not list(tmp_path.iterdir())


def test_workers_never_import_jax() -> None:
    modules = ("generate", "generate_worker", "collect_manipulation", "collect_mazes", "expert", "parts")
    code = f"""
        import sys, importlib
        for name in {modules}: importlib.import_module("uhm.data." + name)
        from uhm.data.collect import Simulation
        Simulation("pointmaze-medium-v0")
        sys.exit("jax" in sys.modules)
    """
    assert subprocess.run([sys.executable, "-c", textwrap.dedent(code)], env=os.environ).returncode == 0
