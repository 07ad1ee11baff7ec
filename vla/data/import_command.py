"""`vla data import`: a data set of another format becomes a LeRobotDataset v3, safe to interrupt.

Episodes are read one by one into `OUT.parts`, each whole or absent, and joined at the end, so a
killed import goes on where it was. What a format is made of is said in `vla.data.importers`.
"""

import dataclasses
import fcntl
import json
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

import tyro

from vla import arguments, files
from vla.contracts import registry
from vla.data.bar import bar, stoppable
from vla.data.import_join import join
from vla.data.import_parts import EPISODE, Part, folder_of, read_part, write_part
from vla.data.info import DatasetInfo
from vla.data.reader import open_dataset
from vla.data.source import Source, Wanted, check_names
from vla.data.whole import leftovers
from vla.interrupted import Interrupted

FORMATS = "vla.data.importers"
LEAVE_OUT = "leave_out_damaged"
SHOWN = 5
"""How many of many sentences of one kind are printed."""


@dataclass(frozen=True, kw_only=True)
class ImportConfig(Wanted):
    """What to import, and to where."""

    source: tyro.conf.Positional[Path]
    """The data set: a folder of LeRobotDataset v2 or RLDS, an HDF5 file of robomimic's or a folder
    of them."""
    out: Path
    """Directory of the data set to write; unfinished parts are beside it in OUT.parts."""
    format: str = ""
    """A file name under vla/data/importers; recognised if not given."""
    leave_out_damaged: bool = False
    """Leave damaged episodes out and say which, instead of stopping at the first."""

    def __post_init__(self) -> None:
        """Refuse numbers out of range."""
        if self.fps is not None and self.fps < 1:
            raise ValueError(f"fps: got {self.fps}, expected at least 1")


def main(argv: list[str]) -> int:
    """Run `vla data import SOURCE --out DIR`; return the exit code."""
    config = arguments.read(ImportConfig, argv, "vla data import")
    info, told = import_set(config)
    for line in told:
        print(line)
    print(f"{info.num_episodes} episodes, {info.num_frames} frames in {info.path}")
    return 0


def import_set(config: ImportConfig) -> tuple[DatasetInfo, list[str]]:
    """Import what is missing and join it; return the data set and what a user has to know.

    Raises:
        ValueError: no such source, it is damaged, or `config.out` belongs to something else.
        Interrupted: Ctrl-C or SIGTERM; the episodes that were read are saved.
        OSError: the disk is full; what was read before is saved.
    """
    source = open_source(config)
    check_names(config.source, source.features)
    asked = _asked(config, source)
    parts = config.out.with_name(config.out.name + ".parts")
    if config.out.exists():
        _check_same(config.out, config.out / "meta/recording.json", "import", asked)
        shutil.rmtree(parts, ignore_errors=True)
        return open_dataset(config.out), [f"{config.out}: was complete already"]
    parts.mkdir(parents=True, exist_ok=True)
    with (parts / "lock").open("w") as lock:
        _claim(lock, config.out)
        if _saved(parts):
            # Parts saved without the option are whole, so it may be given with the next command.
            same = {name: value for name, value in asked.items() if name != LEAVE_OUT}
            _check_same(parts, parts / "import.json", "import", same)
        if not config.leave_out_damaged:
            _forget_left_out(parts)
        files.write_text(parts / "import.json", json.dumps({"import": asked}, indent=1))
        _clear_leftovers(config.out, parts)
        try:
            told = _read_and_join(config, source, asked, parts)
        finally:
            if config.out.exists() or not _saved(parts):
                shutil.rmtree(parts)
    return open_dataset(config.out), told


def _saved(parts: Path) -> int:
    """Return how many episodes were read."""
    return sum(1 for _ in parts.glob(f"episode-*/{EPISODE}"))


def _forget_left_out(parts: Path) -> None:
    """Delete the parts of episodes that were left out: they are to be whole now."""
    for said in parts.glob(f"episode-*/{EPISODE}"):
        if read_part(said.parent).left_out:
            shutil.rmtree(said.parent)


def open_source(config: ImportConfig) -> Source:
    """Recognise the source's format and describe it.

    Raises:
        ValueError: it is none that is known, is one already, or is damaged.
    """
    path, out = config.source, config.out
    if not path.exists():
        raise ValueError(f"{path}: does not exist; name a data set to import")
    if out.resolve() == path.resolve() or path.resolve() in out.resolve().parents:
        raise ValueError(f"{out}: lies in the source, which is never touched; choose another --out")
    if config.format:
        name = registry.check(FORMATS, config.format)
        if not registry.load(FORMATS, name).recognises(path):
            raise ValueError(f"{path}: is not of format {name!r}; leave --format out")
        return registry.load(FORMATS, name).open_source(path, config)
    for name in registry.names(FORMATS):
        importer = registry.load(FORMATS, name)
        if importer.recognises(path):
            return importer.open_source(path, config)
    if (path / "meta/info.json").is_file():
        open_dataset(path)  # says what is wrong with it
        raise ValueError(f"{path}: is a LeRobotDataset v3 already; use it as it is")
    known = ", ".join(registry.names(FORMATS))
    raise ValueError(
        f"{path}: of no format that is known ({known}); name the folder with meta/info.json or "
        "features.json, or the HDF5 file"
    )


def _asked(config: ImportConfig, source: Source) -> dict[str, Any]:
    """Return what decides the content of the data set, as JSON types."""
    wanted = {f.name: getattr(config, f.name) for f in dataclasses.fields(Wanted)}
    wanted = {k: list(v) if isinstance(v, tuple) else v for k, v in wanted.items()}
    return {
        "source": str(config.source.resolve()), "format": source.format, **wanted,
        "fps": source.fps, LEAVE_OUT: config.leave_out_damaged,
        "fingerprint": source.fingerprint,
    }  # fmt: skip


def _check_same(place: Path, file: Path, key: str, asked: Mapping[str, Any]) -> None:
    """Raise ValueError unless what `file` says was asked for is this."""
    try:
        found = json.loads(file.read_text())[key]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ValueError(
            f"{place}: is there and was not written by vla data import; choose another --out"
        ) from error
    for name, value in asked.items():
        if found.get(name) != value:
            what = "from a source that has changed since" if name == "fingerprint" else (
                f"with {name} {found.get(name)!r}, not {value!r}"
            )  # fmt: skip
            raise ValueError(f"{place}: was imported {what}; choose another --out, or delete it")


def _claim(lock: TextIO, out: Path) -> None:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)  # the system frees it when we are killed
    except BlockingIOError as error:
        raise ValueError(f"{out}: another process is importing it; wait, or stop it") from error


def _clear_leftovers(out: Path, parts: Path) -> None:
    """Delete what a kill left half-written; nobody else is importing."""
    for leftover in (*parts.glob(".episode-*.tmp"), *leftovers(out)):
        shutil.rmtree(leftover)


def _read_and_join(
    config: ImportConfig, source: Source, asked: dict[str, Any], parts: Path
) -> list[str]:
    count = len(source.names)
    folders = [folder_of(parts, number) for number in range(count)]
    missing = [n for n, folder in enumerate(folders) if not (folder / EPISODE).is_file()]
    try:
        with stoppable(), bar("episodes") as shown:
            line = shown.add_task("reading", total=count, completed=count - len(missing))
            for number in missing:
                write_part(source, number, folders[number], config.leave_out_damaged)
                shown.advance(line)
            found = [read_part(folder) for folder in folders]
            kept = [part for part in found if not part.left_out]
            if not kept:
                raise ValueError(f"{config.source}: every episode is damaged: {found[0].left_out}")
            recording = {"import": asked, "episodes": _origin(source, found)}
            line = shown.add_task("joining", total=len(kept))
            join(
                [p.folder for p in kept], config.out, source, recording, lambda: shown.advance(line)
            )
    except KeyboardInterrupt:
        raise Interrupted(f"{_saved(parts)} of {count} episodes are saved in {parts}") from None
    return [*source.told, *_told(source, found)]


def _origin(source: Source, parts: Sequence[Part]) -> list[str]:
    """Return what the source calls each episode of the new set."""
    return [name for name, part in zip(source.names, parts, strict=True) if not part.left_out]


def _told(source: Source, parts: Sequence[Part]) -> list[str]:
    """Return what became of videos and of damaged episodes."""
    kept = sum(path.parent != part.folder for part in parts for path in part.videos.values())
    anew = [why for part in parts for why in part.encoded.values()]
    lost = [part.left_out for part in parts if part.left_out]
    told = []
    if kept or anew:
        told.append(
            f"videos: {kept} kept as they are (joined without encoding), {len(anew)} encoded anew"
        )
    for what, lines in (("encoded anew", anew), ("left out", lost)):
        told += [f"{what}: {line}" for line in lines[:SHOWN]]
        if len(lines) > SHOWN:
            told.append(f"{what}: {len(lines) - SHOWN} more")
    return told
