"""Measured starts of replicas, stage by stage."""

from functools import cache
from typing import Literal, cast

from tokenfleet.catalog.tables import Row, number, rows
from tokenfleet.domain.records import dataclass

ColdStartStage = Literal["node", "image", "start", "weights", "compile", "warm_up"]
Storage = Literal["object_store", "network_disk", "local_nvme"]
_GIGA = 1e9


@dataclass(frozen=True, slots=True, kw_only=True)
class ColdStartFact:
    """One measured stage of one start."""

    stage: ColdStartStage
    cached: bool
    """Whether what the stage makes or fetches was there already: the image, compiled graphs, built kernels."""
    storage: Storage | None
    """Where weights came from; ``None`` where the source does not say."""
    loader: str
    model: str
    size_bytes: float | None
    """Of the image or the weights."""
    gpu: str
    time_s: float
    quality: str
    """A: direct figure; B: something is inferred; C: context, in no range."""
    as_of: str
    source: str
    note: str


@cache
def cold_start_facts() -> tuple[ColdStartFact, ...]:
    """Every measured stage of the catalog, in the order in which stages follow each other."""
    return tuple(_fact(row) for row in rows("cold_start"))


def _fact(row: Row) -> ColdStartFact:
    return ColdStartFact(
        stage=cast("ColdStartStage", row["stage"]),
        cached=row["state"] == "cached",
        storage=cast("Storage", row["storage"]) if row["storage"] else None,
        loader=row["loader"],
        model=row["model"],
        size_bytes=number(row, "size_gb", scale=_GIGA),
        gpu=row["gpu"],
        time_s=float(row["seconds"]),
        quality=row["quality"],
        as_of=row["as_of"],
        source=row["source"],
        note=row["note"],
    )
