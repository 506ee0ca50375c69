"""One file over HTTP into a growing part of it, which outlives cuts, Ctrl-C and changes of server.

The part `NAME.part` has a note `NAME.part.json` beside it that says which version of the file the server was sending.
A request for the rest names that version (If-Range), so that two versions are never joined: a server that has another
one, or that knows no ranges, answers with the whole file and the part starts over.
"""

import hashlib
import http.client
import json
import os
import re
import urllib.error
import urllib.request
import zipfile
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from rich.progress import Progress, TaskID

CONNECT_TIMEOUT = 5.0
READ_TIMEOUT = 30.0
FRUITLESS_ATTEMPTS = 3  # transfers in a row that got no further before the next server is asked
CHUNK = 1 << 18
_CONTENT_RANGE = re.compile(r"bytes (\d+)-\d+/(\d+)")


class ServerError(Exception):
    """This server cannot provide the file; another one may."""


class Rejected(Exception):
    """The bytes arrived and are wrong."""


class Cut(Exception):
    """The connection broke during the transfer."""


@dataclass
class Part:
    """The growing file and the note beside it: the version it is a part of, and that version's length."""

    path: Path
    note: Path

    @classmethod
    def beside(cls, path: Path) -> "Part":
        return cls(path.with_name(f"{path.name}.part"), path.with_name(f"{path.name}.part.json"))

    @property
    def size(self) -> int:
        return self.path.stat().st_size if self.path.exists() else 0

    @property
    def version(self) -> str:
        return str(self._read().get("version", ""))

    @property
    def total(self) -> int | None:
        total = self._read().get("total")
        return total if isinstance(total, int) else None

    @property
    def complete(self) -> bool:
        return self.total is not None and self.size == self.total

    def _read(self) -> dict[str, object]:
        try:
            found = json.loads(self.note.read_text())
        except (OSError, ValueError):
            return {}
        return found if isinstance(found, dict) else {}

    def begin(self, version: str, total: int | None) -> None:
        self.path.write_bytes(b"")
        self.note.write_text(json.dumps({"version": version, "total": total}))

    def discard(self) -> None:
        self.path.unlink(missing_ok=True)
        self.note.unlink(missing_ok=True)

    def verify(self, sha256: str | None) -> None:
        """Check the content of a part of full length. What is wrong is thrown away: there is nothing to resume."""
        problem = _problem(self.path, sha256)
        if problem:
            self.discard()
            raise Rejected(problem)

    def finish(self, path: Path) -> None:
        with self.path.open("rb+") as file:
            os.fsync(file.fileno())  # a power cut must not leave a name without its bytes
        self.path.replace(path)
        self.note.unlink(missing_ok=True)


def _problem(path: Path, sha256: str | None) -> str | None:
    """What is wrong with a file that should be an npz. The zip's own CRC-32s cover every array: all are read."""
    try:
        with zipfile.ZipFile(path) as archive:
            arrays = [name for name in archive.namelist() if name.endswith(".npy")]
            damaged = archive.testzip()
    except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError):
        return "not a readable npz file"
    if not arrays:
        return "a zip file without arrays"
    if damaged is not None:
        return f"{damaged} is damaged"
    if sha256 is not None:
        with path.open("rb") as file:
            found = hashlib.file_digest(file, "sha256").hexdigest()
        if found != sha256.lower():
            return f"wrong checksum, {found[:12]}... where SHA256SUMS says {sha256[:12]}..."
    return None


def transfer(url: str, part: Part, bar: Progress, task: TaskID) -> None:
    """Bring the part to its full length, picking up again after a cut as long as attempts get further."""
    furthest, fruitless = part.size, 0
    while not part.complete:
        try:
            _attempt(url, part, bar, task)
            return
        except Cut as cut:
            fruitless = 0 if part.size > furthest else fruitless + 1
            furthest = max(furthest, part.size)
            if fruitless == FRUITLESS_ATTEMPTS:
                raise ServerError(str(cut)) from cut


def _attempt(url: str, part: Part, bar: Progress, task: TaskID) -> None:
    """One request for what is missing."""
    start = part.size if part.version else 0  # nobody knows which version nameless bytes belong to
    headers = {"Range": f"bytes={start}-", "If-Range": part.version} if start else {}
    try:
        opened = open_url(url, headers)
    except Cut:
        part.discard()
        raise
    with opened as response:
        total = _length(response)
        position = _CONTENT_RANGE.fullmatch(response.headers.get("Content-Range", ""))
        continues = response.status == 206 and position is not None and int(position[1]) == start
        if continues and position is not None:
            total = int(position[2])
            if part.total not in (None, total):
                part.discard()
                raise Cut("the file changed on the server")
        else:  # no support for ranges, or another version of the file: this answer is the whole of it
            if response.status != 200:
                part.discard()
                raise Cut(f"unexpected answer {response.status}")
            start = 0
            part.begin(_version(response), total)
        bar.update(task, total=total, completed=start)
        with part.path.open("ab") as file:
            for chunk in chunks(response):
                file.write(chunk)
                bar.advance(task, len(chunk))
    if total is not None and part.size != total:
        if part.size > total:
            part.discard()
        raise Cut(f"connection lost after {part.size} of {total} bytes")


def chunks(response: http.client.HTTPResponse) -> Iterator[bytes]:
    """The body, piece by piece; a broken connection is a `Cut`."""
    while True:
        try:
            chunk = response.read(CHUNK)
        except (OSError, http.client.HTTPException) as error:
            raise Cut(f"connection lost ({_reason(error)})") from error
        if not chunk:
            return
        yield chunk


def _length(response: http.client.HTTPResponse) -> int | None:
    length = response.headers.get("Content-Length", "")
    return int(length) if length.isdigit() else None


def _version(response: http.client.HTTPResponse) -> str:
    """What If-Range may compare: a strong ETag, or the date."""
    tag = response.headers.get("ETag", "")
    return tag if tag and not tag.startswith("W/") else response.headers.get("Last-Modified", "")


class _HTTPConnection(http.client.HTTPConnection):
    """Impatient while connecting, patient afterwards; urllib has one number for both."""

    def connect(self) -> None:
        super().connect()
        self.sock.settimeout(READ_TIMEOUT)


class _HTTPSConnection(http.client.HTTPSConnection):
    def connect(self) -> None:
        super().connect()
        self.sock.settimeout(READ_TIMEOUT)


class _HTTPHandler(urllib.request.HTTPHandler):
    def http_open(self, req: urllib.request.Request) -> http.client.HTTPResponse:
        return self.do_open(_HTTPConnection, req)


class _HTTPSHandler(urllib.request.HTTPSHandler):
    def https_open(self, req: urllib.request.Request) -> http.client.HTTPResponse:
        return self.do_open(_HTTPSConnection, req)


def open_url(url: str, headers: dict[str, str] | None = None) -> http.client.HTTPResponse:
    """Ask for `url`; whatever goes wrong before the body is a `ServerError`."""
    opener = urllib.request.build_opener(_HTTPHandler, _HTTPSHandler)
    # Compressed in transit, lengths and offsets would not be those of the file.
    request = urllib.request.Request(url, headers={"Accept-Encoding": "identity", **(headers or {})})
    try:
        return opener.open(request, timeout=CONNECT_TIMEOUT)
    except urllib.error.HTTPError as error:
        with error:
            if error.code == 404:
                raise ServerError("has no such file (404)") from error
            if error.code == 416:  # the part is longer than the file: it belongs to another version
                raise Cut("cannot continue the file (416)") from error
            raise ServerError(f"answers {error.code} {error.reason}") from error
    except (OSError, http.client.HTTPException) as error:
        raise ServerError(f"no connection ({_reason(error)})") from error


def _reason(error: BaseException) -> str:
    cause = error.reason if isinstance(error, urllib.error.URLError) else error
    if isinstance(cause, OSError) and cause.strerror:
        return cause.strerror
    return str(cause) or type(cause).__name__
