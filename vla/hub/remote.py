"""The Hub itself, through its own client: one commit up, whole folders down; knows no policies."""

import contextlib
import errno
import hashlib
import os
import shutil
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

README = "README.md"
ADVICE = {
    "401": "sign in with `hf auth login`",
    "403": "sign in with a token that may write there",
}
"""What to do about an answer's status."""


def check_online() -> None:
    """Raise ValueError where the user has forbidden to contact the Hub."""
    from huggingface_hub import constants

    if constants.HF_HUB_OFFLINE:
        raise ValueError(
            "HF_HUB_OFFLINE (or TRANSFORMERS_OFFLINE) is set, so the Hub is not contacted; unset "
            "it, or put HF_HUB_OFFLINE=0 before this command"
        )


def push(
    name: str, files: Sequence[Path], card: str, *, private: bool, revision: str | None
) -> str:
    """Upload files and a card in one commit, and return its address.

    Args:
        name: OWNER/NAME; made if there is no such model.
        files: What to upload, each under its own name.
        card: The text of README.md.
        private: If the model is made, nobody else sees it.
        revision: Branch to commit to, made from the main one if there is none; main if None.

    Raises:
        ValueError: the Hub refuses, or cannot be reached; then nothing of it is there.
    """
    from huggingface_hub import CommitOperationAdd, HfApi

    check_online()
    with _told(name, "nothing was committed"):
        api = HfApi(library_name="mneme-vla")
        api.create_repo(name, private=private, exist_ok=True)
        if revision:
            api.create_branch(name, branch=revision, exist_ok=True)
        added = [CommitOperationAdd(path.name, path) for path in files]
        added.append(CommitOperationAdd(README, card.encode()))
        done = api.create_commit(
            name, added, commit_message="Upload a policy and its card", revision=revision
        )
        return str(done.commit_url)


def pull(name: str, wanted: Sequence[str], folder: Path, *, revision: str | None) -> str:
    """Download files of a model into a new folder, and return the commit's hash.

    Args:
        name: OWNER/NAME.
        wanted: Files that must be there; the card comes as well, if there is one.
        folder: Must not exist; made by this.
        revision: Branch, tag or commit; the main branch if None.

    Raises:
        ValueError: there is no such model, it lacks a file, or not everything arrived.
    """
    from huggingface_hub import HfApi

    check_online()
    with _told(name if revision is None else f"{name}@{revision}", "nothing was written"):
        api = HfApi(library_name="mneme-vla")
        info = api.model_info(name, revision=revision, files_metadata=True)
        there = {one.rfilename: one for one in info.siblings or ()}
        missing = [file for file in wanted if file not in there]
        if missing:
            raise ValueError(
                f"{name}: is no policy of ours, it lacks {', '.join(missing)} (it has "
                f"{', '.join(sorted(there)[:8]) or 'nothing'}); name another"
            )
        for file in [*wanted, *({README} & set(there))]:
            api.hf_hub_download(name, file, revision=info.sha, local_dir=folder)
            lfs = there[file].lfs
            if lfs is not None and _sha256(folder / file) != lfs.sha256:
                raise ValueError(f"{name}: {file} arrived damaged; pull it again")
    shutil.rmtree(folder / ".cache", ignore_errors=True)  # the client's notes of its downloads
    return str(info.sha)


@contextlib.contextmanager
def _told(name: str, outcome: str) -> Iterator[None]:
    """Turn what the client raises into one sentence."""
    from huggingface_hub import constants, errors

    at = constants.ENDPOINT
    try:
        yield
    except (errors.RepositoryNotFoundError, errors.GatedRepoError) as error:
        raise ValueError(
            f"{name}: the Hub at {at} has no such model, or not for you ({_status(error)}); check "
            f"the name, and sign in with `hf auth login` if it is private; {outcome}"
        ) from error
    except errors.RevisionNotFoundError as error:
        raise ValueError(
            f"{name}: the model has no such revision; name a branch, a tag or a commit that its "
            f"page on the Hub lists; {outcome}"
        ) from error
    except errors.LocalTokenNotFoundError as error:
        raise ValueError(
            f"{name}: nobody is signed in; run `hf auth login` first; {outcome}"
        ) from error
    except (OSError, RuntimeError) as error:  # of its threads it wraps what failed
        if os.strerror(errno.ENOSPC) in str(error):
            raise  # a full disk: the command says so itself
        print(file=sys.stderr)  # its progress bar has not ended its line
        raise ValueError(f"{name}: {_why(error, at)}; {outcome}") from error


def _why(error: Exception, at: str) -> str:
    """Return what was refused or broke off, and what to do."""
    status = _status(error)
    if status is None:
        cause = " ".join(str(error.__cause__ or error).split())[:200]
        return f"the transfer with {at} broke off ({cause}); run the same command again"
    return f"the Hub at {at} answers {status}; {ADVICE.get(status, 'try again later')}"


def _status(error: BaseException) -> str | None:
    """Return the status of the answer that an error tells of, if there was one."""
    for one in (error, error.__cause__):
        response = getattr(one, "response", None)
        if response is not None:
            return str(response.status_code)
    return None


def _sha256(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(2**20):
            digest.update(chunk)
    return digest.hexdigest()
