"""Names of models on the Hub, OWNER/NAME; needs no network."""

import re
from pathlib import Path

PATTERN = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
LONGEST = 96


def check(name: str) -> str:
    """Return a valid name of a model, or raise ValueError."""
    wrong = "--" in name or ".." in name or name.endswith((".", "-", ".git"))
    if not PATTERN.fullmatch(name) or len(name) > LONGEST or wrong:
        raise ValueError(
            f"got {name!r}, expected OWNER/NAME of letters, digits and single - _ . between them, "
            f"{LONGEST} at most, such as me/reach"
        )
    return name


def split(name: str) -> tuple[str, str | None]:
    """Return the name and the revision of OWNER/NAME or OWNER/NAME@REVISION.

    Raises:
        ValueError: it is neither.
    """
    model, mark, revision = name.partition("@")
    if mark and not re.fullmatch(r"[\w./-]+", revision):
        raise ValueError(f"got revision {revision!r}, expected a branch, a tag or a commit's hash")
    return check(model), revision or None


def hint(folder: Path) -> str:
    """Return what to add to "there is no such folder" where a name of the Hub may be meant."""
    looks = PATTERN.fullmatch(str(folder)) and not folder.exists() and not folder.parent.exists()
    return f"; if it is a model on the Hub: `vla hub pull {folder} --out DIR` first" * bool(looks)
