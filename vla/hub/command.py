"""`vla hub`: uploads a policy with its model card to the Hub, or downloads one."""

import shutil
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from vla import checkpoint
from vla.hub import card, facts, remote
from vla.utils import arguments, files, hub_name

TRAINER = ("trainer.json", "trainer.safetensors")
"""Files of a checkpoint in addition to `checkpoint.FILES`, needed to resume training."""


@dataclass(frozen=True, kw_only=True)
class RunArgs:
    """A run and what its model card says of it."""

    run: Annotated[Path, tyro.conf.Positional]
    """Run of `vla train`, `vla train rl` or `vla train distill`, or a checkpoint in it."""
    license: str | None = None
    """License of the weights, as the Hub names it; by default that of the pretrained weights."""
    dataset: Path | None = None
    """Training data set; by default data-RUN next to the run, if it exists."""
    datasets: tuple[str, ...] = ()
    """Names of the training data on the Hub."""


@dataclass(frozen=True, kw_only=True)
class CardArgs(RunArgs):
    """Write the model card of a run."""

    out: Path = Path("README.md")
    """File to write; must not exist."""
    name: str = ""
    """Name on the Hub, OWNER/NAME, for the commands in the card."""


@dataclass(frozen=True, kw_only=True)
class PushArgs(RunArgs):
    """Upload a policy and its card."""

    name: Annotated[str, tyro.conf.Positional]
    """OWNER/NAME; created if there is no such model."""
    private: bool = False
    """Create the model as private."""
    revision: str | None = None
    """Branch to commit to, created if there is none; main if not given."""
    yes: bool = False
    """Upload without asking for confirmation."""
    trainer: bool = False
    """Upload the trainer state too, which is needed to resume training."""


@dataclass(frozen=True, kw_only=True)
class PullArgs:
    """Download a policy."""

    name: Annotated[str, tyro.conf.Positional]
    """OWNER/NAME, or OWNER/NAME@REVISION."""
    out: Path
    """Folder to write; must not exist."""


def write_card(argv: list[str]) -> int:
    """Run `vla hub card`; return the exit code.

    Raises:
        ValueError: there is no run, it is damaged, or the license is unknown.
    """
    args = arguments.read(CardArgs, argv, "vla hub card")
    _check_free(args.out)
    if args.name:
        hub_name.check(args.name)
    text = _card(args, facts.read(args.run, args.dataset))
    args.out.parent.mkdir(parents=True, exist_ok=True)
    files.write_text(args.out, text)
    print(f"card: {args.out}")
    return 0


def push(argv: list[str]) -> int:
    """Run `vla hub push`; return the exit code.

    Raises:
        ValueError: there is no run, the license is unknown, the user did not confirm, or the Hub
            refuses.
    """
    args = arguments.read(PushArgs, argv, "vla hub push")
    hub_name.check(args.name)
    run = facts.read(args.run, args.dataset)
    text = _card(args, run)
    remote.check_online()
    wanted = [*checkpoint.FILES, *(TRAINER if args.trainer else ())]
    files = [run.folder / name for name in wanted]
    missing = [path.name for path in files if not path.is_file()]
    if missing:
        raise ValueError(f"{run.folder}: has no {', '.join(missing)}; leave --trainer out")
    for line in plan(args, run, files, text):
        print(line)
    _confirm(args.yes)
    print(remote.push(args.name, files, text, private=args.private, revision=args.revision))
    return 0


def pull(argv: list[str]) -> int:
    """Run `vla hub pull`; return the exit code.

    Raises:
        ValueError: there is no such policy, it is damaged, or the download is incomplete.
    """
    args = arguments.read(PullArgs, argv, "vla hub pull")
    name, revision = hub_name.split(args.name)
    out = args.out
    with files.claim(out):
        if not out.exists():
            checkpoint.recover_folder(out)  # restores a folder whose replacement was killed
        _check_free(out)
        remote.check_online()
        out.parent.mkdir(parents=True, exist_ok=True)
        download = out.with_name(f".{out.name}.new-pull")
        try:
            commit = remote.pull(name, checkpoint.FILES, download, revision=revision)
            policy, _ = checkpoint.load(download)
            _check_free(out)  # never delete what appeared in the meantime
            files.flush(download)
            download.rename(out)
        finally:
            shutil.rmtree(download, ignore_errors=True)
    count = sum(p.numel() for p in policy.parameters())
    print(f"{out}: {name} at {commit}, {count:,} parameters for {policy.robot.name}")
    return 0


def plan(args: PushArgs, run: facts.Facts, files: list[Path], text: str) -> list[str]:
    """Return one line for each file to upload, and notes."""
    visibility = "private, if it is new" if args.private else "public, if it is new"
    sizes = {path.name: path.stat().st_size for path in files} | {"README.md": len(text.encode())}
    return [
        f"to {args.name}, branch {args.revision or 'main'} ({visibility}):",
        *(f"  {size:>13,} bytes  {name}" for name, size in sizes.items()),
        f"  {sum(sizes.values()):>13,} bytes in all",
        *(f"note: {sentence}" for sentence in run.left_out),
        *(f"note: policy.json names {place}, visible to everybody who can read it"
          for place in run.places),
    ]  # fmt: skip


def _card(args: CardArgs | PushArgs, run: facts.Facts) -> str:
    for name in args.datasets:
        hub_name.check(name)
    license_name = card.choose_license(run, args.license)
    return card.write(run, name=args.name, license_name=license_name, datasets=args.datasets)


def _check_free(out: Path) -> None:
    if out.exists():
        raise ValueError(f"{out} exists; choose another --out, or delete it")


def _confirm(yes: bool) -> None:
    """Raise ValueError unless the user confirms."""
    if yes:
        return
    if not sys.stdin.isatty():
        raise ValueError("nothing was uploaded: add --yes to upload what is listed")
    if input("upload? [y/N] ").strip().lower() not in ("y", "yes"):
        raise ValueError("nothing was uploaded: not confirmed")
