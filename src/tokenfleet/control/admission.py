"""The door: who is let in, who comes first, what a tenant has left, when to come back.

Scalar functions that the simulator compiles. A request is known by what it declares: its prompt and the most
output it allows. What it will really produce, nobody knows at the door. A cap refuses and says why; it never cuts.
"""

import math

ADMITTED = 0
SMALLER_MODEL = 1
"""Let in, to the smaller model."""
BATCH_SHED = 2
QUOTA_SPENT = 3
SESSION_REFUSED = 4
CONTEXT_CAPPED = 5
OUTPUT_CAPPED = 6
QUEUE_FULL = 7
OVERDUE = 8

REASONS = {
    ADMITTED: "admitted",
    SMALLER_MODEL: "admitted to the smaller model",
    BATCH_SHED: "batch requests are shed",
    QUOTA_SPENT: "the tenant's tokens are spent",
    SESSION_REFUSED: "no new sessions",
    CONTEXT_CAPPED: "prompt and output limit are longer than the cap in force",
    OUTPUT_CAPPED: "the output limit is higher than the cap in force",
    QUEUE_FULL: "the queue is full",
    OVERDUE: "it has waited until the deadline",
}
"""What a refused client reads."""

LONGEST_RETRY_S = 30.0
_MICRO = 1_000_000


def admit(
    is_batch: bool,
    batch_is_open: bool,
    needed_tokens: int,
    quota_left_tokens: int,
    input_tokens: int,
    output_limit_tokens: int,
    smaller_input_tokens: int,
    smaller_output_tokens: int,
    opens_session: bool,
    sessions_left_count: int,
    context_cap_tokens: int,
    output_cap_tokens: int,
    waiting_count: int,
    queue_limit_count: int,
    batch_queue_limit_count: int,
) -> int:
    """Decide on one request.

    Args:
        is_batch: Whether it waits in the batch lane.
        batch_is_open: Whether that lane takes anybody.
        needed_tokens: What it would reserve of its tenant's quota.
        quota_left_tokens: What the tenant has; ``NO_CAP`` while quotas are not in force.
        input_tokens: Its prompt.
        output_limit_tokens: The most output it allows.
        smaller_input_tokens: Interactive prompts up to this long go to the smaller model; 0: none does.
        smaller_output_tokens: Of those, the ones whose output limit is not above this.
        opens_session: Whether it starts a conversation.
        sessions_left_count: Conversations that may still start; ``NO_CAP`` while they are not limited.
        context_cap_tokens: Longest prompt and output limit together; ``NO_CAP``: no cap.
        output_cap_tokens: Highest output limit; ``NO_CAP``: no cap.
        waiting_count: Requests that wait on the replica it would go to.
        queue_limit_count: Bound of that queue; it is always in force.
        batch_queue_limit_count: The same for the batch lane, lower: batch is shed first.

    Returns:
        ``ADMITTED``, ``SMALLER_MODEL`` or the code of a reason, see ``REASONS``; never ``OVERDUE``.
    """
    if is_batch and not batch_is_open:
        return BATCH_SHED
    if needed_tokens > quota_left_tokens:
        return QUOTA_SPENT
    if opens_session and sessions_left_count <= 0:
        return SESSION_REFUSED
    if not is_batch and input_tokens <= smaller_input_tokens and output_limit_tokens <= smaller_output_tokens:
        return SMALLER_MODEL
    if input_tokens + output_limit_tokens > context_cap_tokens:
        return CONTEXT_CAPPED
    if output_limit_tokens > output_cap_tokens:
        return OUTPUT_CAPPED
    if waiting_count >= (batch_queue_limit_count if is_batch else queue_limit_count):
        return QUEUE_FULL
    return ADMITTED


def is_overdue(waited_ps: int, deadline_ps: int) -> bool:
    """Whether a request that still waits is refused, with ``OVERDUE``. One that has begun is never asked.

    Args:
        waited_ps: Since it came.
        deadline_ps: How long it may wait; 0: for ever.
    """
    return 0 < deadline_ps <= waited_ps


def queue_turn(arrival_us: int, is_batch: bool, patience_us: int) -> int:
    """Place in the queue, lowest first: interactive before batch, yet nobody starves.

    A batch request that has waited for ``patience_us`` counts as an interactive one that arrives now, and so comes
    before every later one.

    Args:
        arrival_us: When it came, microseconds, below 2**61.
        is_batch: Whether it waits in the batch lane.
        patience_us: How long batch gives way, from 0 on, below 2**61.
    """
    return arrival_us + patience_us if is_batch else arrival_us


def bucket_refilled(level_micro_tokens: int, passed_us: int, tokens_per_s: int, burst_tokens: int) -> int:
    """Level of a token bucket after a time, exact to a millionth of a token.

    Args:
        level_micro_tokens: Before; below 0 where somebody used more than was reserved.
        passed_us: Time since then, from 0 on.
        tokens_per_s: Refill, from 0 on, below 2**31.
        burst_tokens: What the bucket holds, below 2**31.
    """
    full = burst_tokens * _MICRO
    if level_micro_tokens >= full:
        return full
    if tokens_per_s <= 0:
        return level_micro_tokens
    # Compared before it is multiplied, for a long silence would overflow the product.
    if passed_us > (full - level_micro_tokens) // tokens_per_s:
        return full
    return level_micro_tokens + passed_us * tokens_per_s


def bucket_left_tokens(level_micro_tokens: int) -> int:
    """Whole tokens that may be reserved, from 0 on."""
    return level_micro_tokens // _MICRO if level_micro_tokens > 0 else 0


def bucket_reserved(level_micro_tokens: int, tokens: int) -> int:
    """Level after a reservation. The caller has asked :func:`bucket_left_tokens` first, in one turn."""
    return level_micro_tokens - tokens * _MICRO


def bucket_settled(level_micro_tokens: int, reserved_tokens: int, used_tokens: int, burst_tokens: int) -> int:
    """Level once a request has ended: what it reserved comes back, what it used is gone. Never above full."""
    level = level_micro_tokens + (reserved_tokens - used_tokens) * _MICRO
    full = burst_tokens * _MICRO
    return min(level, full)


def retry_after_s(waiting_count: int, served_per_s: float, draw_fraction: float) -> float:
    """When to come back: the time in which those ahead are served, spread by up to 30 % so that not all return at once.

    Args:
        waiting_count: Requests ahead, from 0 on.
        served_per_s: Requests served a second lately; 0 or less: unknown.
        draw_fraction: A random number from 0 to 1, drawn for this request.

    Returns:
        Whole seconds before spreading, 1 to 30 (39 spread); -1 where nobody knows.
    """
    if served_per_s <= 0.0:
        return -1.0
    if waiting_count >= LONGEST_RETRY_S * served_per_s:
        return LONGEST_RETRY_S * (1.0 + 0.3 * draw_fraction)
    return max(float(math.ceil(waiting_count / served_per_s)), 1.0) * (1.0 + 0.3 * draw_fraction)


def backoff_ps(attempt: int, first_ps: int, longest_ps: int, drawn: int) -> int:
    """How long a client waits after an attempt: doubled each time, and drawn between half of it and all of it.

    Args:
        attempt: The attempt that came to nothing, from 1 on.
        first_ps: Longest wait after the first attempt.
        longest_ps: Longest wait after any attempt.
        drawn: A random number for this attempt; its lowest 16 bits count.
    """
    wait_ps = min(first_ps, longest_ps)
    for _ in range(attempt - 1):
        if wait_ps == 0 or wait_ps == longest_ps:
            break
        wait_ps = min(2 * wait_ps, longest_ps)
    half_ps = wait_ps >> 1
    return half_ps + (half_ps >> 16) * (drawn & 0xFFFF)
