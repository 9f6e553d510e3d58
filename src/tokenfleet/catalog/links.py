"""Links that KV crosses between replicas: what one gpu gets through, and how long a transfer takes to start."""

from difflib import get_close_matches
from functools import cache

from tokenfleet.catalog.tables import number, rows
from tokenfleet.domain.errors import BadInput
from tokenfleet.domain.gpu import Gpu, Link

_GB = 1e9
_MS = 1e-3


@cache
def link_names() -> tuple[str, ...]:
    """Every link of the catalog."""
    return tuple(row["name"] for row in rows("links"))


def link_words() -> dict[str, tuple[str, ...]]:
    """Other words for each link of the catalog."""
    return {row["name"]: tuple(row["aliases"].split("|")) for row in rows("links")}


def link(name: str, *, gpu: Gpu, where: str = "link") -> Link:
    """A link by name, as one gpu of this kind sees it.

    Args:
        name: A name of the catalog or another word for it.
        gpu: The sender, whose own NVLink or PCIe counts inside a node.
        where: File, line or key of the name, for the error.

    Raises:
        BadInput: An unknown name, or a link that the gpu does not have.
    """
    wanted = name.strip().lower()
    found = next((row for row in rows("links") if wanted in (row["name"], *row["aliases"].split("|"))), None)
    if found is None:
        near = get_close_matches(wanted, link_names(), n=2, cutoff=0.4)
        raise BadInput.at(where, f"unknown link {name!r}", f"nearest: {', '.join(near or link_names())}")
    own = {"nvlink": gpu.link_bytes_per_s, "pcie": gpu.pcie_bytes_per_s}
    line_bytes_per_s = own.get(found["name"], number(found, "line_gb_per_s", scale=_GB))
    if line_bytes_per_s is None:
        raise BadInput.at(where, f"{gpu.name} has no {found['name']} that we know of", "name another link")
    return Link(
        name=found["name"],
        title=found["title"],
        line_bytes_per_s=line_bytes_per_s,
        efficiency_fraction=float(found["efficiency_fraction"]),
        latency_s=float(found["latency_ms"]) * _MS,
        confidence=found["confidence"],
        source=found["source"],
        note=found["note"],
    )
