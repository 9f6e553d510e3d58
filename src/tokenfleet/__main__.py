"""``python -m tokenfleet`` is the command ``tokenfleet``."""

from tokenfleet.app.cli import main

main()
