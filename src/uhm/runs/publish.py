"""A small copy of a finished run, to keep beside what one claims: everything but its checkpoints.

Config, summary with every member's score and digest, all evaluation episodes and a thinned log, the latter two
compressed; versions, hardware and commands without what names the machine. `uhm report` reads it like the run itself.
"""

import gzip
import json
import shutil
from pathlib import Path
from typing import Any

from uhm.errors import UhmError, writing
from uhm.runs.files import JsonLines, read_json, write_json

_LINES = 200  # of the log, evenly spread: a curve needs no more


def publish(directory: Path, to: Path) -> Path:
    """Copy the run in `directory` into the folder `to`, under its own name, and return the copy."""
    if not (directory / "summary.json").exists():
        raise UhmError(f"{directory} is not finished: `uhm train --resume {directory}` first.")
    copy = place(directory, to)
    partial, before = copy.with_name(f".{copy.name}.partial"), copy.with_name(f".{copy.name}.before")
    with writing(to):
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(parents=True)
        write_json(partial / "config.json", read_json(directory / "config.json") | {"data_dir": None})
        write_json(partial / "summary.json", read_json(directory / "summary.json"))
        about = read_json(directory / "environment.json")
        write_json(partial / "environment.json", about | {"sessions": [unnamed(one) for one in about["sessions"]]})
        _compress(partial / "episodes.jsonl.gz", JsonLines(directory / "episodes.jsonl").read())
        _compress(partial / "metrics.jsonl.gz", _thinned(JsonLines(directory / "metrics.jsonl").read()))
        shutil.rmtree(before, ignore_errors=True)
        if copy.exists():
            copy.rename(before)
        partial.rename(copy)
    shutil.rmtree(before, ignore_errors=True)
    return copy


def place(directory: Path, to: Path) -> Path:
    """Where in `to` the copy of a run goes. Refuses a place that holds a run itself, which the copy would replace."""
    copy = to / directory.absolute().name  # `.` has no name of its own
    if directory.resolve().is_relative_to(copy.resolve()):
        raise UhmError(f"a published copy in {to} would replace the run {directory} itself: name another folder.")
    if (copy / "checkpoints").exists():
        raise UhmError(f"{copy} has checkpoints, so it is a run and no published copy: name another folder.")
    return copy


def unnamed(session: dict[str, Any]) -> dict[str, Any]:
    """A session without the machine's name and folders: of a path in the command or a variable its last part stays."""
    short = lambda word: Path(word).name if Path(word).is_absolute() else word  # noqa: E731
    command = [short(word) for word in session["command"]]
    variables = {name: short(value) for name, value in session.get("variables", {}).items()}
    hardware = {name: value for name, value in session["hardware"].items() if name != "host"}
    rest = {name: value for name, value in session.items() if name != "directory"}
    return rest | {"command": command, "hardware": hardware, "variables": variables}


def _thinned(records: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """At most `_LINES`, the last one among them."""
    every = -(-len(records) // _LINES) or 1
    return records[::-1][::every][::-1]


def _compress(path: Path, records: list[dict[str, Any]]) -> None:
    lines = "".join(json.dumps(record) + "\n" for record in records)
    path.write_bytes(gzip.compress(lines.encode(), mtime=0))  # no time stamp: the same run is the same bytes
