"""Names of files by a pattern that a data set brings, such as `data/file-{file_index:03d}.parquet`.

The pattern is a stranger's: it may not leave the data set, read attributes or ask for a huge text.
"""

import os
import re
from collections.abc import Mapping
from pathlib import Path
from string import Formatter

SPEC = re.compile(r"(0?\dd?)?")
"""Widths of numbers that a pattern may ask for."""
MOST_CHARACTERS = 1000


def file_of(folder: Path, where: str, pattern: object, values: Mapping[str, int | str]) -> Path:
    """Return the file that a pattern names, as an absolute path; it lies in the folder.

    Links are not resolved for that check: in the Hub's cache every file is a link.

    Args:
        folder: The data set.
        where: File and key of the pattern, for errors.
        pattern: What is written there.
        values: What it may contain.

    Raises:
        ValueError: it is no pattern of these values, or names a file elsewhere.
    """
    inside = Path(os.path.abspath(folder))
    if isinstance(pattern, str) and _is_plain(pattern, set(values)):
        file = Path(os.path.abspath(inside / pattern.format(**values)))
        if file.is_relative_to(inside):
            return file
    raise ValueError(
        f"{where} is {pattern!r:.200}, expected a name inside the data set made of "
        f"{', '.join(values)}; copy it again"
    )


def _is_plain(pattern: str, known: set[str]) -> bool:
    """Return whether a pattern has only these names in it, and plain widths."""
    try:
        fields = [field for field in Formatter().parse(pattern) if field[1] is not None]
    except ValueError:
        return False
    return (
        len(pattern) <= MOST_CHARACTERS
        and "\0" not in pattern
        and all(
            name in known and SPEC.fullmatch(spec or "") and not conversion
            for _, name, spec, conversion in fields
        )
    )
