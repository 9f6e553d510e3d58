"""Which parts of a model a list of module names or patterns speaks of."""

import re
from collections.abc import Iterable
from fnmatch import fnmatchcase

from tokenfleet.catalog.config_fields import Fields
from tokenfleet.domain.model import Part

_PROBED_LAYERS = 5
"""Layers looked at, spread over the stack and off its ends, which checkpoints often treat apart."""

_ATTENTION = ("self_attn.q_proj", "self_attn.o_proj")
_LATENT_ATTENTION = ("self_attn.q_b_proj", "self_attn.kv_b_proj", "self_attn.o_proj")
_DENSE = ("mlp.gate_proj", "mlp.down_proj")
_SHARED = ("mlp.shared_experts.gate_proj", "mlp.shared_expert.gate_proj", "ffn.shared_experts.gate_proj")
_EXPERTS = (
    "mlp.experts.3.gate_proj",
    "mlp.experts",
    "ffn.experts.3.gate_proj",
    "ffn.experts",
    "block_sparse_moe.experts.3.w1",
)
_COMPRESSED_ATTENTION = ("attn.wq_b", "attn.wo_b")


def named_fraction(fields: Fields, part: Part, listed: Iterable[str]) -> float:
    """Share of a part's modules that ``listed`` names, 0 to 1, judged by modules that stand for the part.

    Names of a module differ between families; the spelling that ``listed`` names most often is the one meant.
    """
    patterns = tuple(listed)
    if part == "head":
        return float(any(_matches(pattern, name) for pattern in patterns for name in ("lm_head", "head")))
    shares = [_share(fields, probe, patterns) for probe in _probes(fields, part)]
    together = part == "attention" or (part == "feed_forward" and not fields.count("num_experts"))
    return sum(shares) / len(shares) if together else max(shares)


def _probes(fields: Fields, part: Part) -> tuple[str, ...]:
    if part == "experts":
        return _EXPERTS
    if part == "feed_forward":
        return _SHARED if fields.count("num_experts") else _DENSE
    if fields.items("compress_ratios"):
        return _COMPRESSED_ATTENTION
    return _LATENT_ATTENTION if fields.count("kv_lora_rank") else _ATTENTION


def _share(fields: Fields, probe: str, patterns: tuple[str, ...]) -> float:
    layers = fields.count("num_hidden_layers") or _PROBED_LAYERS
    numbers = {round((step + 1) * (layers - 1) / (_PROBED_LAYERS + 1)) for step in range(_PROBED_LAYERS)}
    modules = [f"model.layers.{number}.{probe}" for number in sorted(numbers)]
    return sum(any(_matches(one, module) for one in patterns) for module in modules) / len(modules)


def _matches(pattern: str, module: str) -> bool:
    """Whether a pattern names a module: a regular expression, a glob, or a name inside the dotted path."""
    if pattern.startswith("re:"):
        return re.match(pattern[3:], module) is not None
    bare = pattern.removeprefix("language_model.").replace("model.language_model.", "model.")
    if "*" in bare:
        return any(fnmatchcase(f"{start}{module}", f"{bare}{end}") for start in ("", ".") for end in ("", ".*"))
    return f".{bare}." in f".{module}."
