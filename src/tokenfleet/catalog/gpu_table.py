"""Accelerators by the names people, drivers and clouds write."""

import re
from dataclasses import replace
from difflib import get_close_matches
from functools import cache, lru_cache

from tokenfleet.catalog.tables import Row, number, rows
from tokenfleet.domain.errors import BadInput
from tokenfleet.domain.gpu import Gpu

_GIB = 2**30
_GIGA = 1e9
_TERA = 1e12

_NOISE = frozenset(
    (
        "nvidia",
        "amd",
        "intel",
        "google",
        "aws",
        "huawei",
        "sambanova",
        "geforce",
        "tesla",
        "instinct",
        "radeon",
        "cloud",
        "gpu",
        "gpus",
        "accelerator",
        "tensor",
        "core",
        "corporation",
        "graphics",
        "hbm",
        "hbm2",
        "hbm2e",
        "hbm3",
        "hbm3e",
    )
)
"""Words that drivers and clouds add and that do not tell two parts apart."""

Key = tuple[str, ...]


def _key(name: str) -> Key:
    """Name without case, order, punctuation and vendor words: equal keys mean the same part.

    ``NVIDIA H100 80GB HBM3``, ``h100-80gb`` and ``H100_80GB`` share one key.
    """
    words = [word for word in re.split(r"[^a-z0-9.]+", name.lower()) if word and word not in _NOISE]
    pieces: list[str] = []
    for word in words:
        pieces += re.findall(r"[a-z]+|\d+", re.sub(r"sxm\d", "sxm", word))
    return tuple(sorted(pieces))


def _gpu(row: Row) -> Gpu:
    return Gpu(
        name=row["name"],
        vendor=row["vendor"],
        title=row["title"],
        memory_bytes=round(float(row["memory_gib"]) * _GIB),
        memory_bandwidth_bytes_per_s=number(row, "memory_bandwidth_gb_per_s", scale=_GIGA),
        bf16_flop_per_s=number(row, "bf16_tflop_per_s", scale=_TERA),
        fp8_flop_per_s=number(row, "fp8_tflop_per_s", scale=_TERA),
        int8_flop_per_s=number(row, "int8_tflop_per_s", scale=_TERA),
        fp4_flop_per_s=number(row, "fp4_tflop_per_s", scale=_TERA),
        link_name=row["link_name"],
        link_bytes_per_s=number(row, "link_gb_per_s", scale=_GIGA),
        pcie_bytes_per_s=number(row, "pcie_gb_per_s", scale=_GIGA),
        tdp_w=number(row, "tdp_w"),
        gpus_per_node_count=int(row["gpus_per_node_count"]),
        partition_count=int(row["partition_count"]),
        confidence=row["confidence"],
        source=row["source"],
        note=row["note"],
        memory_basis=row["memory_basis"],
    )


@cache
def gpus() -> tuple[Gpu, ...]:
    """Every accelerator of the catalog, in the order of the table."""
    return tuple(_gpu(row) for row in rows("gpus"))


@cache
def _names() -> dict[Key, tuple[str, ...]]:
    """Canonical names behind each key; more than one means that the name does not say which part is meant."""
    found: dict[Key, tuple[str, ...]] = {}
    own = {_key(row["name"]): row["name"] for row in rows("gpus")}
    for row in rows("gpus"):
        for written in (row["title"], *filter(None, row["aliases"].split("|"))):
            key = _key(written)
            if row["name"] not in found.get(key, ()):
                found[key] = (*found.get(key, ()), row["name"])
    return found | {key: (name,) for key, name in own.items()}


@lru_cache(maxsize=1024)
def _names_meant(name: str) -> tuple[str, ...]:
    return _names().get(_key(name), ())


@lru_cache(maxsize=1024)
def _part(written: str, name: str) -> Gpu:
    found = next(part for part in gpus() if part.name == name)
    return replace(found, note=_taken(written, found))


def gpu(name: str, *, where: str = "gpu") -> Gpu:
    """The accelerator that ``name`` means.

    Args:
        name: canonical name (``h100_sxm``) or what a driver, a cloud label or a person writes
            (``NVIDIA H100 80GB HBM3``, ``nvidia-h100-80gb``, ``H100``).
        where: file, line or key of the name, for the error.

    Returns:
        Its facts. ``note`` says which part was taken where the name left it open.

    Raises:
        BadInput: nobody knows the name (the nearest ones are given), or it stands for parts with different memory.
    """
    names = _names_meant(name)
    if len(names) == 1:
        return _part(name, names[0])
    if names:
        raise BadInput.at(where, f"{name!r} could be {' or '.join(names)}", "write one of these names")
    whole, of, _ = name.partition(":")
    if of and _names_meant(whole):
        raise BadInput.at(where, f"{name!r} is a slice of a gpu", f"capacity compares slices; here, write {whole}")
    nearest = nearest_gpu_names(name)
    raise BadInput.at(
        where,
        f"unknown gpu {name!r}",
        f"nearest: {', '.join(nearest)}" if nearest else "known: " + ", ".join(part.name for part in gpus()),
    )


def _taken(name: str, found: Gpu) -> str:
    """The note of a part, with the reading of a name that says less than the part's own."""
    if _key(name) in (_key(found.name), _key(found.title)) or len(_key(name)) >= len(_key(found.name)):
        return found.note
    said = f"{name} taken as {found.title}"
    return f"{found.note}; {said}" if found.note else said


def nearest_gpu_names(name: str) -> tuple[str, ...]:
    """Up to three parts that are called much like ``name``, nearest first: ``h100_sxm``, ``ironwood (tpu7x)``."""
    found: dict[str, str] = {}
    alike = get_close_matches(_plain(name), _spellings(), n=12, cutoff=0.6)
    for part, written in (_spellings()[each] for each in alike):
        found.setdefault(part, part if _plain(part) in alike else f"{written} ({part})")
    return tuple(found.values())[:3]


@cache
def _spellings() -> dict[str, tuple[str, str]]:
    """The part behind each way to write one that stands for no other, without what tells nothing apart."""
    found: dict[str, tuple[str, str]] = {}
    for row in rows("gpus"):
        for written in (row["name"], *filter(None, row["aliases"].split("|"))):
            # ``h100`` is the beginning of its part's name, and no nearer than the other parts that begin so.
            own = written == row["name"] or not _plain(row["name"]).startswith(_plain(written))
            if own and _names_meant(written) == (row["name"],):
                found.setdefault(_plain(written), (row["name"], written))
    return found


def _plain(name: str) -> str:
    return "".join(word for word in re.findall(r"[a-z0-9]+", name.lower()) if word not in _NOISE)
