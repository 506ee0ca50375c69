"""Compiled programs are kept on a GPU only, within limits, and where the user wants them."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import jax
import pytest

from report_runs import fake_run
from uhm import cli
from uhm.runs import programs
from uhm.suites import worker

# A CPU can keep programs, too, so that it can be tried out here.
SCRIPT = """
import jax, sys
from uhm.runs import programs
from uhm.suites import worker
jax.default_backend = lambda: "gpu"
jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
print(programs.keep())
jax.jit(lambda x: x * 2 + 1)(3.0)
"""


def run(**environment: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT], env=os.environ | environment, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.mark.slow
def test_programs_are_kept_and_the_users_folder_wins(tmp_path: Path) -> None:
    folder = tmp_path / "uhm" / "programs"
    assert run(XDG_CACHE_HOME=str(tmp_path)) == str(folder)
    (kept,) = folder.glob("jit__lambda*-cache")
    before = kept.stat().st_mtime_ns
    assert run(XDG_CACHE_HOME=str(tmp_path)) == str(folder)  # found again, so not written
    assert [path.stat().st_mtime_ns for path in folder.glob("jit__lambda*-cache")] == [before]
    own = tmp_path / "own"
    assert run(XDG_CACHE_HOME=str(tmp_path / "other"), JAX_COMPILATION_CACHE_DIR=str(own)) == str(own)
    assert list(own.glob("jit__lambda*-cache")) and not (tmp_path / "other").exists()
    (tmp_path / "file").touch()
    assert run(XDG_CACHE_HOME=str(tmp_path / "file")) == "None"  # no folder can be made there, and it works


def test_not_on_a_cpu(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    config: Any = jax.config
    before = config.jax_compilation_cache_dir
    assert programs.keep() is None
    assert (config.jax_compilation_cache_dir, list(tmp_path.iterdir())) == (before, [])


def test_the_oldest_go_first(tmp_path: Path) -> None:
    for age, name in enumerate(("new", "middle", "deep/old")):
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(bytes(10))
        os.utime(path, (1000 - age, 1000 - age))
    programs.prune(tmp_path, 30)
    assert sum(path.is_file() for path in tmp_path.rglob("*")) == 3
    programs.prune(tmp_path, 15)
    assert [path.name for path in tmp_path.rglob("*") if path.is_file()] == ["new"]


@pytest.mark.parametrize("resumed", [False, True])
def test_training_keeps_them(resumed: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    said = []
    monkeypatch.setattr(programs, "keep", lambda: said.append("keep"))
    for verb in ("start", "resume"):
        monkeypatch.setattr(f"uhm.train.{verb}", lambda *_, **__: said.append("train") or {"environment": "rooms"})
    monkeypatch.setattr("uhm.cli.train._end", lambda *_: 0)
    arguments = ["--resume", str(tmp_path)] if resumed else ["uhm", "rooms", "--run", str(tmp_path / "run")]
    assert cli.run(["train", *arguments]) == 0
    assert said == ["keep", "train"]


def test_who_watches_from_a_resume_on_sees_the_config(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    run = fake_run(tmp_path / "run", "uhm", "rooms", lambda *_: 1.0, session=True, alpha=0.7)
    seen: list[Any] = []
    monkeypatch.setattr("uhm.runs.WandB", lambda *given: seen.append(given))
    monkeypatch.setattr("uhm.train.resume", lambda *_, **__: {"environment": "rooms"})
    monkeypatch.setattr("uhm.cli.train._end", lambda *_: 0)
    assert cli.run(["train", "--resume", str(run), "--wandb", "mine"]) == 0
    [(directory, config, project)] = seen
    assert (directory, project, config["hyper"]["alpha"]) == (run, "mine", 0.7)


def test_a_suite_keeps_them(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    said = []
    monkeypatch.setattr(programs, "keep", lambda: said.append("keep"))
    monkeypatch.setattr("uhm.train.resume", lambda _: said.append("train"))
    (tmp_path / "config.json").touch()
    worker._train(worker.Job(str(tmp_path), {}, "cpu"), tmp_path)
    assert said == ["keep", "train"]
