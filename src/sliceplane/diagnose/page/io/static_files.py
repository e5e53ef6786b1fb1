"""The static files of the page and the headers of each answer; the same at every door."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from importlib.resources import files
from typing import Final, NamedTuple

TYPES: Final = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
HEADERS: Final = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
    "connect-src 'self'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'; "
    "require-trusted-types-for 'script'; trusted-types 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}
NO_STORE: Final = {"Cache-Control": "no-store"}
IMMUTABLE: Final = {"Cache-Control": "public, max-age=31536000, immutable"}
#: parts of our own files that a browser does not need
_FOR_READERS: Final = re.compile(rb"^\s*//.*\n|^[ \t]+", re.MULTILINE)
STREAM_TYPE: Final = "application/x-ndjson"


class PageAnswer(NamedTuple):
    """``headers`` are sent in addition to ``HEADERS``."""

    status: int
    body: bytes
    headers: Mapping[str, str]


def text(status: int, sentence: str, headers: Mapping[str, str] | None = None) -> PageAnswer:
    kind = {"Content-Type": "text/plain; charset=utf-8"}
    return PageAnswer(status, f"{sentence}\n".encode(), {**kind, **NO_STORE, **(headers or {})})


def json_answer(body: bytes) -> PageAnswer:
    return PageAnswer(200, body, {"Content-Type": "application/json", **NO_STORE})


class StaticFiles:
    """``digest`` is of all names and contents, and a part of every path."""

    def __init__(self) -> None:
        root = files("sliceplane.diagnose.page.io") / "static"
        self.files: dict[str, bytes] = {}
        for folder in ("", "vendor/"):
            directory = root / folder if folder else root
            for entry in directory.iterdir():
                if entry.is_file() and any(entry.name.endswith(ending) for ending in TYPES):
                    content = entry.read_bytes()
                    self.files[folder + entry.name] = (
                        content if folder else _FOR_READERS.sub(b"", content)
                    )
        whole = hashlib.sha256()
        for name in sorted(self.files):
            whole.update(f"{name}\0{len(self.files[name])}\0".encode() + self.files[name])
        self.digest = whole.hexdigest()[:16]
        self.index = self.files.pop("index.html").replace(b"DIGEST", self.digest.encode())

    def answer(self, path: str) -> PageAnswer | None:
        """Returns the file at *path*, below the page's own; ``None``: there is none."""
        folder, _, name = path.partition("/")
        if not path:
            return PageAnswer(200, self.index, {"Content-Type": TYPES[".html"], **NO_STORE})
        if folder == self.digest and name in self.files:
            return PageAnswer(
                200,
                self.files[name],
                {"Content-Type": TYPES[name[name.rindex(".") :]], **IMMUTABLE},
            )
        return None
