"""What a verb raises that was stopped: `vla.cli` turns it into a sentence and an exit code."""


class Interrupted(Exception):
    """Ctrl-C or SIGTERM; what it says is saved, and the same command goes on from there."""
