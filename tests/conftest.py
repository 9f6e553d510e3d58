import os
import subprocess
import sys

import pytest
from hypothesis import settings

# No test is timed: a busy machine is no failure. The default run draws the same examples everywhere, so that what is
# green here is green there; new ones are sought by the runs of the mark `long` and with `--hypothesis-seed`.
settings.register_profile("same draws", deadline=None, derandomize=True)
settings.register_profile("new draws", deadline=None)

# Many tests start commands, each of which would compile all sources where an environment forbids to keep bytecode.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False


COMPILE = "from tokenfleet.simulator import warm_up; warm_up(lambda _: None)"


def pytest_configure(config):
    """Says which examples are drawn.

    And the kernel is compiled, where need be, while the workers read the tests: nobody has to wait for it.
    """
    seeks = config.option.markexpr == "long" or config.getoption("--hypothesis-seed") is not None
    settings.load_profile("new draws" if seeks else "same draws")
    if config.getoption("numprocesses", 0) and not hasattr(config, "workerinput"):
        config.add_cleanup(subprocess.Popen([sys.executable, "-c", COMPILE]).wait)


@pytest.fixture(scope="session", autouse=True)
def own_replay_cache(tmp_path_factory):
    """Plans of the tests read no record that somebody else kept, and leave none behind."""
    from tokenfleet.app import replay_cache

    folder = tmp_path_factory.mktemp("replays")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(replay_cache, "cache_folder", lambda: folder)
        yield
