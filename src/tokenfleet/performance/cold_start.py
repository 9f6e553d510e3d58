"""How long a replica takes from being asked for to its first request, stage by stage.

A cold start is a sum: node, image, framework, weights, compilation, warm-up. Stages differ by factors of ten between
machines, so each is a range of what was measured; the sum of the typical values is a middle, not a promise. A start
timed on one's own machines is better than all of it.
"""

from collections.abc import Sequence
from typing import Final

import numpy as np

from tokenfleet.catalog import ColdStartFact, ColdStartStage, Storage, cold_start_facts
from tokenfleet.domain.gpu import Gpu
from tokenfleet.domain.records import dataclass

STARTUP_MARGIN: Final = 1.5
"""What a start-up probe must allow over the longest predicted start."""
IMAGE_BYTES: Final = 10e9
"""A serving image, compressed, where nobody says: published ones have 5 to 10 GB."""
_TAIL_PERCENT: Final = 10.0
"""Where there are many measurements, the tenth at either end are left out of the range."""
_MANY: Final = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class StageTime:
    """Seconds of one stage."""

    stage: ColdStartStage
    low_s: float
    typical_s: float
    high_s: float
    evidence: str
    """What the range rests on, for a person."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ColdStart:
    """A start, stage by stage."""

    stages: tuple[StageTime, ...]

    @property
    def low_s(self) -> float:
        """Every stage at its shortest."""
        return sum(stage.low_s for stage in self.stages)

    @property
    def typical_s(self) -> float:
        """Every stage at its middle."""
        return sum(stage.typical_s for stage in self.stages)

    @property
    def high_s(self) -> float:
        """Every stage at its longest."""
        return sum(stage.high_s for stage in self.stages)

    def share_fraction(self, stage: ColdStartStage) -> float:
        """Part of the typical start that a stage takes: what a faster one could save at most."""
        return sum(each.typical_s for each in self.stages if each.stage == stage) / self.typical_s


def cold_start_s(
    weights_bytes: float,
    gpu: Gpu,
    *,
    gpu_count: int = 1,
    storage: Storage = "network_disk",
    node_is_warm: bool = False,
    image_is_cached: bool = False,
    image_bytes: float = IMAGE_BYTES,
    compiled_is_cached: bool = False,
) -> ColdStart:
    """Seconds until a replica is ready, by stage, with low and high.

    Args:
        weights_bytes: Weights of the whole replica.
        gpu: Where they go. Its host link bounds how fast weights can come.
        gpu_count: GPUs that load at the same time.
        storage: Where weights are read from. One replica reads at the rate of its storage, however many gpus it has.
        node_is_warm: A machine is there already.
        image_is_cached: And the image is on it.
        image_bytes: Compressed size of the image.
        compiled_is_cached: Compiled graphs and built kernels are kept between starts.

    Returns:
        The stages in their order; those that are not needed are left out.
    """
    stages = []
    if not node_is_warm:
        stages.append(_timed("node", _rows("node", cached=False)))
    stages.append(
        _timed("image", _rows("image", cached=True))
        if image_is_cached
        else _moved("image", image_bytes, _rows("image", cached=False))
    )
    stages.append(_timed("start", _rows("start", cached=False)))
    read = [row for row in _rows("weights", cached=False) if row.storage == storage]
    floor_s = 0.0 if gpu.pcie_bytes_per_s is None else weights_bytes / gpu_count / gpu.pcie_bytes_per_s
    stages.append(_moved("weights", weights_bytes, read, floor_s=floor_s))
    stages += [_timed(stage, _rows(stage, cached=compiled_is_cached)) for stage in _AFTER_WEIGHTS]
    return ColdStart(stages=tuple(stages))


_AFTER_WEIGHTS: Final[tuple[ColdStartStage, ...]] = ("compile", "warm_up")


def startup_budget_s(start: ColdStart, margin_factor: float = STARTUP_MARGIN) -> float:
    """What a start-up probe must allow before it kills a loading replica.

    Args:
        start: The predicted start. A node that is still being made is not the probe's business.
        margin_factor: On top of the longest start.
    """
    return margin_factor * sum(stage.high_s for stage in start.stages if stage.stage != "node")


def _rows(stage: ColdStartStage, *, cached: bool) -> list[ColdStartFact]:
    return [row for row in cold_start_facts() if row.stage == stage and row.cached == cached and row.quality != "C"]


def _timed(stage: ColdStartStage, measured: Sequence[ColdStartFact]) -> StageTime:
    low_s, typical_s, high_s = _range([row.time_s for row in measured])
    return StageTime(stage=stage, low_s=low_s, typical_s=typical_s, high_s=high_s, evidence=_evidence(measured))


def _moved(
    stage: ColdStartStage, moved_bytes: float, measured: Sequence[ColdStartFact], *, floor_s: float = 0.0
) -> StageTime:
    """A stage that moves bytes, at the rates at which others moved theirs."""
    rates = [row.size_bytes / row.time_s for row in measured if row.size_bytes is not None]
    slow, typical, fast = _range(rates)
    return StageTime(
        stage=stage,
        low_s=max(moved_bytes / fast, floor_s),
        typical_s=max(moved_bytes / typical, floor_s),
        high_s=max(moved_bytes / slow, floor_s),
        evidence=f"{moved_bytes / 1e9:.3g} GB at {slow / 1e9:.2g} to {fast / 1e9:.2g} GB/s; {_evidence(measured)}",
    )


def _range(values: Sequence[float]) -> tuple[float, float, float]:
    tail = _TAIL_PERCENT if len(values) >= _MANY else 0.0
    low, middle, high = np.percentile(values, [tail, 50.0, 100.0 - tail])
    return float(low), float(middle), float(high)


def _evidence(measured: Sequence[ColdStartFact]) -> str:
    count = "1 measurement" if len(measured) == 1 else f"{len(measured)} measurements"
    dates = sorted({row.as_of for row in measured})
    return f"{count}, {dates[0]}" + (f" to {dates[-1]}" if len(dates) > 1 else "")
