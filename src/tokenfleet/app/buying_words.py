"""Terms that cost more than rent, as a person reads it."""

from tokenfleet.app.quantities import shown_usd
from tokenfleet.app.slo_words import spoken
from tokenfleet.domain.plan import Purchase


def spot_lines(found: Purchase) -> list[str]:
    """A sentence where spot carries requests that somebody waits for."""
    if not found.spot_promised:
        return []
    names = " and ".join(spoken(name) for name in found.spot_promised)
    return [
        f"spot carries work as you say (interruptible), yet {names} "
        f"{'is' if len(found.spot_promised) == 1 else 'are'} promised to it: promise a latency to classes of requests "
        "alone, or leave interruptible out"
    ]


def dearer_lines(found: Purchase) -> list[str]:
    """A sentence for each term whose gpu-hour costs more than one on demand."""
    taken = {line.name for line in found.lines if line.mean_gpu_count}
    rented = min((each.usd_per_gpu_hour for each in found.terms if each.term == "on_demand"), default=None)
    told = []
    for each in found.terms:
        if each.term in found.dearer_terms and rented is not None:
            why = "taken because missing GPUs cost more yet" if each.term in taken else "not taken"
            name = each.term.replace("_", " ")
            told.append(
                f"{name} at {shown_usd(each.usd_per_gpu_hour)} is dearer than {shown_usd(rented)} on demand: {why}"
            )
    return told
