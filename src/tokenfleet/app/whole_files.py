"""Files that appear whole or not at all, with the mode that the person's umask gives."""

import os
import secrets
from pathlib import Path


def home_cache() -> Path:
    """``XDG_CACHE_HOME`` or ``~/.cache``, and there ``tokenfleet``; it need not exist."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "tokenfleet"


def write_whole(text: str, path: Path) -> None:
    """Write ``text`` to ``path``, whose folder exists.

    The draft is an ordinary file beside it, not one of :mod:`tempfile`, because those are for their owner alone.

    Raises:
        OSError: the disk refuses; nothing half-written stays behind.
    """
    draft = path.with_name(f".{path.name}-{secrets.token_hex(4)}")
    try:
        with draft.open("x", encoding="utf-8") as file:
            file.write(text)
        draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)
