"""The report: a plan, a profile, a simulation or the sizes of pools, as one HTML file read from top to bottom.

Owns the pages: what they say, in which order, and how they look. Promises: one file, no request to
anywhere, light and dark, on paper and on a phone; the key numbers stand in tables, so the page answers without
JavaScript; nothing that a person named reaches the page unescaped; equal input gives equal bytes. Must not
compute what another room owns: it formats, bins and draws.
"""

from tokenfleet.app.report.render import (
    render_pools,
    render_profile,
    render_report,
    render_scaled_pools,
    render_scaling,
    render_sizes,
    render_timeline,
    write_report,
)

__all__ = [
    "render_pools",
    "render_profile",
    "render_report",
    "render_scaled_pools",
    "render_scaling",
    "render_sizes",
    "render_timeline",
    "write_report",
]
