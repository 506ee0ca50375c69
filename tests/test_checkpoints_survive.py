"""What damage, kills and full disks do to checkpoints: never more than cost the newest one."""

import errno
import os
import random
import resource
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from uhm.errors import UhmError
from uhm.runs import Run, checkpoints, params_sha256


def fill(step: int) -> dict[str, np.ndarray]:
    return {f"leaf{i}": np.full((1000,), step, np.int32) for i in range(4)}


def overwrite(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


DAMAGES: dict[str, Callable[[Path], object]] = {
    "deleted": Path.unlink,
    "emptied": lambda path: path.write_bytes(b""),
    "cut": lambda path: os.truncate(path, path.stat().st_size // 2),
    "one bit": overwrite,
}


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES.keys())
def test_a_damaged_checkpoint_is_passed_over(damage: Callable[[Path], object], tmp_path: Path, capfd: Any) -> None:
    newest = tmp_path / "checkpoints" / "2"
    with Run.create(tmp_path, {}) as run:
        run.save(1, fill(1))
        run.save(2, fill(2), block=True)
        shutil.copytree(newest, tmp_path / "copy")
        names = [path.relative_to(newest) for path in newest.rglob("*") if path.is_file()]
        assert Path("manifest.json") in names and len(names) > 4
        for name in names:
            damage(newest / name)
            with pytest.warns(UserWarning, match=r"checkpoint 2 in .* is damaged \(.+\); using 1"):
                restored = run.restore(fill(0))
            assert restored is not None and restored[0] == 1
            assert params_sha256(restored[1]) == params_sha256(fill(1))
            shutil.rmtree(newest)
            shutil.copytree(tmp_path / "copy", newest)
        assert (run.restore(fill(0)) or [None])[0] == 2
        damage(newest / "manifest.json")
        with pytest.raises(UhmError, match=r"checkpoint 2 in .* cannot be read \(.*\); others are \[1\]"):
            run.restore(fill(0), step=2)
        damage(tmp_path / "checkpoints" / "1" / "manifest.json")
        with pytest.raises(UhmError, match=r"no checkpoint in .* can be read"):
            run.restore(fill(0))
        run.save(2, fill(2))  # replaces the damaged one
        assert (run.restore(fill(0)) or [None])[0] == 2
    assert capfd.readouterr().err == ""


def test_what_a_kill_left_behind_is_cleared_up(tmp_path: Path) -> None:
    folder = tmp_path / "checkpoints"
    with Run.create(tmp_path, {}) as run:
        run.save(1, fill(1))
        run.save(2, fill(2))
    (folder / "2").rename(folder / "2.0.tmp")  # complete: killed just before the rename
    shutil.copytree(folder / "1", folder / "3.1.tmp", ignore=shutil.ignore_patterns("manifest.json"))
    shutil.copytree(folder / "1", folder / "0.removed")
    with Run.open(tmp_path, write=False) as reader:
        assert reader.steps() == [1]
    with Run.open(tmp_path) as run:
        assert run.steps() == [1, 2]
        assert sorted(path.name for path in folder.iterdir()) == ["1", "2"]
        assert (run.restore(fill(0)) or [None])[0] == 2


def test_an_old_checkpoint_that_cannot_be_deleted_ends_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """NFS keeps the folder of a file that another process reads: rmdir says that it is not empty."""
    folder, usual = tmp_path / "checkpoints", os.rmdir

    def busy(path: Any, **options: Any) -> None:
        if str(path).endswith(".removed"):
            raise OSError(errno.ENOTEMPTY, os.strerror(errno.ENOTEMPTY), str(path))
        usual(path, **options)

    def leftovers() -> int:
        return len(list(folder.glob("*.removed")))

    with monkeypatch.context() as patch:
        patch.setattr(os, "rmdir", busy)
        with Run.create(tmp_path, {}, keep=1) as run:
            for _ in range(2):  # what is left of the first is not in the second's way
                run.save(1, fill(1), block=True)
                run.rewind(0)
            run.save(2, fill(2), block=True)
            run.save(3, fill(3), block=True)
            assert run.steps() == [3]
            assert leftovers() == 3
        with Run.open(tmp_path, keep=1) as run:
            assert leftovers() == 3
            run.save(4, fill(4), block=True)
            assert run.steps() == [4]
    with Run.open(tmp_path, keep=1) as run:
        assert leftovers() == 0
        assert (run.restore(fill(0)) or [None])[0] == 4


def test_nor_does_one_that_cannot_be_renamed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usual = Path.rename

    def busy(path: Path, to: Path) -> Path:
        if path.name == "1":
            raise OSError(errno.EBUSY, os.strerror(errno.EBUSY), str(path))
        return usual(path, to)

    with Run.create(tmp_path, {}, keep=1) as run:
        run.save(1, fill(1), block=True)
        with monkeypatch.context() as patch:
            patch.setattr(Path, "rename", busy)
            run.save(2, fill(2), block=True)
            assert run.steps() == [1, 2]
        run.save(3, fill(3), block=True)
        assert run.steps() == [3]


KILLED = """
import sys, itertools, numpy as np
from pathlib import Path
from uhm.runs import Run
run = Run.open(Path(sys.argv[1]), keep=1)
tree = lambda step: {f"leaf{i}": np.full((200_000,), step, np.int32) for i in range(4)}
found = run.restore(tree(0))
first = found[0] + 1 if found else 1
run.rewind(first - 1)
assert all((leaf == first - 1).all() for leaf in found[1].values()) if found else True
for step in itertools.count(first):
    run.log(step, {"loss": step})
    run.save(step, tree(step), score=-step if step % 3 else step)
    print(step, flush=True)
"""


def test_a_kill_at_any_moment_leaves_complete_checkpoints(tmp_path: Path) -> None:
    Run.create(tmp_path, {}).close()
    reached, template = 0, {f"leaf{i}": np.zeros(200_000, np.int32) for i in range(4)}
    for seed in range(4):
        command = [sys.executable, "-W", "error", "-c", KILLED, str(tmp_path)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as child:
            assert child.stdout is not None
            first = int(child.stdout.readline())
            assert first > reached
            int(child.stdout.readline())  # the first is complete when the second has been taken
            time.sleep(random.Random(seed).uniform(0, 0.2))
            child.kill()
        with Run.open(tmp_path, write=False) as run:
            assert all((tmp_path / "checkpoints" / str(step) / "manifest.json").exists() for step in run.steps())
            restored = run.restore(template)
            assert restored is not None and restored[0] >= first
            reached = restored[0]
            assert all((leaf == reached).all() for leaf in restored[1].values())
            logged = [line["step"] for line in run.metrics()]
            assert logged == list(range(1, len(logged) + 1)) and len(logged) >= reached


def test_a_full_disk_loses_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    run = Run.create(tmp_path, {})
    run.save(1, fill(1), block=True)
    with monkeypatch.context() as patch:
        # The system refuses the reservation as it would on a full disk ...
        resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, hard))
        try:
            run.save(2, fill(2))
            with pytest.raises(UhmError, match=r"cannot save checkpoint 2 in .*: File too large") as error:
                run.save(3, fill(3))
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        assert "\n" not in str(error.value)
        # ... and the disk fills up after it.
        full = OSError(28, "No space left on device")
        patch.setattr(checkpoints, "write_json", lambda *_: (_ for _ in ()).throw(full))
        run.save(2, fill(2))
        with pytest.raises(UhmError, match=r"checkpoint 2 in .*: No space left on device; the earlier"):
            run.finish({})
        assert run.summary() is None
        run.save(2, fill(2))
        with pytest.raises(KeyError) as bug, run:  # the first error is not hidden by the second
            raise KeyError("bug")
        assert "No space left" in bug.value.__notes__[0]
    assert [path.name for path in (tmp_path / "checkpoints").iterdir()] == ["1"]
    with Run.open(tmp_path) as run:  # the lock was released all the same
        assert (run.restore(fill(0)) or [None])[0] == 1
        run.save(2, fill(2), block=True)
        assert run.steps() == [1, 2]
