"""Error of a stopped verb: `vla.cli` turns it into a sentence and an exit code."""


class Interrupted(Exception):
    """Ctrl-C or SIGTERM after progress was saved; the same command resumes."""
