"""How the kernel is compiled, and where the machine code is kept between processes.

numba notices a changed function only by the file it stands in: a helper edited in another file would leave the
cached machine code of its callers in force. Therefore the cache directory carries a digest of every source that
is compiled, and an edit anywhere starts a new directory.
"""

import contextlib
import hashlib
import os
import shutil
import sys
import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar, cast

import numba
import numpy as np

Function = TypeVar("Function", bound=Callable[..., object])

SOURCES = ("simulator", "control", "domain/run.py")
"""Rooms and files that end up in the machine code, as functions or as constants."""
KEPT_FOLDERS = 8
"""Versions of the sources whose machine code is kept."""


def source_digest(package: Path) -> str:
    """Digest of all sources that may be compiled, and of the versions that compile them.

    Args:
        package: Folder of the package, the one that holds the rooms.

    Returns:
        16 hexadecimal digits.
    """
    digest = hashlib.sha256(f"{sys.version} {numba.__version__} {np.__version__}".encode())
    for source in SOURCES:
        for path in sorted([package / source, *(package / source).rglob("*.py")]):
            if path.is_dir():
                continue
            digest.update(path.relative_to(package).as_posix().encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()[:16]


def cache_directory() -> Path:
    """The folder that holds the machine code of exactly these sources, created if need be.

    ``NUMBA_CACHE_DIR`` wins, then ``XDG_CACHE_HOME``, then ``~/.cache``. Where that cannot be written, a warning
    says so and a temporary folder is used, so that each process compiles anew.
    """
    if "NUMBA_CACHE_DIR" in os.environ:
        base = Path(os.environ["NUMBA_CACHE_DIR"])
    else:
        base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "tokenfleet"
    folder = base / f"kernel-{source_digest(Path(__file__).parents[1])}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
        os.utime(folder)
    except OSError as error:
        folder = Path(tempfile.mkdtemp(prefix="tokenfleet-kernel-"))
        warnings.warn(
            f"cannot write {base} ({error.strerror}): the replay kernel is compiled anew in each process",
            RuntimeWarning,
            stacklevel=2,
        )
    else:
        prune(base)
    return folder


def prune(base: Path) -> None:
    """Delete the machine code of those sources that were used longest ago; each use makes a folder young again.

    A process that still loads from a folder deleted under it compiles anew, so a few more than one are kept.
    """
    used: list[tuple[float, Path]] = []
    for folder in base.glob("kernel-*"):
        with contextlib.suppress(FileNotFoundError):  # another process prunes at the same time
            used.append((folder.stat().st_mtime, folder))
    for _, folder in sorted(used, reverse=True)[KEPT_FOLDERS:]:
        shutil.rmtree(folder, ignore_errors=True)


CACHE = cache_directory()

OPTIONS: dict[str, Any] = {"nogil": True, "error_model": "numpy", "_nrt": False}
"""``_nrt`` off: nothing in the kernel allocates, and without it calls carry no reference counting."""
WITHOUT_WRAPPERS: dict[str, Any] = {"no_cpython_wrapper": True, "no_cfunc_wrapper": True}
"""Only compiled code calls the helpers; the two wrappers of each would be a quarter of the compile time."""


def compiled(function: Function) -> Function:
    """Compile for use by another compiled function; it is inlined or linked there, so it needs no cache entry."""
    return cast("Function", numba.njit(function, **OPTIONS, **WITHOUT_WRAPPERS))


def entry_point(function: Function) -> Function:
    """Compile a function that plain Python calls, and keep its machine code on disk. Happens on first call."""
    config: Any = numba.config
    before = config.CACHE_DIR
    config.CACHE_DIR = str(CACHE)
    try:
        return cast("Function", numba.njit(function, cache=True, **OPTIONS))
    finally:
        config.CACHE_DIR = before


def is_cached() -> bool:
    """Whether machine code of these sources is on disk. A processor of another kind may still have to compile."""
    return next(CACHE.rglob("*.nbc"), None) is not None
