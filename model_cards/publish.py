# Copyright 2026 The AO-GPT package authors.
# SPDX-License-Identifier: Apache-2.0
"""
Make a Hub repository of a model, check it, show it, and upload it with --push:

    python model_cards/publish.py RUN_OR_MODEL REPO_ID [--card NAME] [--push]

RUN_OR_MODEL is a finished run (runs/quickstart) or a model folder. Without --push nothing is sent and the network is
not touched. The check loads the repository in a process that has nothing but torch and transformers, with every Auto
class, and generates. The token is that of `hf auth login`.
"""

import json
import os
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

import torch
import yaml
from huggingface_hub import HfApi, eval_result_entries_to_yaml
from huggingface_hub.errors import HTTPError
from huggingface_hub.utils import validate_repo_id
from rich.console import Console
from rich.markup import escape
from rich.table import Table
from safetensors.torch import save_file

from common.commands import Parser, one_line_errors, option
from common.files import atomic_folder, check_empty_folder
from common.models import Model, identity_of_weights, load_model
from common.results import read_finished_run
from model_cards.card import read_facts, render
from model_cards.measurements import (
    Measurement,
    benchmark_entries,
    describe_corpus,
    run_hyperparameters,
    run_measurements,
    zero_shot_measurements,
)
from modeling_aogpt.tokenization import load_matching_tokenizer

ROOT = Path(__file__).parents[1]
CHECK = Path(__file__).parent / "check_staged.py"


@dataclass
class PublishArguments:
    card: str = option("default", "A YAML file of this folder by its name, such as ao-gpt-small, or one of your own.")
    tokenizer: str | None = option(None, "Name or folder, for a model folder without one.")
    results: list[Path] = option([], "JSON files of eval/zero_shot.py with this model.")
    max_shard_size: str = option("2GB", "Largest file of weights.")
    output_dir: Path | None = option(None, "Keep the repository's files in this folder, to look at.")
    push: bool = option(False, "Upload.")
    private: bool = option(False, "Make the repository private if it is created. One that is there must be private.")
    revision: str = option("main", "Branch to upload to, made from main if it is not there.")
    tag: str | None = option(None, "Tag to put on the upload.")
    message: str = option("Upload model", "Message of the commit.")

    def __post_init__(self) -> None:
        of_uploads = ("private", "revision", "tag", "message")
        unused = [f"--{name}" for name in of_uploads if getattr(self, name) != getattr(PublishArguments, name)]
        if unused and not self.push:
            raise ValueError(f"{', '.join(unused)} would change nothing: without --push nothing is sent.")


# ----------------------------------------------------------------------------------------------------------- staging


def stage(source: Path, repo_id: str, folder: Path, arguments: PublishArguments) -> None:
    """
    Write the repository of a model: weights in safetensors, configurations, code, tokenizer, licence, card, results.

    Args:
        source: A finished run of training/pretrain.py, or a model folder.
        repo_id: Name of the repository on the Hub.
        folder: The folder to write, atomically.
        arguments: Its card, tokenizer, results and size of shards.

    Raises:
        ValueError: If `source` is neither a run nor a model, has no tokenizer or another model's, if the card or
            results cannot be read, if the results are another model's, or if `folder` holds anything.
    """
    check_empty_folder(folder)
    run = source if (source / "model").is_dir() else None
    model_folder = source if run is None else source / "model"
    finished = None if run is None else read_finished_run(run)[0]
    model = load_local(model_folder)
    tokenizer = load_matching_tokenizer(model.config, arguments.tokenizer or str(model_folder))
    facts, num_parameters = read_facts(arguments.card), model.num_parameters()
    weights = identity_of_weights(str(model_folder)) if arguments.results else None
    known = model.config.model_type, num_parameters, weights
    measurements = [row for path in arguments.results for row in zero_shot_measurements(path, *known)]
    if finished is not None:
        facts["hyperparameters"] = run_hyperparameters(finished)
        measurements = run_measurements(run, finished) + measurements
        if arguments.card == "default":
            facts["training_data"] = describe_corpus(finished)
    rendered = render(
        *(repo_id, facts, model.config, num_parameters),
        str(model.dtype).removeprefix("torch."),
        tokenizer.mask_token,
        measurements,
        ends_documents=finished is not None and finished["corpus"]["packing"] == "documents",
    )
    with atomic_folder(folder) as temporary:
        model.save_pretrained(temporary, max_shard_size=arguments.max_shard_size)
        tokenizer.save_pretrained(temporary)
        shutil.copy(ROOT / "LICENSE", temporary / "LICENSE")
        rendered.save(temporary / "README.md")
        write_benchmark_results(temporary, measurements)


def load_local(folder: Path) -> Model:
    """Load the model of a folder with this package's code, and without unpickling anything."""
    if not (folder / "config.json").is_file():
        raise ValueError(f"{folder} is neither a finished run nor a model folder: it has no config.json.")
    return load_model(folder, use_safetensors=True)


def write_benchmark_results(folder: Path, measurements: list[Measurement]) -> None:
    entries = benchmark_entries(measurements)
    for dataset_id in sorted({entry.dataset_id for entry in entries}):
        path = folder / ".eval_results" / f"{dataset_id.replace('/', '--')}.yaml"
        path.parent.mkdir(exist_ok=True)
        of_dataset = [entry for entry in entries if entry.dataset_id == dataset_id]
        path.write_text(yaml.safe_dump(eval_result_entries_to_yaml(of_dataset)), encoding="utf-8")


@torch.no_grad()
def check(folder: Path) -> list[tuple[str, str]]:
    """
    Load and use a staged folder in a process that can import nothing but torch and transformers.

    Returns what was done and how it went, see check_staged.py. Raises a `ValueError` with the message of that process
    if anything failed.
    """
    model = load_local(folder)
    generator = torch.Generator().manual_seed(0)
    length = min(model.config.max_position_embeddings, 32)
    ids = torch.randint(model.config.num_valid_tokens, (2, length), generator=generator)
    with tempfile.TemporaryDirectory() as temporary:
        expected = Path(temporary) / "expected.safetensors"
        save_file({"input_ids": ids, "logits": model(ids).logits}, expected)
        environment = os.environ | {"HF_HUB_OFFLINE": "1", "HF_MODULES_CACHE": str(Path(temporary) / "modules")}
        process = subprocess.run(
            [sys.executable, "-I", str(CHECK), str(folder.absolute()), str(expected)],
            cwd=temporary,
            env=environment,
            stdin=subprocess.DEVNULL,  # a question gets no answer
            capture_output=True,
            text=True,
            encoding="utf-8",
            check=False,
        )
    if process.returncode:
        raise ValueError(f"{folder} does not work in a clean process:\n{process.stderr.strip()}")
    return [tuple(outcome) for outcome in json.loads(process.stdout.splitlines()[-1])]


# ------------------------------------------------------------------------------------------------------------ upload


def push(folder: Path, repo_id: str, api: HfApi, arguments: PublishArguments) -> str:
    """
    Make a branch of a repository hold exactly the files of a folder, in one commit, and return the commit's address.

    Files of weights go first. They are stored by their hashes, belong to nothing until the commit names them, and are
    not sent again by the next attempt. So an upload that fails leaves every branch as it was, and goes on where it
    stopped.

    Raises:
        ValueError: If the tag is taken, or the repository is there and public but is to be private. Errors of
            huggingface_hub pass; the branch is then as it was.
        RuntimeError: If only the tag failed: the commit is there.
    """
    revision, tag = arguments.revision, arguments.tag
    api.create_repo(repo_id, private=arguments.private, exist_ok=True)
    if arguments.private and not api.repo_info(repo_id, revision="main").private:
        raise ValueError(
            f"{repo_id} is there already and public: make it private in its settings, choose another name, or leave "
            "--private out."
        )
    refs = api.list_repo_refs(repo_id)
    if tag is not None and tag in {ref.name for ref in refs.tags}:
        raise ValueError(f"{repo_id} has a tag {tag!r} already: choose another, or delete that one first.")
    is_new = revision not in {ref.name for ref in refs.branches}
    if is_new:
        api.create_branch(repo_id, branch=revision)
    try:
        commit = api.upload_folder(
            repo_id=repo_id,
            folder_path=folder,
            revision=revision,
            commit_message=arguments.message,
            delete_patterns="*",
            parent_commit=api.repo_info(repo_id, revision=revision).sha,  # refused if somebody else has pushed since
        )
    except BaseException:
        if is_new:
            api.delete_branch(repo_id, branch=revision)
        raise
    if tag is not None:
        try:
            api.create_tag(repo_id, tag=tag, revision=commit.oid)
        except (OSError, HTTPError) as error:
            raise RuntimeError(f"Uploaded: {commit.commit_url}, but without the tag {tag!r}: {error}") from error
    return commit.commit_url


# ----------------------------------------------------------------------------------------------------------- command


def show(folder: Path, outcomes: list[tuple[str, str]], console: Console) -> None:
    """Print what the check did, and the files that would be sent."""
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


@one_line_errors(ValueError, OSError, RuntimeError, HTTPError)  # of the token, of an upload, of the network
def main(argv: list[str]) -> None:
    parser = Parser(PublishArguments, description="Make a Hub repository of a model, check it, and upload it.")
    parser.add_argument("source", type=Path, metavar="RUN_OR_MODEL", help="a finished run, or a model folder")
    parser.add_argument("repo_id", metavar="REPO_ID", help="owner/name on the Hub")
    arguments, others = parser.parse(argv)
    validate_repo_id(others.repo_id)
    if "/" not in others.repo_id:  # the card's snippets would name somebody else's repository, or none
        raise ValueError(f"{others.repo_id} names no owner: give REPO_ID as OWNER/NAME.")
    console = Console()
    with tempfile.TemporaryDirectory() as temporary:
        folder = arguments.output_dir or Path(temporary) / "repository"
        with console.status("staging"):
            stage(others.source, others.repo_id, folder, arguments)
        with console.status("checking in a clean process"):
            outcomes = check(folder)
        show(folder, outcomes, console)
        if not arguments.push:
            console.print(f"Nothing was sent. To upload to {others.repo_id}, give --push.", soft_wrap=True)
            return
        console.print(f"Uploaded: {push(folder, others.repo_id, HfApi(), arguments)}", soft_wrap=True)


if __name__ == "__main__":
    main(sys.argv[1:])
