"""The batch lane: when offline work may be sent, and where there is room for it beside interactive requests.

Scalar functions that the simulator compiles. A gateway knows the clock and its own counts; it does not know how
long anything will run. Who comes before whom in a replica is :func:`tokenfleet.control.admission.queue_turn`.
"""

DAY_US = 86_400_000_000


def until_open_us(now_us: int, opens_us: int, open_for_us: int) -> int:
    """Time to the next opening of a daily window; 0 while it is open.

    Args:
        now_us: Any time, microseconds, below 2**62.
        opens_us: When it opens on some day, by the same clock.
        open_for_us: How long it stays open, 1 .. ``DAY_US``, which is always.
    """
    since_us = (now_us - opens_us) % DAY_US
    return 0 if since_us < open_for_us else DAY_US - since_us


def takes_batch(in_flight_count: int, slot_count: int, batch_in_flight_count: int, kept_count: int) -> bool:
    """Whether a replica gets a batch request: a slot is free, or batch has less than is kept for it.

    What is kept keeps batch going however busy the fleet is: nobody in the lane starves.

    Args:
        in_flight_count: Requests sent to the replica that have not ended.
        slot_count: Requests up to which batch may fill it.
        batch_in_flight_count: Those of them that are batch.
        kept_count: Batch requests that it gets in any case.
    """
    return in_flight_count < slot_count or batch_in_flight_count < kept_count
