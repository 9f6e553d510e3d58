"""Reads what the files beside a ``config.json`` say of the weights: their headers, or the index of all of them."""

import json
import struct
from collections.abc import Mapping
from pathlib import Path

from tokenfleet import performance
from tokenfleet.domain.errors import BadInput

_INDEX = "model.safetensors.index.json"
_LONGEST_HEADER_BYTES = 100_000_000
"""What the format itself allows."""


def measured_bytes(model: str) -> int | None:
    """Bytes of a checkpoint as its files hold them.

    Headers of all safetensors files win, because they are the weights themselves; without the files the index counts.

    Args:
        model: A catalog name, a folder, or a ``config.json``.

    Returns:
        Bytes, or ``None`` where there is neither.

    Raises:
        BadInput: A file is damaged.
    """
    place = Path(model)
    folder = place if place.is_dir() else place.parent
    if not place.exists():
        return None
    files = sorted(folder.glob("*.safetensors"))
    index = folder / _INDEX
    if files and (not index.exists() or _all_there(index, files)):
        sizes = performance.tensor_bytes([_header(path) for path in files], where=str(folder))
        return sum(sizes.values())
    if index.exists():
        return performance.index_bytes(_object(index.read_bytes(), str(index)), where=str(index))
    return None


def _all_there(index: Path, files: list[Path]) -> bool:
    names = _object(index.read_bytes(), str(index)).get("weight_map")
    wanted = set(names.values()) if isinstance(names, Mapping) else set()
    return wanted <= {path.name for path in files}


def _header(path: Path) -> Mapping[str, object]:
    with path.open("rb") as file:
        start = file.read(8)
        size = struct.unpack("<Q", start)[0] if len(start) == 8 else 0
        if not 0 < size <= _LONGEST_HEADER_BYTES:
            raise BadInput.at(
                str(path), "is not a safetensors file", "fetch it again; some tools leave a pointer instead"
            )
        return _object(file.read(size), str(path))


def _object(text: bytes, where: str) -> Mapping[str, object]:
    try:
        value = json.loads(text)
    except ValueError as error:
        raise BadInput.at(where, f"cannot be read ({error})", "fetch it again") from None
    if not isinstance(value, dict):
        raise BadInput.at(where, "holds no JSON object", "fetch it again")
    return value
