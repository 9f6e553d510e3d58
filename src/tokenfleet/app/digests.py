"""Digests of values: of two equal ones the same, on any day and in any process."""

import hashlib
import os
import sys
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import fields, is_dataclass
from enum import Enum
from functools import cache
from importlib.metadata import version
from pathlib import Path

import numpy as np

from tokenfleet.app.whole_files import home_cache, write_whole

DIGEST_BYTES = 20
_PLAIN = (str, int, float, bool, bytes, type(None), Enum, np.generic)
"""Values whose text says all of them; that of a float is exact."""

Known = Callable[[object], bytes | None]
"""The digest of a value that has one already, such as the question it is the answer to."""


def digest_of(*values: object, known: Known = lambda _: None, without: str = "") -> bytes:
    """Digest of all of ``values``, field by field.

    Args:
        values: Plain values, dataclasses (but for fields that do not count when they are compared), arrays; tuples,
            lists and mappings of them.
        known: Asked before a value is taken apart.
        without: A field that is left out of every dataclass.

    Raises:
        TypeError: something whose text may not say all of it.
    """
    digest = hashlib.blake2b(digest_size=DIGEST_BYTES)
    parts: list[bytes] = []
    for value in values:
        _feed(parts.append, value, known, without)
    digest.update(b"".join(parts))
    return digest.digest()


def _feed(put: Callable[[bytes], None], value: object, known: Known, without: str) -> None:
    if isinstance(value, _PLAIN):
        put(f"{type(value).__name__}:{value!r};".encode())
        return
    found = known(value)
    if found is not None:
        put(b"=" + found)
    elif isinstance(value, np.ndarray):
        put(f"{value.dtype.str}{value.shape}".encode())
        put(np.ascontiguousarray(value).tobytes())
    elif isinstance(value, tuple | list | dict):
        put(f"{type(value).__name__}{len(value)}(".encode())
        for each in value.items() if isinstance(value, dict) else value:
            _feed(put, each, known, without)
    elif is_dataclass(value):
        put(f"<{type(value).__name__}".encode())
        for name in _names(value.__class__):
            if name != without:
                put(name.encode())
                _feed(put, getattr(value, name), known, without)
        put(b">")
    elif isinstance(value, Path):
        put(f"path:{value};".encode())
    else:
        raise TypeError(f"a {type(value).__name__} has no digest")


@cache
def _names(kind: type) -> tuple[str, ...]:
    return tuple(field.name for field in fields(kind) if field.compare)


def file_digests(paths: Iterable[str]) -> tuple[bytes, ...] | None:
    """Digest of what is in each of these files; ``None`` where one of them is no file, such as a folder."""
    found = []
    for path in map(Path, paths):
        if not path.is_file():
            return None
        with path.open("rb") as file:
            found.append(hashlib.file_digest(file, "blake2b").digest())
    return tuple(found)


@cache
def source_digest(package: Path = Path(__file__).parents[1]) -> str:
    """Digest of every file of this package, sources and facts, and of what computes beside it.

    An edited formula, rule or price finds nothing of yesterday's. Where all files have the sizes and times of change
    that they had before, and the same packages are installed, none is read: Python goes by the same two for bytecode.
    """
    files = _files(str(package))
    stamp = digest_of(sys.version, os.uname().machine, *_installed(), *(f"{file}" for file in files)).hex()
    kept = home_cache() / "sources" / digest_of(package).hex()
    with suppress(OSError, ValueError):
        stamp_before, digest_before = kept.read_text(encoding="ascii").split()
        if stamp_before == stamp:
            return digest_before
    versions = " ".join(version(name) for name in ("numpy", "numba", "llvmlite", "polars", "pydantic"))
    digest = hashlib.blake2b(f"{sys.version} {os.uname().machine} {versions}".encode(), digest_size=DIGEST_BYTES)
    for path, _, _ in files:
        content = Path(path).read_bytes()
        digest.update(f"\0{os.path.relpath(path, package)} {len(content)}\0".encode() + content)
    with suppress(OSError):
        kept.parent.mkdir(parents=True, exist_ok=True)
        write_whole(f"{stamp} {digest.hexdigest()}", kept)
    return digest.hexdigest()


def _installed() -> list[str]:
    """Every package that Python finds, by the folder that names its version."""
    folders = (folder for folder in sys.path if os.path.isdir(folder))
    return sorted(name for folder in folders for name in os.listdir(folder) if name.endswith("-info"))


def _files(folder: str) -> list[tuple[str, int, int]]:
    """Every file below a folder, its size in bytes, and when it was changed, in nanoseconds."""
    found = []
    waiting = [folder]
    while waiting:
        with os.scandir(waiting.pop()) as entries:
            for entry in entries:
                if entry.is_dir():
                    waiting += [] if entry.name == "__pycache__" else [entry.path]
                elif entry.is_file():
                    stamp = entry.stat()
                    found.append((entry.path, stamp.st_size, stamp.st_mtime_ns))
    return sorted(found)
