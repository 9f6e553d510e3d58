"""Commands run as a person runs them."""

import pytest

from tokenfleet.app.cli import main


def ended(capsys, *arguments):
    """Exit code, output and messages of one command."""
    with pytest.raises(SystemExit) as stopped:
        main([str(argument) for argument in arguments])
    out, err = capsys.readouterr()
    return stopped.value.code, out, err
