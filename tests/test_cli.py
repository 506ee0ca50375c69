"""The command line as a user meets it: real processes, exit codes, one-line errors, JSON that parses."""

import json
import re
import subprocess
import sys
import typing
from pathlib import Path
from typing import Annotated, Literal

import numpy as np
import pytest

from uhm import __version__, cli
from uhm.cli import VERBS
from uhm.cli.flags import unset


def uhm(*arguments, env=None, cwd=None):
    command = [sys.executable, "-m", "uhm", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=300, env=env, cwd=cwd)


@pytest.fixture(scope="module")
def rooms(tmp_path_factory):
    """A small `rooms` data set made by the command itself."""
    folder = tmp_path_factory.mktemp("data")
    done = uhm("data", "make", "rooms", "--episodes", "20", "--data-dir", str(folder))
    assert done.returncode == 0, done.stderr
    return folder


def test_help_and_version_do_not_import_jax():
    code = "import sys, uhm.cli; assert not {'jax', 'mujoco', 'ogbench', 'matplotlib'} & set(sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], timeout=60).returncode == 0
    assert uhm("--version").stdout.split() == ["uhm", __version__]
    help_text = uhm("--help").stdout
    assert all(verb in help_text for verb in ("data", "doctor"))


@pytest.mark.parametrize("verb", VERBS)
def test_help_says_nothing_twice(verb, capsys):
    """What a flag stands for that is not given is in its own words, and `None` is nobody's."""
    parts = {"data": ("list", "get", "make", "check", "convert", "inspect"), "suite": ("plan", "run")}
    for part in parts.get(verb, ("",)):
        with pytest.raises(SystemExit) as end:
            cli.run([verb, *([part] if part else []), "--help"])
        assert not end.value.code
        text = " ".join(capsys.readouterr().out.replace("│", " ").split())
        assert f"usage: uhm {verb}" in text
        assert "None" not in text and "(default: )" not in text
        assert not re.search(r"\(default: [^)]*\)\.? \(default: ", text)


def test_types_of_flags_in_help():
    for kind, metavar in (
        (int | None, "INT"),
        (Path | None, "PATH"),
        (Literal["device", "host"] | None, "{device,host}"),
        (tuple[float, ...], "[FLOAT [FLOAT ...]]"),
        (tuple[int, ...] | None, "[INT [INT ...]]"),
        (Annotated[str | None, "more"], "STR"),
    ):
        named = [about.metavar for about in typing.get_args(unset(kind))[1:] if hasattr(about, "metavar")]
        assert [name for name in named if name] == [metavar]


def test_list_as_json():
    rows = json.loads(uhm("data", "list", "--json", "--data-dir", "nowhere").stdout)
    assert sum(len(row["tasks"]) for row in rows if row["suite"] in ("standard", "noisy", "long-horizon")) == 100
    by_name = {row["environment"]: row for row in rows}
    assert by_name["cube-triple-play"]["dataset"] == "cube-triple-play-100m-v0"
    assert by_name["scene-play"]["q_agg"] == "mean"


def test_make_inspect_check(rooms, tmp_path):
    facts = json.loads(uhm("data", "inspect", "rooms", "--json", "--data-dir", str(rooms), cwd=tmp_path).stdout)
    assert facts["transitions"] == 2000
    assert (tmp_path / facts["picture"]).stat().st_size > 10_000
    text = uhm("data", "inspect", "rooms", "--data-dir", str(rooms), "--out", str(tmp_path / "p.png")).stdout
    assert "2,000 transitions in 20 trajectories" in text
    checked = uhm("data", "check", "--json", "--data-dir", str(rooms))
    assert checked.returncode == 0
    assert [row["transitions"] for row in json.loads(checked.stdout)] == [2000, 200]


def test_check_finds_a_damaged_file(rooms, tmp_path):
    path = tmp_path / "rooms-v0.npz"
    path.write_bytes((rooms / "rooms-v0.npz").read_bytes()[:-500])
    checked = uhm("data", "check", "rooms", "--data-dir", str(tmp_path))
    assert checked.returncode == 1
    assert "BAD" in checked.stdout
    assert str(path) in checked.stdout


def test_inspect_a_file_of_ones_own(tmp_path):
    rows = np.zeros((10, 3), np.float32)
    ends = np.arange(10) % 5 == 4
    np.savez(tmp_path / "mine.npz", observations=rows, actions=rows, terminals=ends, rewards=np.arange(10.0))
    facts = json.loads(uhm("data", "inspect", str(tmp_path / "mine.npz"), "--json", cwd=tmp_path).stdout)
    assert facts["transitions"] == 8
    assert (tmp_path / "mine.png").exists()


def test_the_data_directory_can_come_from_the_environment(rooms):
    import os

    checked = uhm("data", "check", "rooms", env={**os.environ, "UHM_DATA_DIR": str(rooms)})
    assert checked.returncode == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("data", "make", "cube-duble-play"), "Did you mean cube-double-play"),
        (("data", "lst"), "unknown part of `uhm data` 'lst'. Did you mean list? There are list, get, make"),
        (("suite", "rum", "paper"), "unknown part of `uhm suite` 'rum'. Did you mean run? There are plan, run."),
        (("data", "make"), "name at least one environment"),
        (("data", "make", "rooms", "--episodes", "0"), "--episodes must be at least 1"),
        (("data", "make", "rooms", "--seed", "-1"), "--seed must not be negative"),
        (("data", "make", "humanoidmaze-giant-navigate"), "humanoidmaze-giant-navigate"),
        (("data", "make", "antmaze-large-navigate", "--expert", "nowhere.npz"), "nowhere.npz"),
        (("data", "get", "rooms"), "uhm data make rooms"),
        (("data", "inspect", "scene-play", "--data-dir", "nowhere"), "uhm data make scene-play"),
        (("data", "inspect", "rooms", "--split", "test"), "--split must be train or val"),
        (("data", "check", "--data-dir", "nowhere"), "no data in nowhere"),
    ],
)
def test_bad_input_is_one_line_and_status_2(arguments, message):
    done = uhm(*arguments)
    assert done.returncode == 2
    assert done.stdout == ""
    assert message in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1


def test_existing_data_are_never_overwritten(rooms):
    before = (rooms / "rooms-v0.npz").read_bytes()
    again = uhm("data", "make", "rooms", "--episodes", "30", "--data-dir", str(rooms))
    assert again.returncode == 2
    assert "never overwritten" in again.stderr
    assert (rooms / "rooms-v0.npz").read_bytes() == before


def test_ctrl_c_ends_at_once_whatever_threads_are_busy():
    """XLA's are while it compiles, and crash if Python takes itself down meanwhile."""
    code = """
import sys, threading, time
from uhm import cli

def busy():
    threading.Thread(target=time.sleep, args=(60,)).start()
    raise KeyboardInterrupt("and how to go on.")

cli._parse = lambda _: busy
sys.argv[1:] = ["train"]
cli.main()
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=30)
    assert (done.returncode, done.stderr) == (130, "uhm: and how to go on.\n")


def test_damaged_data_of_the_embedded_default_are_called_that(rooms, tmp_path):
    whole = (rooms / "rooms-v0.npz").read_bytes()
    (tmp_path / "rooms-v0.npz").write_bytes(whole[: len(whole) // 2])
    done = uhm("train", "uhm", "rooms-task1", "--data-dir", str(tmp_path), "--run", str(tmp_path / "run"))
    assert done.returncode == 2
    assert "not a readable npz file" in done.stderr
    assert sorted(path.name for path in tmp_path.iterdir()) == ["rooms-v0.npz"]


def left_alone(*arguments, lines):
    """`uhm ... 2>&1 | head -LINES`: what was read, and the exit status of uhm."""
    command = [sys.executable, "-m", "uhm", *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        assert process.stdout is not None
        read = [process.stdout.readline() for _ in range(lines)]
        process.stdout.close()
        return read, process.wait(timeout=300)


@pytest.mark.slow
def test_training_goes_on_when_nobody_reads_any_more(rooms, tmp_path):
    small = ("--steps", "40", "--log-interval", "4", "--hidden", "8", "--batch-size", "8", "--eval-episodes", "1")
    where = ("--data-dir", str(rooms), "--run", str(tmp_path / "run"))
    (first,), status = left_alone("train", "rebrac-dagger", "rooms-task1", *small, *where, lines=1)
    assert "run" in first
    assert status == 0
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["steps"] == 40
    assert (tmp_path / "run" / "report" / "report.html").exists()  # made after the table, which nobody read


def test_so_does_a_listing_and_what_failed_keeps_its_status(rooms, tmp_path):
    assert left_alone("data", "list", lines=1)[1] == 0
    assert left_alone("data", "list", lines=0)[1] == 0  # never read, and so noticed when the process ends
    (tmp_path / "rooms-v0.npz").write_bytes((rooms / "rooms-v0.npz").read_bytes()[:-500])
    assert left_alone("data", "check", "rooms", "--data-dir", str(tmp_path), lines=0)[1] == 1


def test_another_broken_pipe_is_a_bug_with_a_traceback():
    code = """
import sys
from uhm import cli

def bug():
    raise BrokenPipeError("of a worker")

cli._parse = lambda _: bug
sys.argv[1:] = ["train"]
cli.main()
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=30)
    assert (done.returncode, done.stderr.splitlines()[-1]) == (1, "BrokenPipeError: of a worker")
