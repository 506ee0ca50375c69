"""Whether files that are there already are what is asked for. Nothing that is finished is ever overwritten.

Files that are made here carry a note of how, the comment of their archive; numpy and OGBench do not look at it.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from uhm import tasks
from uhm.data import collect, expert
from uhm.data.npz import NpzFile
from uhm.errors import UhmError


def as_asked(path: Path, episodes: int, manifest: Mapping[str, Any]) -> bool:
    """Whether `path` is there, with that many episodes made as the manifest says; one with other contents is refused.

    What a file does not say is taken for the default.
    """
    if not path.exists():
        return False
    file = NpzFile(path, remedy="delete it to make it again")
    found, rows = file.require("terminals", 1).shape[0], manifest["rows"]
    if found != episodes * rows:
        unit, size = ("episodes", rows) if found % rows == 0 else ("rows", 1)
        raise never_overwritten(f"{path} exists with {found // size} {unit}, not {episodes * rows // size}")
    note = _note(file)
    for key, unsaid in _unsaid(manifest["environment"]).items():
        wanted = manifest[key]
        if key in note and note[key] != wanted:
            raise never_overwritten(f"{path} exists, made with {key} {note[key]}, not {wanted}")
        if key not in note and wanted != unsaid:
            raise never_overwritten(f"{path} exists, does not say that it was made with {key} {wanted}")
    return True


def _unsaid(environment: str) -> dict[str, Any]:
    """What has to be the same, and what it is in files without a note: OGBench's own, and those of earlier versions."""
    usual = None if environment == tasks.ROOMS.name else collect.recipe(tasks.environment(environment)).expert
    return {"seed": 0, "expert": expert.digest(usual)}


def never_overwritten(what: str) -> UhmError:
    return UhmError(f"{what}, and is never overwritten: delete it or give another --data-dir.")


def _note(file: NpzFile) -> dict[str, Any]:
    try:
        note = json.loads(file.note)
    except ValueError:  # somebody else's comment
        return {}
    return note if isinstance(note, dict) else {}
