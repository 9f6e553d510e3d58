"""The rungs of a degradation ladder."""

from typing import Literal

RungKind = Literal[
    "shed_batch", "tenant_quota", "smaller_model", "cap_output", "cap_context", "cap_wait", "limit_sessions"
]
