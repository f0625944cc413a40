"""A small hub: the routes that huggingface_hub asks, over HTTP, with its failures on demand."""

import hashlib
import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

PIECE_BYTES = 1 << 16
LFS = ".safetensors"


@dataclass
class Repo:
    """`commits` by branch; `contents` of the files by commit and name."""

    commits: dict[str, str] = field(default_factory=dict)
    contents: dict[str, dict[str, bytes]] = field(default_factory=dict)

    def push(self, contents: dict[str, bytes], branch: str = "main") -> str:
        text = repr(sorted((name, hashlib.sha1(data).hexdigest()) for name, data in contents.items()))
        commit = hashlib.sha1(text.encode()).hexdigest()
        self.commits[branch] = commit
        self.contents[commit] = contents
        return commit


@dataclass
class SmallHub:
    """`sent`: bytes of each answer to a GET of a file, by name. Faults are set by the tests."""

    repos: dict[str, Repo] = field(default_factory=dict)
    url: str = ""
    requests: list[str] = field(default_factory=list)  # method and path of each
    ranges: list[tuple[str, int]] = field(default_factory=list)  # of each GET of a file: name, first byte
    sent: dict[str, int] = field(default_factory=dict)
    counting: threading.Lock = field(default_factory=threading.Lock)  # answers have threads of their own
    refusal: tuple[int, str] | None = None  # status and X-Error-Code of every answer
    token: str | None = None  # who does not show it gets the refusal
    busy: str = ""  # the next requests whose paths have this in them get 429
    num_busy: int = 0  # of these
    asks: dict[str, str] = field(default_factory=dict)  # headers of such answers
    ignores_ranges: bool = False
    cut_after: int | None = None  # bytes of an answer, after which its connection is closed
    lacking: int = 0  # bytes at the end of each file that are not sent, nor promised
    damage: Callable[[bytes], bytes] = bytes
    halt_after: int | None = None  # bytes of an answer, after which it waits for `go_on`
    has_halted: threading.Event = field(default_factory=threading.Event)
    go_on: threading.Event = field(default_factory=threading.Event)

    def add(self, repo: str, folder: Path, **more: bytes) -> str:
        """The files of a folder, as its branch main; the commit."""
        contents = {path.name: path.read_bytes() for path in sorted(folder.iterdir()) if path.is_file()} | more
        return self.repos.setdefault(repo, Repo()).push(contents)


@contextmanager
def small_hub() -> Iterator[SmallHub]:
    hub = SmallHub()
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (_Handler,), {"hub": hub}))
    server.daemon_threads = True
    hub.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    try:
        yield hub
    finally:
        hub.go_on.set()
        server.shutdown()
        thread.join()
        server.server_close()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    hub: SmallHub

    def handle_one_request(self) -> None:
        try:
            super().handle_one_request()
        except ConnectionError:  # the client was killed
            self.close_connection = True

    def do_HEAD(self) -> None:
        self._answer()

    def do_GET(self) -> None:
        self._answer()

    def log_message(self, format: str, *args: Any) -> None:
        return

    def _answer(self) -> None:
        hub, path = self.hub, unquote(urlsplit(self.path).path)
        hub.requests.append(f"{self.command} {path}")
        shows_token = hub.token is not None and self.headers["Authorization"] == f"Bearer {hub.token}"
        if hub.num_busy and hub.busy in path:
            hub.num_busy -= 1
            return self._head(429, hub.asks | {"Content-Length": "0"})
        if hub.refusal is not None and not shows_token:
            return self._refuse(*hub.refusal)
        is_api = path.startswith("/api/models/")
        name, _, rest = path.removeprefix("/api/models/" if is_api else "/").partition(
            "/revision/" if is_api else "/resolve/"
        )
        repo = hub.repos.get(name)
        if repo is None:
            return self._refuse(401, "RepoNotFound")
        revision, _, file = (rest, "", "") if is_api else rest.partition("/")
        commit = repo.commits.get(revision, revision)
        if commit not in repo.contents:
            return self._refuse(404, "RevisionNotFound")
        if is_api:
            return self._send_info(name, commit, repo.contents[commit])
        if file not in repo.contents[commit]:
            return self._refuse(404, "EntryNotFound")
        return self._send_file(file, commit, repo.contents[commit][file])

    def _refuse(self, status: int, code: str) -> None:
        self._head(status, {"X-Error-Code": code, "X-Error-Message": "refused", "Content-Length": "0"})

    def _send_info(self, name: str, commit: str, contents: dict[str, bytes]) -> None:
        siblings = [_sibling(file, data) for file, data in contents.items()]
        body = json.dumps({"id": name, "modelId": name, "sha": commit, "siblings": siblings}).encode()
        self._head(200, {"Content-Type": "application/json", "Content-Length": str(len(body))})
        self.wfile.write(body)

    def _send_file(self, file: str, commit: str, data: bytes) -> None:
        hub = self.hub
        etag = hashlib.sha256(data).hexdigest() if file.endswith(LFS) else _git_sha1(data)
        start, stop, status = 0, len(data), 200
        wanted = self.headers["Range"]
        if wanted is not None and not hub.ignores_ranges:
            first, _, last = wanted.removeprefix("bytes=").partition("-")
            start, stop, status = int(first), min(int(last) + 1, len(data)), 206
        body = hub.damage(data)[start : min(stop, len(data) - hub.lacking)]
        headers = {"X-Repo-Commit": commit, "ETag": f'"{etag}"', "Content-Length": str(len(body))}
        if status == 206:
            headers["Content-Range"] = f"bytes {start}-{stop - 1}/{len(data)}"
        self._head(status, headers)
        if self.command == "GET":
            hub.ranges.append((file, start))
            self._send(file, body)

    def _send(self, file: str, body: bytes) -> None:
        hub = self.hub
        for first in range(0, len(body), PIECE_BYTES):
            if hub.cut_after is not None and first >= hub.cut_after:
                self.close_connection = True
                return
            if hub.halt_after is not None and first >= hub.halt_after:
                hub.has_halted.set()
                hub.go_on.wait()
            piece = body[first : first + PIECE_BYTES]
            try:
                self.wfile.write(piece)
            except ConnectionError:  # the client was killed
                self.close_connection = True
                return
            with hub.counting:
                hub.sent[file] = hub.sent.get(file, 0) + len(piece)

    def _head(self, status: int, headers: dict[str, str]) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()


def _sibling(file: str, data: bytes) -> dict[str, Any]:
    entry: dict[str, Any] = {"rfilename": file, "size": len(data), "blobId": _git_sha1(data)}
    if file.endswith(LFS):
        entry["lfs"] = {"sha256": hashlib.sha256(data).hexdigest(), "size": len(data), "pointerSize": 130}
    return entry


def _git_sha1(data: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()
