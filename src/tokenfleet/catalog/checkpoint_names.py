"""What the ending of a checkpoint's name says of its weights."""

import re

from tokenfleet.catalog.quantization import MX_GROUP, NV_GROUP, fp8, integers, micro_fp4, normal_float4
from tokenfleet.domain.model import CheckpointQuantization

_GROUP = 128
"""Group size that INT4 checkpoints use unless their config says otherwise."""

_ENDINGS: tuple[tuple[str, CheckpointQuantization | None], ...] = (
    (r"fp8[-.]block", fp8((_GROUP, _GROUP))),
    (r"(float8|fp8)([-.](dynamic|kv|static|torchao))?", fp8()),
    (r"(quantized[-.])?w8a8([-.]int8)?|int8|smoothquant", integers(8, None, weight_only=False)),
    (r"(quantized[-.])?w8a16|gptq[-.]int8|gptq[-.]8bit", integers(8, _GROUP, weight_only=True)),
    (
        r"(quantized[-.])?w4a16([-.]g128)?|awq([-.](int4|4bit))?|gptq([-.](int4|4bit))?|(autoround[-.])?int4|4bit",
        integers(4, _GROUP, weight_only=True),
    ),
    (r"nvfp4|fp4", micro_fp4(NV_GROUP, weight_only=False)),
    (r"mxfp4", micro_fp4(MX_GROUP, weight_only=True)),
    (r"(unsloth[-.])?bnb[-.]4bit|nf4", normal_float4()),
    (r"bf16|fp16", None),
)
"""Endings of checkpoint names and the scheme each stands for; the longest that fits is meant."""


def split_ending(name: str) -> tuple[str, str, CheckpointQuantization | None] | None:
    """Name without a known quantization ending, that ending, and what it means.

    ``Llama-3.1-8B-FP8-dynamic`` gives ``Llama-3.1-8B``, ``FP8-dynamic`` and FP8 in all linear layers; ``None`` when
    the name ends in nothing known. The last of the three is ``None`` for plain 16-bit endings.
    """
    found = None
    for pattern, scheme in _ENDINGS:
        match = re.fullmatch(rf"(?P<base>.+?)[-_. ](?P<ending>{pattern})", name, flags=re.IGNORECASE)
        if match and (found is None or len(match["base"]) < len(found[0])):
            found = match["base"], match["ending"], scheme
    return found
