"""Storage in buckets of objects, through fsspec: `s3://bucket/prefix` and `gs://bucket/prefix`; `file://` for a folder.

A put is atomic there. Exclusive creation is a conditional put (If-None-Match on S3, a generation of 0 on Google Cloud
Storage). Stores without it are refused: a claim that two processes win protects nothing. Keys, end points and other
options of a store are fsspec's: its configuration files, and variables such as FSSPEC_S3_ENDPOINT_URL.
"""

from __future__ import annotations

import contextlib
import uuid
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from neoteny.suite.store.errors import StoreError
from neoteny.suite.store.storage import ATTEMPTS, FolderStorage, PatientStorage, Storage

_DRIVERS = {"s3": "s3fs", "s3a": "s3fs", "gs": "gcsfs", "gcs": "gcsfs"}
"""The schemes whose drivers have a conditional put, and their packages."""


def is_remote(place: object) -> bool:
    """Whether a results folder is named by an address such as s3://bucket/prefix."""
    return isinstance(place, str) and "://" in place


def open_storage(address: str, attempts: int = ATTEMPTS) -> Storage:
    """The storage at an address.

    Args:
        address: where it is.
        attempts: how often what fails is tried; a driver may try several times each.

    Raises:
        StoreError: it is of a kind that cannot be used, or a package is missing.
    """
    parts = urlsplit(address)
    if parts.scheme == "file":
        if parts.netloc not in ("", "localhost") or not parts.path.startswith("/"):
            raise StoreError(f"{address}: expected file:///absolute/path.")
        return PatientStorage(FolderStorage(Path(unquote(parts.path))), attempts)
    if parts.scheme not in _DRIVERS:
        raise StoreError(
            f"{address}: results cannot be kept in a storage of kind {parts.scheme}://. Known are "
            f"{', '.join(f'{each}://' for each in ('file', *_DRIVERS))}: they can create an object only where there "
            "is none, which keeps two workers from training the same runs."
        )
    if not parts.netloc:
        raise StoreError(f"{address}: expected {parts.scheme}://BUCKET/PREFIX.")
    for package in ("fsspec", _DRIVERS[parts.scheme]):
        if find_spec(package) is None:
            raise StoreError(f"{parts.scheme}:// needs {package}, which is not installed: pip install {package}.")
    import fsspec

    driver = fsspec.filesystem(parts.scheme, use_listings_cache=False)
    return PatientStorage(ObjectStorage(driver, address.partition("://")[2].rstrip("/"), address), attempts)


def check_storage(storage: Storage) -> None:
    """Refuse a store that cannot be written, or that ignores the condition of a conditional put, as some servers do.

    Raises:
        StoreError: why.
    """
    key = f".probe-{uuid.uuid4().hex}"
    try:
        first = storage.create(key, b"one")
    except FileNotFoundError as error:
        raise StoreError(f"{storage.address}: there is no such bucket ({error}). Make it, or correct --out.") from error
    try:
        second = storage.create(key, b"two")
        kept = storage.read(key) == b"one"
    finally:
        storage.remove(key)
    if not first or second or not kept:
        raise StoreError(
            f"{storage.address}: this store overwrites an object though it was asked to create it only where there is "
            "none (If-None-Match), so two workers could train the same runs. Choose another one with --out."
        )


class ObjectStorage:
    """The objects under a prefix.

    Args:
        driver: a file system of fsspec.
        prefix: bucket and prefix.
        address: the same for people.
    """

    def __init__(self, driver: Any, prefix: str, address: str) -> None:
        self._driver, self._prefix, self._address = driver, prefix, address

    @property
    def address(self) -> str:
        """Where it is."""
        return self._address

    def create(self, key: str, content: bytes, durable: bool = True) -> bool:
        """Write a key that is not there; False where it is."""
        try:
            self._driver.pipe_file(self._path(key), content, mode="create")
        except FileExistsError:
            return False
        except OSError as error:  # from servers that do not say which condition it was
            if "recondition" in str(error):
                return False
            raise
        return True

    def write(self, key: str, content: bytes, durable: bool = True) -> None:
        """Write a key, or replace it."""
        self._driver.pipe_file(self._path(key), content)

    def read(self, key: str) -> bytes:
        """Its content."""
        return self._driver.cat_file(self._path(key))

    def exists(self, key: str) -> bool:
        """Whether it is there."""
        try:
            self._driver.info(self._path(key))
        except FileNotFoundError:
            return False
        return True

    def list(self, folder: str) -> dict[str, str]:
        """The names directly under a prefix, with the entity tag or the size and time of each."""
        try:
            entries = self._driver.ls(self._path(folder), detail=True, refresh=True)
        except FileNotFoundError:
            return {}
        found: dict[str, str] = {}
        for entry in entries:
            name = entry["name"].rpartition("/")[2]
            if entry["type"] == "file" and name and not name.startswith("."):
                stamp = entry.get("ETag") or entry.get("etag") or entry.get("LastModified") or entry.get("updated")
                found[name] = f"{entry.get('size')}-{stamp}"
        return found

    def remove(self, key: str) -> None:
        """Remove a key, where it is there."""
        with contextlib.suppress(FileNotFoundError):
            self._driver.rm_file(self._path(key))

    def _path(self, key: str) -> str:
        return f"{self._prefix}/{key}" if key else self._prefix
