"""Reads the tokenizer of a policy, which strangers may have made; writes it."""

from pathlib import Path

from tokenizers import Tokenizer


def load(path: Path, advice: str) -> Tokenizer:
    """Return the tokenizer in a file.

    Args:
        path: A `tokenizer.json` of Hugging Face's tokenizers.
        advice: What to do if it is damaged; ends the error's sentence.

    Raises:
        ValueError: it is damaged.
    """
    try:
        return Tokenizer.from_file(str(path))
    except (KeyboardInterrupt, SystemExit):
        raise
    # The library raises bare Exception for a damaged file; its Rust code may panic, which is none.
    except BaseException as error:
        raise ValueError(f"{path}: damaged tokenizer ({error}); {advice}") from error


def save(tokenizer: Tokenizer, path: Path) -> None:
    """Write a tokenizer; `Tokenizer.save` raises bare Exception where this raises OSError."""
    path.write_text(tokenizer.to_str(pretty=True))
