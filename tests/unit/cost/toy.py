"""Bills and usage to share out."""

from hypothesis import strategies as st

from tokenfleet.cost import TokenCounts
from tokenfleet.domain.plan import Bill

PARTS = ("input", "cached", "output", "headroom", "idle", "spare")


def bill_of(*usd):
    lines = dict(zip(PARTS, usd, strict=True))
    unknown = dict.fromkeys(
        [
            "usd_per_million_input_tokens",
            "usd_per_million_cached_tokens",
            "usd_per_million_output_tokens",
            "usd_per_million_output_tokens_loaded",
            "usd_per_request",
        ]
    )
    return Bill(
        span_s=3600.0,
        total_usd_per_hour=sum(usd),
        **{f"{part}_usd_per_hour": each for part, each in lines.items()},
        **unknown,
    )


amounts = st.tuples(*[st.floats(0.0, 500.0)] * 6)
counts = st.builds(
    TokenCounts,
    input_tokens=st.integers(1, 10**9),
    cached_tokens=st.integers(1, 10**9),
    output_tokens=st.integers(1, 10**7),
)
users = st.dictionaries(st.sampled_from("abcdefgh"), counts, min_size=1, max_size=6)
