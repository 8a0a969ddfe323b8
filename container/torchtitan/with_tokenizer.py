"""python with_tokenizer.py ORG/MODEL --revision COMMIT --directory DIR -- PROGRAM [WORD...]

Fetches the tokenizer of a model from the Hugging Face hub, and becomes the program. torchtitan
takes a directory, --hf-assets-path, and its wheel has nothing that fills one. Each pod runs this
before torchrun, so a node fetches once and not once a GPU:

    python /usr/local/lib/stationmaster/with_tokenizer.py meta-llama/Llama-3.1-8B \\
        --revision COMMIT --directory /tmp/tokenizer -- torchrun -m torchtitan.train \\
        --module llama3 --config llama3_8b --hf-assets-path /tmp/tokenizer

It takes the standard library and the hub's client, which the image has. HF_TOKEN is the token.
"""

from __future__ import annotations

import argparse
import os
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

# What torchtitan's tokenizer reads, and config.json, which a model that it exports lacks. Source:
# torchtitan 0.3.0, torchtitan/components/tokenizer.py.
PATTERNS: Final = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "vocab.*",
    "merges.txt",
    "chat_template.jinja",
    "config.json",
    "generation_config.json",
)
_COMMIT: Final = re.compile(r"[0-9a-f]{40}")


class NotFetched(Exception):
    """Why there is no tokenizer."""


def fetch(repository: str, *, revision: str, directory: Path) -> None:
    """Download the tokenizer; files that are there already stay.

    Raises:
        NotFetched: the revision is no commit, the hub does not give it, or has no tokenizer.
    """
    if not _COMMIT.fullmatch(revision):
        raise NotFetched(
            f'--revision "{revision}" is not accepted: expected a commit of 40 hexadecimal digits, '
            "so that every node and every restart has the same tokenizer"
        )
    from huggingface_hub import HfApi, errors

    try:
        HfApi(endpoint=os.environ.get("HF_ENDPOINT")).snapshot_download(
            repository, revision=revision, local_dir=directory, allow_patterns=list(PATTERNS)
        )
    except errors.GatedRepoError as exc:
        raise NotFetched(
            f"{repository} is gated: accept its licence on huggingface.co with the account whose "
            "token the deployment has"
        ) from exc
    except errors.RevisionNotFoundError as exc:
        raise NotFetched(f"{repository} has no commit {revision}; look at its history") from exc
    except errors.RepositoryNotFoundError as exc:
        raise NotFetched(
            f"the hub has no repository {repository}, or the deployment's token may not read it"
        ) from exc
    except (errors.HfHubHTTPError, errors.LocalEntryNotFoundError, OSError) as exc:
        raise NotFetched(f"the hub did not give {repository}: {type(exc).__name__}") from exc
    if not (directory / "tokenizer.json").is_file():
        raise NotFetched(f"{repository} has no tokenizer.json, the form that torchtitan reads")


def main(argv: Sequence[str]) -> int:
    """Fetch, then become the program; returns only where there is no tokenizer or no program."""
    parser = argparse.ArgumentParser(description="Fetch a tokenizer, then run a program.")
    parser.add_argument("repository", metavar="ORG/MODEL")
    parser.add_argument("--revision", required=True, metavar="COMMIT")
    parser.add_argument("--directory", type=Path, required=True, metavar="DIR")
    parser.add_argument("program", nargs="+", metavar="PROGRAM")
    arguments = parser.parse_args(argv)
    try:
        fetch(arguments.repository, revision=arguments.revision, directory=arguments.directory)
        os.execvp(arguments.program[0], arguments.program)
    except NotFetched as error:
        print(f"with_tokenizer.py: {error}", file=sys.stderr)
    except OSError as error:
        print(f"with_tokenizer.py: {arguments.program[0]}: {error.strerror}", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
