"""`vla hub`: a policy and its model card go to the Hub and come from it, when a user says so."""

import shutil
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from vla import arguments, checkpoint, files
from vla.hub import card, facts, names, remote

TRAINER = ("trainer.json", "trainer.safetensors")
"""What a checkpoint has beside `checkpoint.FILES`, to go on with training."""


@dataclass(frozen=True, kw_only=True)
class CardArgs:
    """Write the model card of a run."""

    run: Annotated[Path, tyro.conf.Positional]
    """What `vla train`, `vla train rl` or `vla train distill` wrote, or a checkpoint in it."""
    out: Path = Path("README.md")
    """File to write; not one that is there."""
    name: str = ""
    """Its name on the Hub, OWNER/NAME, for the commands in the card."""
    licence: str | None = None
    """Of the weights, as the Hub calls it; by default that of the pretrained weights."""
    data: Path | None = None
    """Data set it was cloned from; data-RUN beside the run if that is there."""
    datasets: tuple[str, ...] = ()
    """Names of that data on the Hub."""


@dataclass(frozen=True, kw_only=True)
class PushArgs:
    """Upload a policy and its card."""

    run: Annotated[Path, tyro.conf.Positional]
    """What `vla train`, `vla train rl` or `vla train distill` wrote, or a checkpoint in it."""
    name: Annotated[str, tyro.conf.Positional]
    """OWNER/NAME; made if there is no such model."""
    private: bool = False
    """If the model is made, nobody else sees it."""
    revision: str | None = None
    """Branch to commit to, made if there is none; main if not given."""
    yes: bool = False
    """Do not ask."""
    trainer: bool = False
    """Upload what is needed to go on with training, too."""
    licence: str | None = None
    """Of the weights, as the Hub calls it; by default that of the pretrained weights."""
    data: Path | None = None
    """Data set it was cloned from; data-RUN beside the run if that is there."""
    datasets: tuple[str, ...] = ()
    """Names of that data on the Hub."""


@dataclass(frozen=True, kw_only=True)
class PullArgs:
    """Download a policy."""

    name: Annotated[str, tyro.conf.Positional]
    """OWNER/NAME, or OWNER/NAME@REVISION."""
    out: Path
    """Folder to write; must not be there."""


def write_card(argv: list[str]) -> int:
    """Run `vla hub card`; return the exit code.

    Raises:
        ValueError: there is no run, it is damaged, or nothing tells the licence.
    """
    args = arguments.read(CardArgs, argv, "vla hub card")
    if args.out.exists():
        raise ValueError(f"{args.out} is there already; choose another --out, or delete it")
    if args.name:
        names.check(args.name)
    text = _card(args, facts.read(args.run, args.data))
    args.out.parent.mkdir(parents=True, exist_ok=True)
    files.write_text(args.out, text)
    print(f"card: {args.out}")
    return 0


def push(argv: list[str]) -> int:
    """Run `vla hub push`; return the exit code.

    Raises:
        ValueError: there is no run, the licence is unknown, nobody agreed, or the Hub refuses.
    """
    args = arguments.read(PushArgs, argv, "vla hub push")
    names.check(args.name)
    found = facts.read(args.run, args.data)
    text = _card(args, found)
    remote.check_online()
    wanted = [*checkpoint.FILES, *(TRAINER if args.trainer else ())]
    files = [found.folder / name for name in wanted]
    missing = [path.name for path in files if not path.is_file()]
    if missing:
        raise ValueError(f"{found.folder}: has no {', '.join(missing)}; leave --trainer out")
    for line in plan(args, found, files, text):
        print(line)
    _agree(args.yes)
    print(remote.push(args.name, files, text, private=args.private, revision=args.revision))
    return 0


def pull(argv: list[str]) -> int:
    """Run `vla hub pull`; return the exit code.

    Raises:
        ValueError: there is no such policy, it is damaged, or it did not arrive whole.
    """
    args = arguments.read(PullArgs, argv, "vla hub pull")
    name, revision = names.split(args.name)
    out = args.out
    if not out.exists():
        checkpoint.recover_folder(out)  # may bring back one whose replacement was killed
    _check_free(out)
    remote.check_online()
    out.parent.mkdir(parents=True, exist_ok=True)
    fresh = out.with_name(f".{out.name}.new-pull")
    try:
        commit = remote.pull(name, checkpoint.FILES, fresh, revision=revision)
        policy, _ = checkpoint.load(fresh)
        _check_free(out)  # what appeared in the meantime is not ours to delete
        checkpoint.flush(fresh)
        fresh.rename(out)
    finally:
        shutil.rmtree(fresh, ignore_errors=True)
    count = sum(p.numel() for p in policy.parameters())
    print(f"{out}: {name} at {commit}, {count:,} parameters for {policy.robot.name}")
    return 0


def plan(args: PushArgs, found: facts.Facts, files: list[Path], text: str) -> list[str]:
    """Return what is about to be uploaded, a line each."""
    who = "private, if it is new" if args.private else "public, if it is new"
    sizes = {path.name: path.stat().st_size for path in files} | {"README.md": len(text.encode())}
    return [
        f"to {args.name}, branch {args.revision or 'main'} ({who}):",
        *(f"  {size:>13,} bytes  {name}" for name, size in sizes.items()),
        f"  {sum(sizes.values()):>13,} bytes in all",
        *(f"note: {sentence}" for sentence in found.left_out),
        *(f"note: policy.json names {place}; all who may read it see that"
          for place in found.places),
    ]  # fmt: skip


def _card(args: CardArgs | PushArgs, found: facts.Facts) -> str:
    for one in args.datasets:
        names.check(one)
    licence = card.licence(found, args.licence)
    return card.write(found, name=args.name, licence=licence, datasets=args.datasets)


def _check_free(out: Path) -> None:
    if out.exists():
        raise ValueError(f"{out} is there already; choose another --out, or delete it")


def _agree(yes: bool) -> None:
    """Raise ValueError unless the user wants it."""
    if yes:
        return
    if not sys.stdin.isatty():
        raise ValueError("nothing was uploaded: add --yes to upload what is listed")
    if input("upload? [y/N] ").strip().lower() not in ("y", "yes"):
        raise ValueError("nothing was uploaded, as you said")
