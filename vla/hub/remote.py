"""Transfers with the Hub through its client: one commit up, complete folders down."""

import contextlib
import errno
import hashlib
import os
import shutil
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

README = "README.md"
ADVICE = {"401": "sign in with `hf auth login`", "403": "sign in with a token that may write there"}
"""Advice by HTTP status."""


def check_online() -> None:
    """Raise ValueError if the environment forbids to contact the Hub."""
    from huggingface_hub import constants

    if constants.HF_HUB_OFFLINE:
        raise ValueError(
            "HF_HUB_OFFLINE (or TRANSFORMERS_OFFLINE) is set, so the Hub is not contacted; unset "
            "it, or put HF_HUB_OFFLINE=0 before this command"
        )


def push(
    name: str, files: Sequence[Path], card: str, *, private: bool, revision: str | None
) -> str:
    """Upload files and a card in one commit and return its URL.

    Args:
        name: OWNER/NAME; created if there is no such model.
        files: Files to upload under their names.
        card: The text of README.md.
        private: Create the model as private.
        revision: Branch to commit to, created from main if there is none; main if None.

    Raises:
        ValueError: the Hub refuses or cannot be reached; nothing was uploaded.
    """
    from huggingface_hub import CommitOperationAdd, HfApi

    check_online()
    with _one_sentence_errors(name, "nothing was committed"):
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
        folder: Folder to create.
        revision: Branch, tag or commit; the main branch if None.

    Raises:
        ValueError: there is no such model, it lacks a file, or the download is incomplete.
    """
    from huggingface_hub import HfApi

    check_online()
    with _one_sentence_errors(
        name if revision is None else f"{name}@{revision}", "nothing was written"
    ):
        api = HfApi(library_name="mneme-vla")
        info = api.model_info(name, revision=revision, files_metadata=True)
        there = {file.rfilename: file for file in info.siblings or ()}
        missing = [file for file in wanted if file not in there]
        if missing:
            raise ValueError(
                f"{name}: is no policy of mneme-vla, it lacks {', '.join(missing)} (it has "
                f"{', '.join(sorted(there)[:8]) or 'nothing'}); name another"
            )
        for file in [*wanted, *({README} & set(there))]:
            api.hf_hub_download(name, file, revision=info.sha, local_dir=folder)
            lfs = there[file].lfs
            if lfs is not None and _sha256(folder / file) != lfs.sha256:
                raise ValueError(f"{name}: {file} is damaged after the download; pull it again")
    shutil.rmtree(folder / ".cache", ignore_errors=True)  # metadata of the client
    return str(info.sha)


@contextlib.contextmanager
def _one_sentence_errors(name: str, outcome: str) -> Iterator[None]:
    """Turn errors of the client into ValueErrors of one sentence."""
    from huggingface_hub import constants, errors

    endpoint = constants.ENDPOINT
    try:
        yield
    except (errors.RepositoryNotFoundError, errors.GatedRepoError) as error:
        raise ValueError(
            f"{name}: the Hub at {endpoint} has no such model or it is private ({_status(error)}); "
            f"check the name, and sign in with `hf auth login` if it is private; {outcome}"
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
    except _transfer_errors() as error:
        if os.strerror(errno.ENOSPC) in str(error):
            raise  # full disk: the command reports it
        print(file=sys.stderr)  # end the line of the client's progress bar
        raise ValueError(f"{name}: {_why(error, endpoint)}; {outcome}") from error


def _transfer_errors() -> tuple[type[Exception], ...]:
    """Return what the client raises where a transfer breaks off."""
    kinds: list[type[Exception]] = [OSError, RuntimeError]  # it wraps errors of its threads
    with contextlib.suppress(ImportError):  # from huggingface_hub 1 on
        import httpx

        kinds.append(httpx.HTTPError)
    return tuple(kinds)


def _why(error: Exception, endpoint: str) -> str:
    """Return what failed and what to do."""
    status = _status(error)
    if status is None:
        cause = " ".join(str(error.__cause__ or error).split())[:200]
        return f"the transfer with {endpoint} broke off ({cause}); run the same command again"
    return f"the Hub at {endpoint} answers {status}; {ADVICE.get(status, 'try again later')}"


def _status(error: BaseException) -> str | None:
    """Return the HTTP status of an error, None if there was no response."""
    for cause in (error, error.__cause__):
        response = getattr(cause, "response", None)
        if response is not None:
            return str(response.status_code)
    return None


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
