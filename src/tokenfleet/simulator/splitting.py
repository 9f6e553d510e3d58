"""Prefill and decode in pools of their own."""

from typing import Final

import numpy as np

from tokenfleet.domain.errors import BadInput
from tokenfleet.domain.fleet import Fleet
from tokenfleet.domain.replica import ReplicaPhysics
from tokenfleet.domain.stages import Call, Handover, Pools, Stage, Transfer
from tokenfleet.domain.trace import Bools, Trace
from tokenfleet.performance import kv_transfer_s

PREFILL: Final = "prefill"
DECODE: Final = "decode"


def apart(trace: Trace, prefill: Fleet, decode: Fleet, handover: Handover) -> Pools:
    """Prefill and decode apart, for every request of a trace; see :func:`apart_stages`."""
    fleets = {PREFILL: prefill, DECODE: decode}
    everybody = np.ones(trace.request_count, dtype=np.bool_)
    return Pools(fleets=fleets, stages=apart_stages(trace, everybody, fleets, handover))


def apart_stages(trace: Trace, takes: Bools, fleets: dict[str, Fleet], handover: Handover) -> tuple[Stage, ...]:
    """Stages of requests whose prompt one pool computes and whose output another generates.

    The prefill pool runs each request to its first token. Where the user gets that token, the transfer is a long gap;
    where it is thrown away, the decode pool computes the last prompt token once more, and the transfer is part of TTFT.
    Requests without output end in the prefill pool, and so do those of one token where the prefill pool's counts.

    Args:
        trace: The requests.
        takes: Those that go this way.
        fleets: The pool that computes prompts and the pool that generates, in this order; each of one kind of replica.
        handover: The way between them.

    Raises:
        BadInput: A pool of several kinds of replicas, or KV caches of different precision.
    """
    (first, prefill), (second, decode) = fleets.items()
    sender, receiver = one_kind(prefill, first), one_kind(decode, second)
    kept, wanted = sender.deployment.kv_precision, receiver.deployment.kv_precision
    if kept != wanted:
        what = f"its KV cache is {wanted}, that of {first} is {kept}"
        raise BadInput.at(second, what, "KV is moved as it is: give both the same kv_dtype")
    duration_s = kv_transfer_s(
        trace.input_tokens,
        sender,
        receiver,
        handover.link,
        overlapped_layer_count=handover.overlapped_layer_count,
    )
    ahead = 1 if handover.first_token == PREFILL else 0
    goes_on = takes & (trace.output_tokens > ahead)
    return (
        Call(
            pool=first,
            takes=takes,
            input_tokens=trace.input_tokens,
            output_tokens=np.minimum(trace.output_tokens, 1).astype(np.int32),
            shares_prefixes=True,
            is_seen=handover.first_token == PREFILL,
        ),
        Transfer(takes=goes_on, duration_s=duration_s, latency_s=handover.link.latency_s, link=handover.link.name),
        Call(
            pool=second,
            takes=goes_on,
            input_tokens=(trace.input_tokens + ahead).astype(np.int32),
            output_tokens=(trace.output_tokens - ahead).astype(np.int32),
            kv_delivered=True,
            is_announced=handover.first_token == PREFILL,
        ),
    )


def one_kind(fleet: Fleet, name: str) -> ReplicaPhysics:
    """The replica of a pool of equal replicas.

    Raises:
        BadInput: Several kinds, or none.
    """
    if len(fleet.groups) != 1:
        raise BadInput.at(name, f"{len(fleet.groups)} kinds of replicas", "a pool of KV that moves has exactly one")
    return fleet.groups[0].replica
