"""Serving engines: what each version does when nobody sets anything."""

import re
from functools import cache, lru_cache

from tokenfleet.catalog.tables import Row, number, rows
from tokenfleet.domain.errors import BadInput
from tokenfleet.domain.gpu import Gpu
from tokenfleet.domain.replica import EngineSettings

_GIB = 2**30
_MIB_PER_GIB = 1024
_SPELLINGS = {"tensorrt-llm": "trtllm", "tensorrtllm": "trtllm", "trt-llm": "trtllm"}


@cache
def engine_names() -> tuple[str, ...]:
    """Every engine version of the catalog, oldest first within an engine: ``vllm-0.32``."""
    return tuple(dict.fromkeys(f"{row['engine']}-{row['version']}" for row in rows("engines")))


def engine(name: str, *, gpu: Gpu, where: str = "engine") -> EngineSettings:
    """Default settings of an engine version on one kind of gpu.

    Engines choose the token budget and the sequence limit by the memory they see; vLLM treats an A100 as a small
    gpu whatever its memory. SGLang derives its static memory share from what it keeps aside, and counts weights
    and KV alone in that share, where vLLM counts the activations too.

    Args:
        name: ``vllm`` for the newest version read, ``vllm-0.24`` or ``vllm-0.24.0`` for one.
        gpu: where it runs.
        where: file, line or key of the name, for the error.

    Raises:
        BadInput: an engine or a version whose rules nobody has read; versions are never interpolated.
    """
    asked, version = _split(name)
    known = [known.split("-", 1) for known in engine_names()]
    versions = [one for other, one in known if other == asked]
    if not versions:
        raise BadInput.at(where, f"unknown engine {name!r}", f"known: {', '.join(engine_names())}")
    wanted = version or versions[-1]
    found = next((one for one in versions if wanted == one or wanted.startswith(f"{one}.")), None)
    if found is None:
        choices = ", ".join(f"{asked}-{one}" for one in versions)
        raise BadInput.at(
            where, f"the rules of {asked} {wanted} are not in the catalog", f"take the nearest: {choices}"
        )
    return _settings_of(asked, found, gpu)


def _split(name: str) -> tuple[str, str | None]:
    """Engine and version of ``vllm-0.32``, ``vLLM 0.32.0``, ``vllm==0.32`` or ``vllm``."""
    match = re.fullmatch(r"\s*([a-z-]+?)[\s=_-]*v?(\d[\w.]*)?\s*", name.lower())
    if match is None:
        return name.lower(), None
    return _SPELLINGS.get(match[1], match[1]), match[2]


@lru_cache(maxsize=256)
def _settings_of(engine_name: str, version: str, gpu: Gpu) -> EngineSettings:
    """Asked again for every fleet that somebody reads the name of."""
    return _settings(_row(engine_name, version, gpu), gpu)


def _row(engine_name: str, version: str, gpu: Gpu) -> Row:
    """The row of the largest memory step this gpu reaches and is not excepted from."""
    fitting = [
        row
        for row in rows("engines")
        if (row["engine"], row["version"]) == (engine_name, version)
        and gpu.memory_bytes >= float(row["minimum_memory_gib"]) * _GIB
        and not (row["except_gpu"] and gpu.name.startswith(row["except_gpu"]))
    ]
    return max(fitting, key=lambda row: float(row["minimum_memory_gib"]))


def _settings(row: Row, gpu: Gpu) -> EngineSettings:
    max_batched_tokens = int(row["max_batched_tokens"])
    return EngineSettings(
        name=f"{row['engine']}-{row['version']}",
        max_batched_tokens=max_batched_tokens,
        max_sequence_count=int(row["max_sequence_count"]),
        block_tokens=int(row["block_tokens"]),
        memory_utilization_fraction=_utilization(row, gpu, max_batched_tokens),
        prefix_caching=row["prefix_caching"] == "yes",
        chunked_prefill=row["chunked_prefill"] == "yes",
        full_prompt_gate=row["full_prompt_gate"] == "yes",
        async_scheduling=row["async_scheduling"] == "yes",
        watermark_fraction=float(row["watermark_fraction"]),
    )


def _utilization(row: Row, gpu: Gpu, max_batched_tokens: int) -> float:
    """The stated share, or what is left after the engine's reserve: fixed plus per prefill token, not below a floor."""
    stated = number(row, "memory_utilization_fraction")
    if stated is not None:
        return stated
    per_token_gib = float(row["reserve_mib_per_token"]) / _MIB_PER_GIB
    reserve_gib = max(float(row["reserve_floor_gib"]), float(row["reserve_gib"]) + per_token_gib * max_batched_tokens)
    return round(1 - reserve_gib * _GIB / gpu.memory_bytes, 3)
