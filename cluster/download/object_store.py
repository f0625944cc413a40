"""Folders of object stores, by fsspec: s3://, gs:// and whatever else has a filesystem there."""

import hashlib
import logging
from base64 import b64decode
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fsspec

from cluster.download.choice import files_of_model
from cluster.download.store import Interrupted, RemoteFile, Unreachable
from engine.errors import InvalidConfig, in_a_line

PIECE_BYTES = 32 << 20  # of a request
_PACKAGES = {"s3": "s3", "s3a": "s3", "gs": "gcs", "gcs": "gcs"}  # by scheme: the extra that brings it


class ObjectStore:
    """One folder, as it was when it was listed first: a `Store`."""

    def __init__(self, uri: str, digest: str | None, folder: Path) -> None:
        """`digest`: see `listing_digest`; None: whatever is there now. `folder`: where its files
        are kept on this node. Raises InvalidConfig.
        """
        self.title = uri
        self._uri, self._digest, self._folder = uri, digest, folder
        self._fs, self._path = _open(uri)

    def files(self) -> tuple[RemoteFile, ...]:
        try:
            self._fs.invalidate_cache()
            found = self._fs.find(self._path, maxdepth=2, detail=True)
            if not found:
                self._fs.ls(self._path)  # which says so if the folder may not be listed
        except (FileNotFoundError, NotADirectoryError):
            found = {}
        except Exception as error:  # each filesystem has its own
            raise _explained(error, self._uri) from None
        below = len(self._path.rstrip("/")) + 1
        files = tuple(_file(path[below:], entry) for path, entry in sorted(found.items()) if path[below:])
        if not files:
            raise InvalidConfig(f"{self._uri} has no files: there is no such folder, or it is empty")
        if self._digest not in (None, listing_digest(files)):
            raise InvalidConfig(f"{self._uri} has changed since this server was started; start it again")
        return files

    def pieces(self, file: RemoteFile, start: int, stop: int) -> Iterator[bytes]:
        path = f"{self._path.rstrip('/')}/{file.name}"
        while start < stop:
            end = min(start + PIECE_BYTES, stop)
            try:
                data = self._fs.cat_file(path, start=start, end=end)
            except Exception as error:  # each filesystem has its own
                if isinstance(error, FileNotFoundError) or _is_refusal(error):
                    raise _explained(error, f"{self._uri}/{file.name}") from None
                raise Interrupted(in_a_line(error)) from None
            if len(data) > end - start:  # a server may ignore the range
                if len(data) != file.size:
                    raise Interrupted(f"it sent {len(data)} bytes when asked for {end - start}")
                data, end = data[start:stop], stop
            yield data
            if len(data) < end - start:
                return  # what is behind it would come to the wrong place
            start = end

    def tells_digest(self, file: RemoteFile) -> bool:
        """Not of what S3 encrypts with a key of KMS or of the client: an ETag that looks like MD5
        is something else then.
        """
        if not hasattr(self._fs, "call_s3"):
            return True
        bucket, key, _ = self._fs.split_path(f"{self._path.rstrip('/')}/{file.name}")
        try:
            head = self._fs.call_s3("head_object", Bucket=bucket, Key=key)
        except Exception as error:  # each filesystem has its own
            raise _explained(error, f"{self._uri}/{file.name}") from None
        is_of_kms = str(head.get("ServerSideEncryption")).startswith("aws:kms")
        return not (is_of_kms or head.get("SSECustomerAlgorithm"))

    def place(self, file: RemoteFile) -> Path:
        return self._folder / file.name

    def folder(self, files: tuple[RemoteFile, ...]) -> Path:
        """Raises InvalidConfig if the store's files have changed meanwhile."""
        if self._digest is not None:
            self.files()
        return self._folder

    def cached(self) -> Path | None:
        return None  # what was not fetched by us is not there


def pin(uri: str) -> str:
    """What names the folder's files as they are now; raises InvalidConfig."""
    return listing_digest(ObjectStore(uri, None, Path()).files())


def listing_digest(files: tuple[RemoteFile, ...]) -> str:
    """Of those that are read: other contents have another one, as far as the store tells."""
    read = [(file.name, file.size, file.etag) for file in files_of_model(files)]
    return hashlib.sha256(repr(read).encode()).hexdigest()[:16]


def _open(uri: str) -> tuple[Any, str]:
    scheme = uri.partition("://")[0]
    try:
        fs, path = fsspec.core.url_to_fs(uri)
    except ImportError as error:
        extra = f": pip install 'squadron-serve[{_PACKAGES[scheme]}]'" if scheme in _PACKAGES else f" ({error})"
        raise InvalidConfig(f"model={uri} needs a package that is not installed{extra}") from None
    except ValueError as error:
        raise InvalidConfig(f"model={uri}: {error}; there are hf://, s3://, gs:// and file://") from None
    # What it cannot do it raises, and we tell; gcsfs logs that, too, with all tracebacks.
    logging.getLogger(type(fs).__module__.partition(".")[0]).setLevel(logging.CRITICAL)
    return fs, str(path)


def _file(name: str, entry: dict[str, Any]) -> RemoteFile:
    """By what the filesystems of S3 and of Google's call their fields."""
    etag = str(entry.get("ETag") or entry.get("etag") or entry.get("md5Hash") or entry.get("LastModified") or "")
    etag = etag.strip('"')
    md5 = etag if len(etag) == 32 and "-" not in etag else None  # of an object of one part
    if entry.get("md5Hash"):
        md5 = b64decode(entry["md5Hash"]).hex()
    return RemoteFile(name, int(entry.get("size") or 0), etag, None if md5 is None else f"md5:{md5}")


def _explained(error: Exception, uri: str) -> InvalidConfig:
    if isinstance(error, FileNotFoundError):
        return InvalidConfig(f"{uri} does not exist")
    if _is_refusal(error) or "credentials" in str(error).lower():
        return InvalidConfig(f"{uri} may not be read ({in_a_line(error)}); set the store's credentials on every node")
    return Unreachable(f"{uri} cannot be read: {in_a_line(error)}")


def _is_refusal(error: Exception) -> bool:
    """Another attempt would meet it, too. gcsfs has no type for it: it says so."""
    is_of_google = str(error).startswith("Forbidden: ") or getattr(error, "code", None) == 401
    return isinstance(error, PermissionError) or is_of_google
