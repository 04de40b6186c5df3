"""Files that carry a checksum: the JSON files of a results folder, and tables of unfinished stacks.

A JSON file has the SHA-256 of its own content in the field "checksum": of the content, so that a file may be indented
in another way. A table of an unfinished stack ends in a line with the SHA-256 of its stack's id and all before that
line. (Parts have theirs in the JSON file beside them, checkpoints in their names.)

Only what the standard library has is used here, so that `neoteny status` starts at once.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from neoteny.suite.store.errors import Damaged
from neoteny.suite.store.files import read_file, write_atomically
from neoteny.suite.store.shapes import Kind

CHECKSUM = "checksum"
_TRAILER = b"\nsha256 "
_TRAILER_BYTES = len(_TRAILER) + 64 + 1


def sha256(content: bytes) -> str:
    """The SHA-256 of some bytes, as 64 hexadecimal digits."""
    return hashlib.sha256(content).hexdigest()


def write_document(path: Path, content: Mapping[str, Any], durable: bool = True) -> None:
    """Write a JSON file with its checksum; see `write_atomically`."""
    text = seal(content)
    write_atomically(path, lambda file: file.write(text), durable)


def seal(content: Mapping[str, Any]) -> bytes:
    """The bytes of a JSON file with its checksum."""
    content = {name: value for name, value in content.items() if name != CHECKSUM}
    return json.dumps({**content, CHECKSUM: _checksum(content)}, indent=1, sort_keys=True, allow_nan=False).encode()


def parse_document(path: Path, kind: Kind) -> tuple[dict[str, Any], bool]:
    """The content of a JSON file, and whether it had a checksum, which was right.

    Raises:
        FileNotFoundError: it is not there.
        Damaged: it cannot be read, is no JSON object, or its checksum differs.
    """
    try:
        content = json.loads(read_file(path), parse_float=_finite, parse_constant=_finite)
        if not isinstance(content, dict):
            raise ValueError(f"it must hold an object, found {type(content).__name__}")
        sealed = CHECKSUM in content
        found = content.pop(CHECKSUM, None)
        if sealed and found != _checksum(content):
            raise ValueError("its checksum differs from its content")
    except FileNotFoundError:
        raise
    except (OSError, ValueError, RecursionError) as error:
        reason = f"it cannot be read ({error})" if isinstance(error, (OSError, json.JSONDecodeError)) else str(error)
        raise Damaged(path, reason, kind.remedy) from error
    return content, sealed


def read_document(path: Path, kind: Kind, must_be_sealed: bool) -> dict[str, Any]:
    """The content of a JSON file, checked against its checksum and its kind.

    Raises:
        FileNotFoundError: it is not there.
        Damaged: it is not what was written.
    """
    content, sealed = parse_document(path, kind)
    if must_be_sealed and not sealed:
        raise Damaged(path, "its checksum is missing", kind.remedy)
    fault = kind.misfit(content, must_be_sealed)
    if fault:
        raise Damaged(path, fault, kind.remedy)
    return content


def add_trailer(stack_id: str, table: bytes) -> bytes:
    """A table followed by its checksum."""
    return table + _TRAILER + sha256(stack_id.encode() + table).encode() + b"\n"


def remove_trailer(path: Path, must_be_sealed: bool, remedy: str) -> bytes:
    """The table of an unfinished stack, checked, without its checksum.

    Raises:
        FileNotFoundError: it is not there.
        Damaged: it is not what was written.
    """
    try:
        content = read_file(path)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise Damaged(path, f"it cannot be read ({error})", remedy) from error
    table = content[:-_TRAILER_BYTES]
    if content == add_trailer(path.stem, table):
        return table
    if must_be_sealed or _TRAILER in content[-2 * _TRAILER_BYTES :]:
        raise Damaged(path, "its checksum is missing or differs from its content", remedy)
    return content


def _checksum(content: Mapping[str, Any]) -> str:
    return sha256(json.dumps(content, sort_keys=True, separators=(",", ":")).encode())


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"it must hold finite numbers, found {text}")
    return value
