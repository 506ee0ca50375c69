"""The file that a long measurement writes as it goes, and goes on with when it is called again."""

import dataclasses
from pathlib import Path
from typing import Any

from uhm.bench import TURNS, Row, Setting
from uhm.errors import UhmError
from uhm.runs.environment import session
from uhm.runs.files import plain, read_json, write_json
from uhm.runs.publish import unnamed


class Record:
    """What was measured so far: by this process and, where `path` is there already, by those before it.

    Every row says in which of the sessions it was measured; a session has versions, revision, hardware and command.
    """

    def __init__(self, setting: Setting, steps: int | None, path: Path | None = None):
        self._path = path
        sizes = {name: value for name, value in dataclasses.asdict(setting).items() if name != "compute_dtype"}
        self._setting = plain({**sizes, "steps": steps, "turns": TURNS})
        self._rows: list[tuple[int, Row]] = []
        self.loops: dict[str, float] = {}  # milliseconds of one agent in a loop on the host
        self._sessions: list[dict[str, Any]] = []
        mine = plain(unnamed(session()))
        if path is not None and path.exists():
            self._read(path, mine)
        self._sessions.append(mine)

    @property
    def rows(self) -> list[Row]:
        return [row for _, row in self._rows]

    @property
    def known(self) -> set[tuple[str, int, str]]:
        """What need not be measured again: (agent, members, compute_dtype)."""
        return {(row.agent, row.members, row.compute_dtype) for row in self.rows}

    def add(self, rows: list[Row], loops: dict[str, float] | None = None) -> None:
        """Also to the file."""
        self._rows += [(len(self._sessions) - 1, row) for row in rows]
        self.loops |= loops or {}
        if self._path is not None:
            rows_of = [{"session": number, **row._asdict()} for number, row in self._rows]
            everything = {"sessions": self._sessions, "setting": self._setting, "rows": rows_of}
            write_json(self._path, {**everything, "host_loop": self.loops})

    def _read(self, path: Path, mine: dict[str, Any]) -> None:
        before = read_json(path)
        try:
            self._rows = [(row.pop("session"), Row(**row)) for row in before["rows"]]
            self.loops, self._sessions = before["host_loop"], before["sessions"]
            same = before["setting"] == self._setting and all(
                one["hardware"]["devices"] == mine["hardware"]["devices"] for one in self._sessions
            )
        except (KeyError, TypeError, AttributeError):
            raise UhmError(f"{path} is no measurement of `uhm bench update`: name another file.") from None
        if not same:
            raise UhmError(f"{path} was measured with other sizes or on another device: name another file.")
