"""True bytes of a checkpoint from what its files say of themselves; reading the files is for the application."""

from collections.abc import Iterable, Mapping
from math import prod

from tokenfleet.domain.errors import BadInput

_BITS = {
    "BOOL": 8,
    "U8": 8,
    "I8": 8,
    "F8_E4M3": 8,
    "F8_E5M2": 8,
    "F8_E8M0": 8,
    "I16": 16,
    "U16": 16,
    "F16": 16,
    "BF16": 16,
    "I32": 32,
    "U32": 32,
    "F32": 32,
    "I64": 64,
    "U64": 64,
    "F64": 64,
    "F4": 4,
}
"""Bits of one element by the type names of safetensors."""


def index_bytes(index: Mapping[str, object], *, where: str) -> int:
    """Bytes of all tensors as a ``model.safetensors.index.json`` states them.

    Args:
        index: The parsed file.
        where: Its path, for the error.

    Returns:
        ``metadata.total_size``.

    Raises:
        BadInput: The index has no such figure.
    """
    metadata = index.get("metadata")
    size = metadata.get("total_size") if isinstance(metadata, Mapping) else None
    if isinstance(size, bool) or not isinstance(size, int | float) or size <= 0:
        raise BadInput.at(where, "metadata.total_size is missing", "take the index that the publisher wrote")
    return int(size)


def tensor_bytes(headers: Iterable[Mapping[str, object]], *, where: str) -> dict[str, int]:
    """Bytes of each tensor from the headers of safetensors files.

    Args:
        headers: Parsed header of each file: name to ``dtype``, ``shape`` and ``data_offsets``.
        where: Path of the checkpoint, for the error.

    Returns:
        Bytes by tensor name; packed types count as stored.

    Raises:
        BadInput: A tensor without a shape, or of a type this page does not know.
    """
    sizes: dict[str, int] = {}
    for header in headers:
        for name, entry in header.items():
            if name == "__metadata__":
                continue
            sizes[name] = _tensor_bytes(name, entry, where)
    return sizes


def _tensor_bytes(name: str, entry: object, where: str) -> int:
    if not isinstance(entry, Mapping):
        raise BadInput.at(where, f"{name} has no shape", "the file is damaged; fetch it again")
    offsets = entry.get("data_offsets")
    if isinstance(offsets, list | tuple) and len(offsets) == 2:
        return int(offsets[1]) - int(offsets[0])
    bits, shape = _BITS.get(str(entry.get("dtype"))), entry.get("shape")
    if bits is None or not isinstance(shape, list | tuple):
        raise BadInput.at(where, f"{name} has type {entry.get('dtype')}", f"known: {', '.join(_BITS)}")
    return (prod(int(side) for side in shape) * bits + 7) // 8
