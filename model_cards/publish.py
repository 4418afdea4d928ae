# Copyright 2026 The AO-GPT package authors.
# SPDX-License-Identifier: Apache-2.0
"""
Makes a Hub repository of a model, checks it, shows it, and uploads it if told so:

    python model_cards/publish.py RUN_OR_MODEL REPO_ID [--card NAME] [--push]

RUN_OR_MODEL is a finished run (runs/quickstart) or a model folder. Without --push nothing is sent and the network is
not touched. The check loads the repository in a process that has nothing but torch and transformers, with every Auto
class, and generates. The token is that of `hf auth login`.
"""

import argparse
import sys
import tempfile
from pathlib import Path

from huggingface_hub import HfApi
from huggingface_hub.errors import HTTPError
from huggingface_hub.utils import validate_repo_id
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from model_cards.card import cards
from model_cards.staging import check, stage
from model_cards.upload import push
from training.errors import errors_in_a_line


def show(folder: Path, outcomes: list[tuple[str, str]], console: Console) -> None:
    """Prints what the check did, and the files that would be sent."""
    checks = Table("checked in a clean process", "outcome", title_justify="left")
    for what, outcome in outcomes:
        checks.add_row(escape(what), escape(outcome))
    console.print(checks)
    files = Table("file", "bytes", show_footer=True)
    paths = sorted(path for path in folder.rglob("*") if path.is_file())
    for path in paths:
        files.add_row(escape(path.relative_to(folder).as_posix()), f"{path.stat().st_size:,}")
    files.columns[0].footer = f"{len(paths)} files"
    files.columns[1].footer = f"{sum(path.stat().st_size for path in paths):,}"
    files.columns[1].justify = "right"
    console.print(files)


def parse(argv: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    parser.add_argument("source", type=Path, metavar="RUN_OR_MODEL")
    parser.add_argument("repo_id", metavar="REPO_ID", help="owner/name on the Hub")
    parser.add_argument("--card", default="default", help=f"one of {', '.join(cards())}, or a YAML file like theirs")
    parser.add_argument("--tokenizer", help="name or folder, for a model folder without one")
    parser.add_argument("--results", type=Path, nargs="+", default=[], help="JSON files of eval/zero_shot.py")
    parser.add_argument("--max-shard-size", default="2GB", help="largest file of weights (default: %(default)s)")
    parser.add_argument("--stage-to", type=Path, metavar="FOLDER", help="keep the repository's files here, to look at")
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--dry-run", action="store_true", help="stage, check and show, send nothing (the default)")
    what.add_argument("--push", action="store_true", help="upload")
    parser.add_argument("--private", action="store_true", help="for a repository that is created, or is private")
    parser.add_argument("--revision", default="main", help="branch to upload to (default: %(default)s)")
    parser.add_argument("--tag", help="tag to put on the upload")
    parser.add_argument("--message", default="Upload model", help="of the commit (default: %(default)s)")
    arguments = parser.parse_args(argv)
    of_uploads = ("private", "revision", "tag", "message")
    unused = [f"--{name}" for name in of_uploads if getattr(arguments, name) != parser.get_default(name)]
    if unused and not arguments.push:
        parser.error(f"{', '.join(unused)} would change nothing: without --push nothing is sent.")
    return arguments


@errors_in_a_line(ValueError, OSError, RuntimeError, HTTPError)  # of the token, of an upload, of the network
def main(argv: list[str]) -> None:
    arguments = parse(argv)
    validate_repo_id(arguments.repo_id)
    if "/" not in arguments.repo_id:  # the card's snippets would name somebody else's repository, or none
        raise ValueError(f"{arguments.repo_id} names no owner: give REPO_ID as OWNER/NAME.")
    console = Console()
    with tempfile.TemporaryDirectory() as temporary:
        folder = arguments.stage_to or Path(temporary) / "repository"
        with console.status("staging"):
            stage(
                arguments.source,
                arguments.repo_id,
                folder,
                arguments.card,
                arguments.tokenizer,
                arguments.results,
                arguments.max_shard_size,
            )
        with console.status("checking in a clean process"):
            outcomes = check(folder)
        show(folder, outcomes, console)
        if not arguments.push:
            console.print(f"Nothing was sent. To upload to {arguments.repo_id}, give --push.", soft_wrap=True)
            return
        address = push(
            folder,
            arguments.repo_id,
            HfApi(),
            arguments.private,
            arguments.revision,
            arguments.tag,
            arguments.message,
        )
        console.print(f"Uploaded: {address}", soft_wrap=True)


if __name__ == "__main__":
    main(sys.argv[1:])
