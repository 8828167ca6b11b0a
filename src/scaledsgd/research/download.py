"""Large files over HTTP: taken up where they broke off, and checked against a published MD5.

Ours, and not pooch: that begins a file anew when a connection breaks, and ML-25M has 250 MB.
"""

from __future__ import annotations

import contextlib
import hashlib
import re
import urllib.error
import urllib.request
from collections.abc import Iterator
from http.client import HTTPException
from pathlib import Path

from ..io.atomic import put_in_place
from ..io.progress_bar import progress_bar

_PIECE = 1 << 20  # bytes read at a time
_PATIENCE = 30.0  # seconds without a byte
_ATTEMPTS = 5  # connections that may break before it is left for another time


class DatasetError(ValueError):
    """The data is not there or not what it should be; the message says what to do."""


class OutOfReach(DatasetError):
    """No answer, or none with the file."""


def download(url: str, target: Path, *, progress: bool = False) -> None:
    """Put the file at target once it is complete and has the MD5 that url.md5 says.

    Until then it is in target.part, where the next call goes on.
    """
    part = target.with_name(f"{target.name}.part")
    target.parent.mkdir(parents=True, exist_ok=True)
    try:
        with urllib.request.urlopen(f"{url}.md5", timeout=_PATIENCE) as answer:
            # "digest  name" or "MD5 (name) = digest"
            published = re.search(rb"\b[0-9a-f]{32}\b", answer.read(_PIECE).lower())
        complete = any(_continued(url, part, progress) for _ in range(_ATTEMPTS))
    except (urllib.error.URLError, HTTPException, TimeoutError, ConnectionError) as why:
        raise OutOfReach(str(why)) from None
    if not complete:
        raise DatasetError(f"{url}: the connection broke {_ATTEMPTS} times; run again to go on")
    with open(part, "rb") as file:
        digest = hashlib.file_digest(file, "md5").hexdigest()
    if published is None or digest != published.group().decode():
        part.unlink()
        raise DatasetError(f"{url}: differs from its published checksum and was thrown away")
    put_in_place(part, target)


def _continued(url: str, part: Path, progress: bool) -> bool:
    """Add to the part what it lacks, and say whether that was all of it."""
    have = part.stat().st_size if part.exists() else 0
    request = urllib.request.Request(url, headers={"Range": f"bytes={have}-"} if have else {})
    try:
        answer = urllib.request.urlopen(request, timeout=_PATIENCE)
    except urllib.error.HTTPError as why:
        if why.code != 416:
            raise
        return True  # there are no bytes beyond those here; the checksum will tell
    if answer.status != 206:  # a server that cannot resume sends all of it
        have = 0
    total = have + int(answer.headers.get("Content-Length", 0))
    with (
        answer,
        open(part, "ab" if have else "wb") as file,
        progress_bar(f"downloading {part.stem}", total, progress) as advance,
    ):
        advance(have)
        for piece in _pieces(answer):
            have += file.write(piece)
            advance(len(piece))
    return have >= total


def _pieces(answer) -> Iterator[bytes]:
    """What arrives, until the end or until the connection breaks."""
    with contextlib.suppress(OSError, HTTPException):
        while piece := answer.read(_PIECE):
            yield piece
