"""The Hugging Face hub. Listing, revisions, tokens, addresses and the cache are huggingface_hub's;
the transfer is ours, because huggingface_hub's starts over after a kill.
"""

import contextlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx2
from huggingface_hub import (
    HfApi,
    ModelInfo,
    constants,
    errors,
    get_token,
    hf_hub_url,
    try_to_load_from_cache,
)
from huggingface_hub.file_download import _create_symlink, repo_folder_name
from huggingface_hub.utils import _headers, _http

from cluster.download.store import Interrupted, RemoteFile, Unreachable
from cluster.download.transfer import Patience, is_there
from engine.config import is_hub_name
from engine.errors import InvalidConfig, in_a_line, without_secret

MAIN = "main"
HUGGING_FACE = "https://huggingface.co"  # where HF_ENDPOINT is empty
PIECE_BYTES = 1 << 20
TIMEOUT = httpx2.Timeout(30.0)  # without a byte
_PASSING = (408, 429, 500, 502, 503, 504)  # statuses that another attempt may not meet


class Hub:
    """One model at one commit: a `Store`, in huggingface_hub's cache."""

    def __init__(self, repo: str, commit: str, cache: str | None) -> None:
        self.title = f"{repo} at {commit[:12]}"
        self._repo, self._commit = repo, commit
        self._cache = cache_of(cache)

    def files(self) -> tuple[RemoteFile, ...]:
        info = _patiently(lambda: _info(self._repo, self._commit, self._cache, files_metadata=True))
        return tuple(
            RemoteFile(
                sibling.rfilename,
                sibling.size or 0,
                sibling.lfs.sha256 if sibling.lfs is not None else str(sibling.blob_id),
                f"sha256:{sibling.lfs.sha256}" if sibling.lfs is not None else f"git-sha1:{sibling.blob_id}",
            )
            for sibling in info.siblings or ()
        )

    def pieces(self, file: RemoteFile, start: int, stop: int) -> Iterator[bytes]:
        url = hf_hub_url(self._repo, file.name, revision=self._commit, endpoint=endpoint())
        asked = _headers.build_hf_headers() | {"Range": f"bytes={start}-{stop - 1}", "Accept-Encoding": "identity"}
        with (
            _explained(self._repo, self._commit, self._cache, is_transfer=True),
            _http.get_session().stream("GET", url, headers=asked, follow_redirects=True, timeout=TIMEOUT) as response,
        ):
            if response.status_code >= 400:
                response.read()
            _http.hf_raise_for_status(response)
            surplus = 0 if response.status_code == 206 else start  # a server may ignore the range
            left = stop - start
            for piece in response.iter_bytes(PIECE_BYTES):
                kept = piece[surplus : surplus + left]
                surplus -= min(surplus, len(piece))
                left -= len(kept)
                yield kept

    def tells_digest(self, file: RemoteFile) -> bool:
        return True

    def place(self, file: RemoteFile) -> Path:
        return self._root / "blobs" / file.etag

    def folder(self, files: tuple[RemoteFile, ...]) -> Path:
        """Enters the files in huggingface_hub's cache as itself does, without asking the hub again:
        their bytes are there.
        """
        for file in files:
            path = self._snapshot / file.name
            if not is_there(path, file):
                path.parent.mkdir(parents=True, exist_ok=True)
                _create_symlink(str(self.place(file)), str(path))
        return self._snapshot

    def cached(self) -> Path | None:
        return self._snapshot if self._snapshot.is_dir() else None

    @property
    def _root(self) -> Path:
        return Path(self._cache) / repo_folder_name(repo_id=self._repo, repo_type="model")

    @property
    def _snapshot(self) -> Path:
        return self._root / "snapshots" / self._commit


def pin(repo: str, revision: str | None, cache: str | None) -> tuple[str, str | None]:
    """The commit that a revision (a branch, a tag or a commit; None: main) is now; and, if the hub
    cannot be asked and the cache knows the commit, why. Raises InvalidConfig.
    """
    if not is_hub_name(repo):
        raise InvalidConfig(f"model=hf://{repo} is no name of the hub, which are ORGANISATION/MODEL")
    where, wanted = cache_of(cache), revision or MAIN

    known = try_to_load_from_cache(repo, "config.json", cache_dir=where, revision=wanted)
    if not isinstance(known, str):
        return str(_patiently(lambda: _info(repo, wanted, where)).sha), None
    try:
        return str(_info(repo, wanted, where).sha), None
    except Unreachable as error:
        return Path(known).parent.name, error.reason


def remember(repo: str, revision: str | None, commit: str, cache: str | None) -> None:
    """Note in the cache which commit the revision is, for when the hub cannot be asked; one that
    somebody else has filled may be read only.
    """
    wanted = revision or MAIN
    if wanted != commit:
        path = Path(cache_of(cache)) / repo_folder_name(repo_id=repo, repo_type="model") / "refs" / wanted
        with contextlib.suppress(OSError):
            path.parent.mkdir(parents=True, exist_ok=True)
            part = path.with_name(f".{path.name}.{os.getpid()}")
            part.write_text(commit)
            part.replace(path)


def cache_of(download_dir: str | None) -> str:
    return str(Path(download_dir or constants.HF_HUB_CACHE).expanduser().absolute())


def endpoint() -> str:
    return (os.environ.get("HF_ENDPOINT") or constants.ENDPOINT or HUGGING_FACE).rstrip("/")


def _info(repo: str, revision: str, cache: str, *, files_metadata: bool = False) -> ModelInfo:
    with _explained(repo, revision, cache):
        return _api().model_info(repo, revision=revision, files_metadata=files_metadata)


def _patiently(ask: Callable[[], ModelInfo]) -> ModelInfo:
    """The hub's answer, which it may ask to wait for."""
    patience = Patience()
    while True:
        try:
            return ask()
        except Unreachable as error:
            if error.asked is None or not patience.wait(error.reason, error.asked):
                raise


def _asked_seconds(response: httpx2.Response) -> float | None:
    """How long the hub, or what stands before it, asks to wait; None if it does not."""
    limit = _http.parse_ratelimit_headers(response.headers) if response.status_code == 429 else None
    if limit is not None and limit.remaining == 0:
        return limit.reset_in_seconds + 1.0  # it counts in whole seconds
    after = response.headers.get("Retry-After", "")
    return float(after) if after.isdecimal() else None


def _api() -> HfApi:
    return HfApi(endpoint=endpoint(), library_name="squadron")


@contextlib.contextmanager
def _explained(repo: str, revision: str, cache: str, *, is_transfer: bool = False) -> Iterator[None]:
    """Raises what huggingface_hub raises as InvalidConfig that says what to do; a transfer's
    passing failures as Interrupted.
    """
    at = without_secret(endpoint())
    try:
        yield
    except errors.OfflineModeIsEnabled:
        raise Unreachable(
            "HF_HUB_OFFLINE is set",
            f", and {repo} (revision {revision}) is not in the cache {cache}; fetch it once without HF_HUB_OFFLINE, or "
            "name a folder",
        ) from None
    except errors.GatedRepoError:
        has_none = "no token is set" if get_token() is None else "the token that is set has no access"
        raise InvalidConfig(
            f"{repo} is gated, and {has_none}: ask for access at {at}/{repo}, then log in by `hf auth login` "
            "or set HF_TOKEN, on every node"
        ) from None
    except errors.RevisionNotFoundError:
        where = f"{at}/{repo}"
        raise InvalidConfig(f"{repo} has no revision {revision!r}; its branches and tags are at {where}") from None
    except errors.RepositoryNotFoundError:
        raise InvalidConfig(
            f"{at} has no model {repo}, or it is private: check the name, or log in by `hf auth login` or set "
            "HF_TOKEN, on every node"
        ) from None
    except errors.HfHubHTTPError as error:
        status = error.response.status_code
        asked = _asked_seconds(error.response)
        if is_transfer and status in _PASSING:
            raise Interrupted(in_a_line(error), asked) from None
        said = f"{at} answers {status} when asked for {repo}: {in_a_line(error)}"
        if status in _PASSING:
            raise Unreachable(said, asked=asked) from None
        if status == 401 and get_token() is not None:
            said += "; the token that is set may have expired: see `hf auth whoami`"
        raise InvalidConfig(said) from None
    except (httpx2.HTTPError, ConnectionError) as error:
        if is_transfer:
            raise Interrupted(in_a_line(error)) from None
        raise Unreachable(
            f"{at} cannot be reached ({in_a_line(error)})",
            f", and {repo} (revision {revision}) is not in the cache {cache}; set HF_ENDPOINT to a mirror, or name a "
            "folder",
        ) from None
    except UnicodeEncodeError:
        raise InvalidConfig("HF_TOKEN, or what `hf auth login` has stored, has other characters than ASCII") from None
