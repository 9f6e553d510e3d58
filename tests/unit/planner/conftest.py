import pytest

from tokenfleet import performance, simulator, workload
from unit.planner import toy


@pytest.fixture
def toy_world(monkeypatch):
    """The rooms below, replaced by a queue that fits in one head."""
    monkeypatch.setattr(simulator, "replay", toy.replay, raising=False)
    monkeypatch.setattr(workload, "grow", toy.grow, raising=False)
    monkeypatch.setattr(workload, "Grower", toy.Grower, raising=False)
    monkeypatch.setattr(workload, "peak_window", toy.peak_window, raising=False)
    monkeypatch.setattr(performance, "scaled", toy.scaled, raising=False)
    monkeypatch.setattr(performance, "step_shares", toy.step_shares, raising=False)
