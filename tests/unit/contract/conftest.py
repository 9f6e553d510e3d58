from unit.planner.conftest import toy_world

__all__ = ["toy_world"]
