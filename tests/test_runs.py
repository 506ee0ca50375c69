"""The run directory without its checkpoints: what is refused, what is written, and what survives."""

import contextlib
import json
import os
import platform
import resource
import signal
import subprocess
import sys
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import uhm
from uhm.errors import UhmError
from uhm.runs import FORMAT, Run, Sink, TensorBoard, WandB, environment
from uhm.runs.files import JsonLines, write_figure


@contextlib.contextmanager
def files_limited_to(size: int) -> Iterator[None]:
    """A disk that fills up: the system refuses to make any file longer than `size`."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def strict(text: str) -> Any:
    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is not JSON")

    return json.loads(text, parse_constant=refuse)


def test_importing_runs_loads_neither_jax_nor_orbax() -> None:
    code = "import sys, uhm.runs; sys.exit('jax' in sys.modules or 'orbax' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_a_new_run_says_what_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XLA_FLAGS", "--xla_dump_hlo_as_text")
    with Run.create(tmp_path / "a" / "run", {"task": "rooms-task1", "widths": (64, 64)}) as run:
        config = run.config
    assert config == {"task": "rooms-task1", "widths": [64, 64]}
    assert json.loads((tmp_path / "a" / "run" / "config.json").read_text()) == config
    about = json.loads((tmp_path / "a" / "run" / "environment.json").read_text())
    assert about["format"] == FORMAT
    (session,) = about["sessions"]
    assert session["versions"]["uhm"] == uhm.__version__
    assert session["versions"]["jax"] == jax.__version__
    assert session["versions"]["python"] == platform.python_version()
    assert session["command"] == sys.argv
    assert session["variables"]["XLA_FLAGS"] == "--xla_dump_hlo_as_text"
    assert session["hardware"]["cpus"] == os.cpu_count()
    assert [d["kind"] for d in session["hardware"]["devices"]] == [d.device_kind for d in jax.devices()]
    with Run.open(tmp_path / "a" / "run") as run:
        assert run.config == config
    assert len(json.loads((tmp_path / "a" / "run" / "environment.json").read_text())["sessions"]) == 2


def test_the_source_revision_is_that_of_the_checkout(tmp_path: Path) -> None:
    def git(*command: str) -> str:
        identity = ["-c", "user.name=n", "-c", "user.email=e@x", "-c", "init.defaultBranch=main"]
        return subprocess.check_output(["git", *identity, *command], cwd=tmp_path, text=True, stderr=subprocess.PIPE)

    package, installed = tmp_path / "src" / "package", tmp_path / "venv" / "package"
    for folder in (package, installed):
        folder.mkdir(parents=True)
        (folder / "__init__.py").write_text("")
    assert environment.source(package) is None
    git("init")
    git("add", "src")
    git("commit", "-m", "first")
    (tmp_path / "notes").write_text("outside of the package, so it changes no result")
    assert environment.source(package) == {"revision": git("rev-parse", "HEAD").strip(), "dirty": False}
    (package / "new.py").write_text("")
    assert environment.source(package) == {"revision": git("rev-parse", "HEAD").strip(), "dirty": True}
    assert environment.source(installed) is None


def test_a_used_directory_is_refused(tmp_path: Path) -> None:
    Run.create(tmp_path / "run", {}).close()
    with pytest.raises(UhmError, match=r"holds a run already: go on with `uhm train --resume .*/run`"):
        Run.create(tmp_path / "run", {})
    (tmp_path / "thesis.tex").write_text("years of work")
    before = set(tmp_path.iterdir())
    with pytest.raises(UhmError, match="not empty and not a run"):
        Run.create(tmp_path, {})
    assert set(tmp_path.iterdir()) == before


def test_an_interrupted_creation_can_be_repeated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt() -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(environment, "session", interrupt)
        Run.create(tmp_path, {})
    with pytest.raises(UhmError, match="not a run"):
        Run.open(tmp_path)
    Run.create(tmp_path, {}).close()


def test_what_cannot_be_opened(tmp_path: Path) -> None:
    with pytest.raises(UhmError, match="no run directory"):
        Run.open(tmp_path / "typo")
    with pytest.raises(UhmError, match=r"not a run: it holds no config\.json"):
        Run.open(tmp_path)
    Run.create(tmp_path, {}).close()
    (tmp_path / "environment.json").write_text(json.dumps({"format": FORMAT + 1}))
    with pytest.raises(UhmError, match=f"made by another version: its format is {FORMAT + 1}"):
        Run.open(tmp_path)
    (tmp_path / "environment.json").write_text("{")
    with pytest.raises(UhmError, match=r"cannot read .*environment\.json"):
        Run.open(tmp_path)


def test_a_directory_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UhmError, match=r"cannot write .*: Not a directory") as error:
        Run.create(tmp_path / "file" / "run", {})
    assert "\n" not in str(error.value)
    with pytest.raises(UhmError, match="at least 1"):
        Run.create(tmp_path / "run", {}, keep=0)


def test_one_writer_and_any_readers(tmp_path: Path) -> None:
    code = "import sys; from pathlib import Path; from uhm.runs import Run; r = Run.create(Path(sys.argv[1]), {});"
    code += "r.log(1, {'loss': 2.0}); print('ready', flush=True); sys.stdin.read()"
    command = [sys.executable, "-c", code, str(tmp_path / "run")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None and child.stdout.readline() == "ready\n"
        with pytest.raises(UhmError, match=f"in use by process {child.pid} on"):
            Run.open(tmp_path / "run")
        with Run.open(tmp_path / "run", write=False) as reader:
            assert reader.metrics() == [{"step": 1, "loss": 2.0}]
            with pytest.raises(RuntimeError, match="reading only"):
                reader.log(2, {})
        child.send_signal(signal.SIGKILL)
    with Run.open(tmp_path / "run"), pytest.raises(UhmError, match=f"in use by process {os.getpid()} on"):
        Run.open(tmp_path / "run")
    Run.open(tmp_path / "run").close()


def test_metrics_are_json_whatever_is_measured(tmp_path: Path) -> None:
    with Run.create(tmp_path, {}) as run:
        run.log(3, {"loss": np.float32(0.5), "q": float("nan"), "w": [1, np.inf], "j": jnp.asarray([[1.0, -jnp.inf]])})
        run.log(4, {"flag": np.bool_(True), "count": np.int64(7), "nested": {"path": tmp_path}})
        expected = [
            {"step": 3, "loss": 0.5, "q": None, "w": [1, None], "j": [[1.0, None]]},
            {"step": 4, "flag": True, "count": 7, "nested": {"path": str(tmp_path)}},
        ]
        assert run.metrics() == expected
    assert [strict(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()] == expected


@pytest.mark.parametrize("tail", ['{"step": 3, "lo', '{"step": 3}', "\0\0\0\0", "\0\0\n"])
def test_a_torn_last_line_is_dropped(tail: str, tmp_path: Path) -> None:
    with Run.create(tmp_path, {}) as run:
        run.log(1, {})
        run.log(2, {})
    with (tmp_path / "metrics.jsonl").open("a") as file:
        file.write(tail)
    assert [line["step"] for line in Run.open(tmp_path, write=False).metrics()] == [1, 2]
    with Run.open(tmp_path) as run:
        run.log(3, {})
        assert [line["step"] for line in run.metrics()] == [1, 2, 3]


def test_a_line_is_parsed_once_and_to_repair_only_the_last(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log, usual, parsed = JsonLines(tmp_path / "log"), json.loads, []
    log.append({"step": step} for step in range(5))
    with monkeypatch.context() as patch:
        patch.setattr(json, "loads", lambda line: parsed.append(line) or usual(line))
        log.repair()
        assert parsed == [b'{"step": 4}\n']
        parsed.clear()
        assert [record["step"] for record in log.read()] == [0, 1, 2, 3, 4]
        assert len(parsed) == 5
        parsed.clear()
        log.cut(2)
        assert len(parsed) == 5
    assert log.path.read_text() == '{"step": 0}\n{"step": 1}\n{"step": 2}\n'


@pytest.mark.parametrize("text", ["", '{"step": 1', "\0\0", "\n", '{"step": 1}'])
def test_a_log_of_nothing_but_half_a_line_is_empty(text: str, tmp_path: Path) -> None:
    log = JsonLines(tmp_path / "log")
    log.repair()  # nothing is there, and nothing is made
    assert not log.path.exists()
    log.path.write_text(text)
    assert log.read() == []
    log.repair()
    assert log.path.read_bytes() == b""


def test_a_damaged_line_in_the_middle_is_not_passed_over(tmp_path: Path) -> None:
    Run.create(tmp_path, {}).close()
    (tmp_path / "metrics.jsonl").write_text('{"step": 1}\n{"st\n{"step": 3}\n')
    with pytest.raises(UhmError, match="line 2 is not JSON"):
        Run.open(tmp_path, write=False).metrics()


def test_an_evaluation_is_written_whole_or_not_at_all(tmp_path: Path) -> None:
    first, second = ([{"step": step, "seed": i, "success": i % 2} for i in range(50)] for step in (1, 2))
    with Run.create(tmp_path, {}) as run:
        run.log_episodes(first)
        size = (tmp_path / "episodes.jsonl").stat().st_size
        with files_limited_to(size + 100), pytest.raises(UhmError, match=r"cannot write .*episodes\.jsonl: "):
            run.log_episodes(second)
        assert (tmp_path / "episodes.jsonl").stat().st_size == size
        run.log_episodes(second)
        assert run.episodes() == first + second
        with pytest.raises(ValueError, match="without its step"):
            run.log_episodes([{"seed": 1}])


def test_rewind_drops_what_is_later(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with Run.create(tmp_path, {}) as run:
        for step in (10, 20, 30):
            run.log(step, {"loss": 1 / step})
            run.log_episodes([{"step": step, "episode": i} for i in range(2)])
        run.finish({"success": 0.5})
        before = (tmp_path / "metrics.jsonl").read_bytes()
        with monkeypatch.context() as patch, pytest.raises(UhmError, match="cannot write"):
            patch.setattr(os, "fsync", lambda file: (_ for _ in ()).throw(OSError("the disk is gone")))
            run.rewind(20)
        assert (tmp_path / "metrics.jsonl").read_bytes() == before
        run.rewind(20)
        assert [line["step"] for line in run.metrics()] == [10, 20]
        assert [line["step"] for line in run.episodes()] == [10, 10, 20, 20]
        assert (tmp_path / "metrics.jsonl").read_bytes() == b"".join(before.splitlines(keepends=True)[:2])
        assert run.summary() is None
        run.log(30, {"loss": 1 / 30})
    assert (tmp_path / "metrics.jsonl").read_bytes() == before
    assert sorted(path.name for path in tmp_path.glob("*.tmp")) == []


def test_finish_leaves_a_summary(tmp_path: Path) -> None:
    with Run.create(tmp_path, {}) as run:
        assert run.summary() is None
        run.finish({"success": np.float64(0.25), "worst": float("-inf")})
    assert Run.open(tmp_path, write=False).summary() == {"success": 0.25, "worst": None}
    assert strict((tmp_path / "summary.json").read_text()) == {"success": 0.25, "worst": None}
    with pytest.raises(RuntimeError, match="closed"):
        run.log(1, {})


class Fake:
    """Stands for a package, a writer or a run: remembers every call."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = []

    def __getattr__(self, name: str) -> Any:
        return lambda *args, **kwargs: self.calls.append((name, args, kwargs)) or self


def test_sinks_get_the_numbers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    board, wandb = Fake(), Fake()
    monkeypatch.setitem(sys.modules, "tensorboardX", types.SimpleNamespace(SummaryWriter=board.SummaryWriter))
    monkeypatch.setitem(sys.modules, "wandb", types.SimpleNamespace(init=wandb.init))
    folder, values = tmp_path / "run", {"loss": [1.0, np.nan, 3.0], "note": "text", "eval": {"success": 1}}
    sinks: list[Sink] = [TensorBoard(folder), WandB(folder, {"a": 1})]
    with Run.create(folder, {"a": 1}, sinks=sinks) as run:
        run.log(5, values)
    expected = {"loss/0": 1.0, "loss/2": 3.0, "eval/success": 1.0}
    assert board.calls[0] == ("SummaryWriter", (), {"logdir": str(folder / "tensorboard"), "purge_step": 5})
    assert {args[0]: args[1] for name, args, _ in board.calls if name == "add_scalar"} == expected
    assert {args[2] for name, args, _ in board.calls if name == "add_scalar"} == {5}
    assert board.calls[-1][0] == "close"
    assert [call[0] for call in wandb.calls] == ["init", "define_metric", "define_metric", "log", "finish"]
    assert wandb.calls[0][2]["config"] == {"a": 1}
    assert wandb.calls[3] == ("log", ({"step": 5, **expected},), {})  # a row of its own, also for a step told twice
    with Run.open(folder, sinks=[WandB(folder, {"a": 1})]) as run:
        run.log(6, values)
    assert wandb.calls[5][2]["id"] == wandb.calls[0][2]["id"]


@pytest.mark.parametrize(("package", "extra"), [("tensorboardX", "tensorboard"), ("wandb", "wandb")])
def test_a_missing_extra_says_what_to_install(
    package: str, extra: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(UhmError, match=rf"{package} is not installed: in the clone, pip install '\.\[{extra}\]'"):
        TensorBoard(tmp_path) if extra == "tensorboard" else WandB(tmp_path, {})


def test_a_broken_sink_does_not_stop_the_run(tmp_path: Path) -> None:
    class Broken:
        def log(self, step: int, values: dict[str, Any]) -> None:
            raise ConnectionError("the network is gone")

        def close(self) -> None:
            raise AssertionError("a dropped sink is left alone")

    class Stuck:
        def log(self, step: int, values: dict[str, Any]) -> None: ...

        def close(self) -> None:
            raise ConnectionError("no farewell")

    healthy = Fake()
    sinks: list[Any] = [Broken(), healthy]
    with Run.create(tmp_path, {}, sinks=sinks) as run:
        with pytest.warns(UserWarning, match="Broken failed and gets no more metrics: the network is gone"):
            run.log(1, {"loss": 1.0})
        run.log(2, {"loss": 2.0})  # a second warning would be an error here
    assert [call[0] for call in healthy.calls] == ["log", "log", "close"]
    assert len(run.metrics()) == 2
    with pytest.warns(UserWarning, match="no farewell"):
        Run.open(tmp_path, sinks=[Stuck()]).close()


def test_a_figure_is_written_whole_or_not_at_all(tmp_path: Path) -> None:
    """Where a file may have 2,000 bytes and no more, as where a disk is full."""
    from matplotlib.figure import Figure

    figure = Figure()
    figure.subplots().plot([1, 2])
    for kind in ("png", "pdf"):
        path = tmp_path / f"figure.{kind}"
        write_figure(path, figure, dpi=50)
        before = path.read_bytes()
        assert len(before) > 2000
        with files_limited_to(2000), pytest.raises(UhmError, match=rf"cannot write .*figure\.{kind}: File too large"):
            write_figure(path, figure, dpi=60)
        assert path.read_bytes() == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["figure.pdf", "figure.png"]
