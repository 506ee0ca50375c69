"""A published copy holds what the run says, and nothing about the machine."""

import dataclasses
import gzip
import json
from pathlib import Path

import pytest

from report_runs import fake_run
from uhm.errors import UhmError
from uhm.report.collect import collect
from uhm.runs import publish as module
from uhm.runs.files import JsonLines, read_json, write_json
from uhm.runs.publish import publish


@pytest.fixture
def run(tmp_path):
    """A finished run as a machine leaves it: with paths, a name, and a long log."""
    made = fake_run(tmp_path / "home" / "mine", "uhm", "rooms", lambda *at: at[2] / 10, seeds=2)
    session = {
        "command": ["/somewhere/bin/uhm", "train", "--run", "/somewhere/mine", "--alpha", "0.1"],
        "directory": "/somewhere",
        "hardware": {"host": "somebody", "cpu": "fast"},
        "versions": {"uhm": "1"},
        "variables": {"JAX_COMPILATION_CACHE_DIR": "/somewhere/cache", "XLA_FLAGS": "--xla_dump"},
    }
    write_json(made / "environment.json", {"format": 1, "sessions": [session]})
    write_json(made / "config.json", read_json(made / "config.json") | {"data_dir": "/somewhere/data"})
    JsonLines(made / "episodes.jsonl").append({"step": 800, "member": i, "success": 0.5} for i in range(10))
    JsonLines(made / "metrics.jsonl").append({"step": step, "seconds": 0.5 * step} for step in range(1, 1001))
    (made / "checkpoints").mkdir(exist_ok=True)
    (made / "checkpoints" / "weights").write_bytes(b"x" * 1000)
    return made


def test_the_copy_reports_the_same(run, tmp_path):
    copy = publish(run, tmp_path / "kept")
    assert sorted(path.name for path in copy.iterdir()) == [
        *("config.json", "environment.json", "episodes.jsonl.gz", "metrics.jsonl.gz", "summary.json"),
    ]
    ours, theirs = (collect([where]).members for where in (copy, run))
    assert [dataclasses.replace(m, run=run) for m in ours] == theirs
    assert JsonLines(copy / "episodes.jsonl").read() == JsonLines(run / "episodes.jsonl").read()
    text = "".join(path.read_text() for path in copy.glob("*.json"))
    assert "somewhere" not in text
    assert "somebody" not in text
    assert read_json(copy / "environment.json")["sessions"][0]["command"][1:4] == ["train", "--run", "mine"]


def test_the_copy_knows_how_long_an_update_took(run, tmp_path):
    """Half a second a step, of which the copy has every fifth."""
    ours, theirs = (collect([where]).runs[0] for where in (publish(run, tmp_path / "kept"), run))
    assert (ours.update_seconds, ours.seconds) == (theirs.update_seconds, theirs.seconds)
    assert ours.update_seconds == 0.5


def test_the_log_is_thinned_to_its_end(run, tmp_path):
    copy = publish(run, tmp_path / "kept")
    steps = [
        json.loads(line)["step"] for line in gzip.decompress((copy / "metrics.jsonl.gz").read_bytes()).splitlines()
    ]
    assert steps == list(range(5, 1001, 5))


def test_again_is_the_same_and_a_failure_leaves_what_was_there(run, tmp_path, monkeypatch):
    first = {path.name: path.read_bytes() for path in publish(run, tmp_path / "kept").iterdir()}
    copy = publish(run, tmp_path / "kept")
    assert {path.name: path.read_bytes() for path in copy.iterdir()} == first

    def full(path, records):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(module, "_compress", full)
    with pytest.raises(UhmError, match="space"):
        publish(run, tmp_path / "kept")
    assert {path.name: path.read_bytes() for path in copy.iterdir()} == first


def test_an_unfinished_run_is_refused(run, tmp_path):
    (run / "summary.json").unlink()
    with pytest.raises(UhmError, match=r"mine is not finished: `uhm train --resume"):
        publish(run, tmp_path / "kept")
    assert not (tmp_path / "kept").exists()


@pytest.mark.parametrize("to", ["home", "home/../home", "home/mine/../", "link"])
def test_a_run_is_never_replaced_by_its_copy(run, tmp_path, to):
    (tmp_path / "link").symlink_to(tmp_path / "home")
    before = sorted(path.name for path in run.iterdir())
    with pytest.raises(UhmError, match=r"would replace the run .*mine itself: name another folder\.$"):
        publish(run, tmp_path / to)
    assert sorted(path.name for path in run.iterdir()) == before
    assert [path.name for path in (tmp_path / "home").iterdir()] == ["mine"]


def test_nor_is_the_folder_around_it_or_another_run(run, tmp_path, monkeypatch):
    inner = run.rename(tmp_path / "mine")  # the name stays that of the folder around it
    (tmp_path / "home" / "mine").mkdir()
    inner = inner.rename(tmp_path / "home" / "mine" / "mine")
    with pytest.raises(UhmError, match="itself"):
        publish(inner, tmp_path / "home")
    (tmp_path / "others" / "mine" / "checkpoints").mkdir(parents=True)
    with pytest.raises(UhmError, match=r"others/mine has checkpoints"):
        publish(inner, tmp_path / "others")
    assert (tmp_path / "others" / "mine" / "checkpoints").is_dir()
    monkeypatch.chdir(inner)
    assert publish(Path(), tmp_path / "kept") == tmp_path / "kept" / "mine"


def test_an_old_copy_that_cannot_be_deleted_is_out_of_the_way(run, tmp_path, monkeypatch):
    publish(run, tmp_path / "kept")
    write_json(run / "summary.json", read_json(run / "summary.json") | {"wall_time": 77.0})
    monkeypatch.setattr(module.shutil, "rmtree", lambda *_, **__: None)
    assert read_json(publish(run, tmp_path / "kept") / "summary.json")["wall_time"] == 77.0
    assert [made.directory.name for made in collect([tmp_path / "kept"]).runs] == ["mine"]  # the old one is no run
