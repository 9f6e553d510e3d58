"""Where a problem stands in a scenario file that a replay finds in the fleet made from it."""

import pytest

from tokenfleet.app.scenario import lines_of, placed
from tokenfleet.domain.errors import BadInput

FILE = """\
name: places
engine: {name: vllm, long_prefill_tokens: 2}
groups:
  near: {gpu: h100_sxm}
  far: {gpu: l40s, engine: sglang, max_batched_tokens: 64}
pools:
  small: {engine: sglang}
  main:
    prefill: {replicas: 1}
    decode: {engine: trtllm}
"""


@pytest.mark.parametrize(
    ("found", "place"),
    [
        ("fleet.groups[0].engine.long_prefill_tokens", "2: engine.long_prefill_tokens: odd (groups.near)"),
        ("fleet.groups[1].engine.long_prefill_tokens", "2: engine.long_prefill_tokens: odd (groups.far)"),
        ("fleet.groups[1].engine.max_batched_tokens", "5: groups.far.max_batched_tokens: odd"),
        ("fleet.groups[1].engine", "5: groups.far.engine: odd"),
        ("small: fleet.groups[0].engine.long_prefill_tokens", "2: engine.long_prefill_tokens: odd (pools.small)"),
        ("small: fleet.groups[0].engine", "7: pools.small.engine: odd"),
        ("main-decode: fleet.groups[0].engine", "10: pools.main.decode.engine: odd"),
        ("main-prefill: fleet.groups[0].engine", "2: engine: odd (pools.main.prefill)"),
        ("pools.small", "7: pools.small: odd"),
        ("groups.far", "5: groups.far: odd"),
        ("pools.main.decode", "10: pools.main.decode: odd"),
    ],
)
def test_it_names_line_and_key_and_whose_it_is(tmp_path, found, place) -> None:
    path = tmp_path / "places.yaml"
    path.write_text(FILE)
    with pytest.raises(BadInput) as caught, placed(lines_of(path)):
        raise BadInput.at(found, "odd", "mend it")
    (problem,) = caught.value.problems
    assert f"{problem.where}: {problem.what}" == f"{path}:{place}"
