"""`vla data import`: converts a data set of another format to a LeRobotDataset v3; resumable.

Episodes are written atomically one by one into `OUT.parts` and joined at the end. The formats are
in `vla.data.importers`.
"""

import dataclasses
import json
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tyro

from vla.contracts import registry
from vla.data.import_parts import EPISODE, Part, join, part_folder, read_part, write_part
from vla.data.info import RECORDING_FILE, DatasetInfo
from vla.data.progress_bar import bar, sigterm_as_interrupt
from vla.data.reader import open_dataset
from vla.data.source import ImportOptions, Source, check_names, check_sizes
from vla.utils import arguments, files
from vla.utils.interrupted import Interrupted

FORMATS = "vla.data.importers"
LEAVE_OUT = "leave_out_damaged"
SHOWN = 5
"""Printed messages per kind."""


@dataclass(frozen=True, kw_only=True)
class ImportConfig(ImportOptions):
    """Settings of an import."""

    source: tyro.conf.Positional[Path]
    """The data set: a folder of LeRobotDataset v2 or RLDS, a robomimic HDF5 file or a folder of
    such files."""
    out: Path
    """Directory of the data set to write; unfinished parts are kept in OUT.parts."""
    format: str = ""
    """File name under vla/data/importers; detected if not given."""
    leave_out_damaged: bool = False
    """Leave damaged episodes out and report them, instead of stopping at the first."""

    def __post_init__(self) -> None:
        if self.fps is not None and self.fps < 1:
            raise ValueError(f"fps: got {self.fps}, expected at least 1")


def main(argv: list[str]) -> int:
    """Run `vla data import SOURCE --out DIR`; return the exit code."""
    config = arguments.read(ImportConfig, argv, "vla data import")
    info, notes = import_dataset(config)
    for line in notes:
        print(line)
    print(f"{info.num_episodes} episodes, {info.num_frames} frames in {info.path}")
    return 0


def import_dataset(config: ImportConfig) -> tuple[DatasetInfo, list[str]]:
    """Import the missing episodes and join all; return the data set and notes for the user.

    Raises:
        ValueError: the source is missing or damaged, or `config.out` holds something else.
        Interrupted: Ctrl-C or SIGTERM; finished episodes are saved.
        OSError: the disk is full; finished episodes are saved.
    """
    source = open_source(config)
    check_names(config.source, source.features)
    check_sizes(config.source, source.features)
    settings = _settings(config, source)
    parts = config.out.with_name(config.out.name + ".parts")
    with files.claim(config.out):
        if config.out.exists():
            _check_same(config.out, config.out / RECORDING_FILE, settings)
            shutil.rmtree(parts, ignore_errors=True)
            return open_dataset(config.out), [f"{config.out}: was complete already"]
        parts.mkdir(exist_ok=True)
        if _saved(parts):
            # Parts saved without this option are complete, so a later command may add it.
            same = {name: value for name, value in settings.items() if name != LEAVE_OUT}
            _check_same(parts, parts / "import.json", same)
        if not config.leave_out_damaged:  # what was left out is read again
            for file in parts.glob(f"episode-*/{EPISODE}"):
                if read_part(file.parent).left_out:
                    shutil.rmtree(file.parent)
        files.write_text(parts / "import.json", json.dumps({"import": settings}, indent=1))
        for leftover in parts.glob(".episode-*.tmp"):
            shutil.rmtree(leftover)
        try:
            notes = _read_and_join(config, source, settings, parts)
        finally:
            if config.out.exists() or not _saved(parts):
                shutil.rmtree(parts)
    return open_dataset(config.out), notes


def _saved(parts: Path) -> int:
    """Return the number of saved episodes."""
    return sum(1 for _ in parts.glob(f"episode-*/{EPISODE}"))


def open_source(config: ImportConfig) -> Source:
    """Detect the format of the source and describe it.

    Raises:
        ValueError: the format is unknown, it is a LeRobotDataset v3 already, or it is damaged.
    """
    path, out = config.source, config.out
    if not path.exists():
        raise ValueError(f"{path}: does not exist; name a data set to import")
    if out.resolve() == path.resolve() or path.resolve() in out.resolve().parents:
        raise ValueError(f"{out}: lies in the source, which is never touched; choose another --out")
    if config.format:
        importer = registry.load(FORMATS, config.format)
        if not importer.recognizes(path):
            raise ValueError(f"{path}: is not of format {config.format!r}; leave --format out")
        with files.parsing(path):
            return importer.open_source(path, config)
    for name in registry.names(FORMATS):
        importer = registry.load(FORMATS, name)
        if importer.recognizes(path):
            with files.parsing(path):
                return importer.open_source(path, config)
    if (path / "meta/info.json").is_file():
        open_dataset(path)  # reports damage
        raise ValueError(f"{path}: is a LeRobotDataset v3 already; use it as it is")
    formats = ", ".join(registry.names(FORMATS))
    raise ValueError(
        f"{path}: unknown format, expected one of {formats}; name the folder with meta/info.json "
        "or features.json, or the HDF5 file"
    )


def _settings(config: ImportConfig, source: Source) -> dict[str, Any]:
    """Return the settings that determine the content of the data set, as JSON types."""
    options = {f.name: getattr(config, f.name) for f in dataclasses.fields(ImportOptions)}
    options = {k: list(v) if isinstance(v, tuple) else v for k, v in options.items()}
    return {
        "source": str(config.source.resolve()), "format": source.format, **options,
        "fps": source.fps, LEAVE_OUT: config.leave_out_damaged,
        "fingerprint": source.fingerprint,
    }  # fmt: skip


def _check_same(place: Path, file: Path, settings: Mapping[str, Any]) -> None:
    """Raise ValueError unless `file` holds these settings."""
    try:
        stored = json.loads(file.read_text())["import"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ValueError(
            f"{place}: exists and was not written by vla data import; choose another --out"
        ) from error
    for name, value in settings.items():
        if stored.get(name) != value:
            what = "from a source that has changed since" if name == "fingerprint" else (
                f"with {name} {stored.get(name)!r}, not {value!r}"
            )  # fmt: skip
            raise ValueError(f"{place}: was imported {what}; choose another --out, or delete it")


def _read_and_join(
    config: ImportConfig, source: Source, settings: dict[str, Any], parts: Path
) -> list[str]:
    count = len(source.names)
    folders = [part_folder(parts, number) for number in range(count)]
    missing = [n for n, folder in enumerate(folders) if not (folder / EPISODE).is_file()]
    try:
        with sigterm_as_interrupt(), bar("episodes") as shown:
            line = shown.add_task("reading", total=count, completed=count - len(missing))
            for number in missing:
                _write_named(config, source, number, folders[number])
                shown.advance(line)
            read = [read_part(folder) for folder in folders]
            complete = [part for part in read if not part.left_out]
            if not complete:
                raise ValueError(f"{config.source}: every episode is damaged: {read[0].left_out}")
            names = [n for n, part in zip(source.names, read, strict=True) if not part.left_out]
            recording = {"import": settings, "episodes": names}
            line = shown.add_task("joining", total=len(complete))
            join(
                [p.folder for p in complete], config.out, source, recording,
                lambda: shown.advance(line),
            )  # fmt: skip
    except KeyboardInterrupt:
        raise Interrupted(f"{_saved(parts)} of {count} episodes are saved in {parts}") from None
    return [*source.notes, *_notes(read)]


def _write_named(config: ImportConfig, source: Source, number: int, folder: Path) -> None:
    """Write a part; an error names the source."""
    try:
        write_part(source, number, folder, config.leave_out_damaged)
    except ValueError as error:
        if str(config.source) in str(error):
            raise
        raise ValueError(f"{config.source}: {error}") from error


def _notes(parts: Sequence[Part]) -> list[str]:
    """Return notes on videos and on damaged episodes."""
    joined = sum(path.parent != part.folder for part in parts for path in part.videos.values())
    encoded = [why for part in parts for why in part.encoded.values()]
    lost = [part.left_out for part in parts if part.left_out]
    notes = []
    if joined or encoded:
        notes.append(f"videos: {joined} joined without encoding, {len(encoded)} encoded again")
    for what, lines in (("encoded again", encoded), ("left out", lost)):
        notes += [f"{what}: {line}" for line in lines[:SHOWN]]
        if len(lines) > SHOWN:
            notes.append(f"{what}: {len(lines) - SHOWN} more")
    return notes
