"""Terms that cost more than rent, as a person reads it."""

from tokenfleet.app.quantities import shown_usd
from tokenfleet.app.slo_words import spoken
from tokenfleet.domain.buying import Purchase, TermPrice


def term_of(each: TermPrice, found: Purchase) -> str:
    """``reserved 1y``, and of which gpu where there are several."""
    name = each.term.replace("_", " ")
    return f"{name} of {each.gpu}" if len({price.gpu for price in found.terms}) > 1 else name


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
    rent = {each.gpu: each.usd_per_gpu_hour for each in found.terms if each.term == "on_demand"}
    told = []
    for each in found.terms:
        rented = rent.get(each.gpu)
        if each.term in found.dearer_terms and rented is not None and each.usd_per_gpu_hour > rented:
            why = "taken because missing GPUs cost more yet" if each.term in taken else "not taken"
            name = term_of(each, found)
            told.append(
                f"{name} at {shown_usd(each.usd_per_gpu_hour)} is dearer than {shown_usd(rented)} on demand: {why}"
            )
    return told
