"""The door: which requests are let in, by the rungs of a ladder that are in force."""

from tokenfleet.control import admission
from tokenfleet.domain.world import NO_CAP
from tokenfleet.simulator.compiling import compiled
from tokenfleet.simulator.layout import (
    BATCH_IS_OPEN,
    BUCKET_LEVEL,
    BUCKET_TIME,
    BUCKET_WORDS,
    CONTEXT_CAP,
    DOOR_AT,
    DOOR_WORDS,
    NONE,
    OUTPUT_CAP,
    QUOTA_BURST,
    QUOTA_RATE,
    READY,
    SESSION_LIMIT,
    SMALLER_INPUT,
    SMALLER_OUTPUT,
    STATUS_BATCH_SHED,
    WHO,
)
from tokenfleet.simulator.memory import Memory, input_tokens, output_tokens
from tokenfleet.simulator.sessions import open_sessions, opens_session
from tokenfleet.simulator.visits import visit_of

PS_PER_US = 1_000_000
ADMITTED = admission.ADMITTED
SMALLER_MODEL = admission.SMALLER_MODEL
BATCH_SHED = admission.BATCH_SHED

admit = compiled(admission.admit)
bucket_left_tokens = compiled(admission.bucket_left_tokens)
bucket_refilled = compiled(admission.bucket_refilled)
bucket_reserved = compiled(admission.bucket_reserved)


@compiled
def bucket_of(memory: Memory, request: int) -> int:
    """The token bucket of a request's tenant; ``NONE`` without a door, a tenant or a quota."""
    door = memory[DOOR_AT]
    if door == NONE:
        return NONE
    tenant = memory[visit_of(memory, request) + WHO] >> 1
    if tenant == 0 or memory[door + QUOTA_RATE] == NO_CAP:
        return NONE
    return door + DOOR_WORDS + (tenant - 1) * BUCKET_WORDS


@compiled
def verdict(memory: Memory, request: int, has_smaller: bool) -> int:
    """What the door decides on a request, a code of the control room; whether a smaller model may be the answer.

    What counts as needed is what the request declares: its prompt and its output limit.
    """
    door = memory[DOOR_AT]
    if door == NONE:
        return ADMITTED
    who = memory[visit_of(memory, request) + WHO]
    bucket = bucket_of(memory, request)
    left = NO_CAP
    if bucket != NONE:
        now_us = memory[request + READY] // PS_PER_US
        passed_us = now_us - memory[bucket + BUCKET_TIME]
        level = bucket_refilled(
            memory[bucket + BUCKET_LEVEL], passed_us, memory[door + QUOTA_RATE], memory[door + QUOTA_BURST]
        )
        memory[bucket + BUCKET_LEVEL] = level
        memory[bucket + BUCKET_TIME] = now_us
        left = bucket_left_tokens(level)
    inputs, outputs = input_tokens(memory, request), output_tokens(memory, request)
    sessions_left = memory[door + SESSION_LIMIT] - open_sessions(memory, door, memory[request + READY])
    return admit(
        who & 1 == 1,
        memory[door + BATCH_IS_OPEN] == 1,
        inputs + outputs,
        left,
        inputs,
        outputs,
        memory[door + SMALLER_INPUT] if has_smaller else 0,
        memory[door + SMALLER_OUTPUT],
        opens_session(memory, request),
        sessions_left,
        memory[door + CONTEXT_CAP],
        memory[door + OUTPUT_CAP],
        0,
        1,
        1,
    )


@compiled
def refusal_status(code: int) -> int:
    """How a request ends that was refused with a code of the control room."""
    return STATUS_BATCH_SHED + code - BATCH_SHED


@compiled
def charge(memory: Memory, request: int) -> None:
    """A replica takes a request: its tenant's tokens are reserved."""
    bucket = bucket_of(memory, request)
    if bucket != NONE:
        needed = input_tokens(memory, request) + output_tokens(memory, request)
        memory[bucket + BUCKET_LEVEL] = bucket_reserved(memory[bucket + BUCKET_LEVEL], needed)
