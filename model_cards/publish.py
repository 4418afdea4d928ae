# Copyright 2026 The AO-GPT package authors. SPDX-License-Identifier: Apache-2.0
"""Command that prepares the files of a Hub repository for a model, checks them, and uploads them with --push.

    python model_cards/publish.py RUN_OR_MODEL REPO_ID [--card NAME] [--output_dir DIR] [--push] [...]

RUN_OR_MODEL is a finished run (such as runs/quickstart) or a model folder. For the check, whose code may import only
torch and transformers, a new process loads the model through its Auto classes, and runs it. Without --push, the network
is used only if --tokenizer is the name of a Hub repository. Without --output_dir, the prepared files are deleted at the
end. Uploads use the token of `hf auth login`.
"""

import os
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from huggingface_hub import CommitOperationAdd, CommitOperationDelete, HfApi
from huggingface_hub.errors import HTTPError
from huggingface_hub.utils import validate_repo_id
from safetensors.torch import save_file
from transformers import PreTrainedTokenizerBase
from transformers.dynamic_module_utils import get_imports

from common.commands import Options, Parser, one_line_errors, option
from common.corpora import BUILT_IN
from common.files import atomic_folder, check_empty_folder
from common.models import check_own_tokenizer, identity_of_weights, load_merged
from common.results import is_padded, read_finished_run, settings_of_run
from model_cards.card import read_facts, render_card, task_of
from model_cards.measurements import add_run_facts, check_labels, read_run_measurements, read_zero_shot_measurements
from modeling_aogpt import AOGPTConfig, MDMEncoderConfig
from modeling_aogpt.loading import Model, find_base
from modeling_aogpt.tokenization import load_matching_tokenizer

ROOT = Path(__file__).parents[1]
CHECK = Path(__file__).parent / "check_staged.py"
ALLOWED_IMPORTS = {*sys.stdlib_module_names, "torch", "transformers", "safetensors", "huggingface_hub"}
MAX_SHARD_SIZE = "2GB"  # after an interrupted upload, less is sent again than with Transformers' 50GB


@dataclass
class PublishArguments(Options):
    """Options of model_cards/publish.py."""

    card: str | None = option(
        None, "Card in model_cards/, such as quickstart, or a YAML file. By default, it is chosen by the kind of model."
    )
    license: str | None = option(
        None, "Licence of the weights, as an identifier of the Hub, such as mit. Only for the default cards."
    )
    tokenizer: str | None = option(None, "Folder or Hub name of the tokenizer. Defaults to the model folder.")
    results: list[Path] = option([], "Results of this model, as written by eval/zero_shot.py, for the card.")
    output_dir: Path | None = option(None, "Folder for the prepared files. By default, they are deleted at the end.")
    push: bool = option(False, "Upload the prepared files.")
    private: bool = option(False, "Create a private repository. An existing repository must be private.", needs="push")


# -------------------------------------------------------------------------------------------------------- preparation


# Cards for one kind of model each (see `default_card`). Models of other kinds cannot use them.
DEFAULT_CARDS = ("encoder", "left_to_right", "converted", "converted_masked")


def default_card(config: AOGPTConfig, is_left_to_right: bool) -> str:
    """Return the name of the card for a model, if the user chooses none."""
    is_encoder = isinstance(config, MDMEncoderConfig)
    if getattr(config, "source_config", None) is not None:
        return "converted_masked" if is_encoder else "converted"
    return "encoder" if is_encoder else "left_to_right" if is_left_to_right else "default"


def stage(source: Path, repo_id: str, folder: Path, arguments: PublishArguments) -> None:
    """Write the files of a repository: weights in safetensors, configurations, code, tokenizer, licence and card.

    `source` is a finished run of training/pretrain.py, its model folder, or another model folder. If an error occurs,
    nothing is written to `folder`. Raise a `ValueError` if `source` is neither a run nor a model; if the tokenizer,
    the card or the results are missing, or belong to another model; or if `folder` is not empty.
    """
    check_empty_folder(folder)
    if settings_of_run(source):  # `source` is the model folder of a run
        source = source.absolute().parent
    is_run = (source / "model").is_dir()
    model_folder, results = (source / "model", read_finished_run(source)) if is_run else (source, None)
    model = load_local(model_folder)
    tokenizer = load_matching_tokenizer(model.config, name := arguments.tokenizer or str(model_folder))
    check_own_tokenizer(str(model_folder), tokenizer, name)
    length = results["arguments"]["sequence_length"] if results else model.config.max_position_embeddings
    task = task_of(model.config)
    measurements = [] if results is None else read_run_measurements(results, task)
    weights = identity_of_weights(str(model_folder)) if results or arguments.results else None
    if results and results.get("weights", weights) != weights:
        raise ValueError(
            f"The weights of {model_folder}, or of its base model, changed after the run. To publish them without the "
            "measurements of the run, move the model out of the folder of the run."
        )
    for path in arguments.results:
        measurements += read_zero_shot_measurements(path, task, model.num_parameters(), weights)
    check_labels(measurements)
    card = render_card(
        repo_id,
        _fit_texts(_choose_facts(model, source, results, arguments), tokenizer, length),
        model.config,
        tokenizer.mask_token,
        measurements,
        length,
        num_parameters=model.num_parameters(),
        dtype=str(model.dtype).removeprefix("torch."),
        is_rounded=model.dtype != torch.float32 and find_base(model_folder) is not None,
        pad_texts=results is not None and is_padded(results["corpus"]),
        is_left_to_right=model.generation_config.is_left_to_right,
    )
    with atomic_folder(folder) as temporary:
        model.save_pretrained(temporary, max_shard_size=MAX_SHARD_SIZE)
        tokenizer.save_pretrained(temporary)
        shutil.copy(ROOT / "LICENSE", temporary / "LICENSE")
        card.save(temporary / "README.md")


def _choose_facts(
    model: Model, source: Path, results: dict[str, Any] | None, arguments: PublishArguments
) -> dict[str, Any]:
    """Return the facts of the chosen card and, for a run, of its `results`. Raise a `ValueError` if they contradict."""
    default = default_card(model.config, model.generation_config.is_left_to_right)
    name = arguments.card or default
    if name in DEFAULT_CARDS and name != default:
        raise ValueError(f"The card {name!r} is for models of another kind. Remove `--card` to use {default!r}.")
    facts = read_facts(name, default)
    if name == "converted" and model.generation_config.is_left_to_right:
        facts["tags"] = []  # it was not trained in any order after the conversion
    if arguments.license is not None:
        if name not in ("default", *DEFAULT_CARDS):
            raise ValueError(f"`--license` cannot be combined with `--card {name}`. Write `license` into a YAML file.")
        facts["license"] = arguments.license
    if results is not None:
        return add_run_facts(facts, name, source, results)
    if facts.get("corpus") in BUILT_IN:
        raise ValueError(
            f"The card {name!r} is for models trained on {facts['corpus']}, but {source} is no folder of a run, so its "
            "corpus is unknown. Pass the folder of the run, or use another card."
        )
    return facts


def _fit_texts(facts: dict[str, Any], tokenizer: PreTrainedTokenizerBase, longest: int) -> dict[str, Any]:
    """Return the facts of a card. Cut `text` if the text and one mask together have more than `longest` tokens.

    Raise a `ValueError` if `infill`, the text with masks, is too long.
    """

    def encode(text: str) -> list[int]:
        return tokenizer(text.replace("{mask}", tokenizer.mask_token), add_special_tokens=False)["input_ids"]

    text = facts["text"]
    if len(encode("{mask} " + text)) > longest:
        text = tokenizer.decode(encode(text)[: longest // 2]).strip()
    if (length := len(encode(facts.get("infill", "")))) > longest:
        raise ValueError(
            f"`infill` of the card must have at most {longest} tokens, the longest sequence of the model or of its "
            f"training, but has {length}. Pass a YAML file with a shorter `infill` as `--card`."
        )
    return facts | {"text": text}


def load_local(folder: Path) -> Model:
    """Load a model from a folder, with the code of this package. Only safetensors weights are accepted.

    A LoRA adapter is merged into its base model, so that users need neither PEFT nor the base model.
    """
    if not (folder / "config.json").is_file() and find_base(folder) is None:
        raise ValueError(f"{folder} is neither a finished run nor a model folder (no config.json). Check the path.")
    return load_merged(folder, use_safetensors=True)


@torch.no_grad()
def check(folder: Path) -> None:
    """Test a prepared folder in a new process, which prints the outcomes.

    Raise a `ValueError` if the code imports other packages than torch and transformers, or if a check failed. The
    message then contains the error output of the process.
    """
    for file in sorted(folder.glob("*.py")):
        if others := sorted(set(get_imports(file)) - ALLOWED_IMPORTS):
            raise ValueError(f"{file} must import only torch and transformers, but imports {', '.join(others)}.")
    model = load_local(folder)
    generator = torch.Generator().manual_seed(0)
    length = min(model.config.max_position_embeddings - 1, 32)  # no position is left to predict after the last one
    ids = torch.randint(model.config.num_valid_tokens, (2, length), generator=generator)
    with tempfile.TemporaryDirectory() as temporary:
        expected = Path(temporary) / "expected.safetensors"
        save_file({"input_ids": ids, "logits": model(ids).logits}, expected)
        environment = os.environ | {"HF_HUB_OFFLINE": "1", "HF_MODULES_CACHE": str(Path(temporary) / "modules")}
        command = [sys.executable, "-I", "-X", "utf8", str(CHECK), str(folder.absolute()), str(expected)]
        files = {"stdin": subprocess.DEVNULL, "stderr": subprocess.PIPE}  # a prompt for input fails instead of waiting
        process = subprocess.run(command, cwd=temporary, env=environment, **files, encoding="utf-8", check=False)
    if process.returncode:
        raise ValueError(f"{folder} does not work in a new process. Correct the cause:\n{process.stderr.strip()}")


# ------------------------------------------------------------------------------------------------------------- upload


def push(folder: Path, repo_id: str, api: HfApi, private: bool = False) -> str:
    """Replace all files of a repository by the files of a folder in one commit. Return the URL of the commit.

    If the upload fails, an `OSError` or `HTTPError` is raised, and the repository does not change. The Hub keeps
    weights that were already sent, so the next attempt does not send them again. Raise a `ValueError` if the repository
    is public although `private` is set.
    """
    api.create_repo(repo_id, private=private, exist_ok=True)
    repository = api.repo_info(repo_id, revision="main")
    if private and not repository.private:
        raise ValueError(
            f"With `--private`, the repository must be private, but {repo_id} exists and is public. Make it private in "
            "its settings, choose another name, or remove `--private`."
        )
    files = {path.relative_to(folder).as_posix(): path for path in sorted(folder.rglob("*")) if path.is_file()}
    old = {file.rfilename for file in repository.siblings} - files.keys() - {".gitattributes"}
    # `upload_folder` can make several commits, of which a part may fail. If there is a newer commit, this one fails.
    operations = [*map(CommitOperationDelete, sorted(old)), *map(CommitOperationAdd, files, files.values())]
    commit = api.create_commit(repo_id, operations, commit_message="Upload model", parent_commit=repository.sha)
    return commit.commit_url


# An HTTPError means no token, no network, or a failed upload.
@one_line_errors(ValueError, OSError, RuntimeError, HTTPError)
def main(argv: list[str]) -> None:
    """Run the command."""
    parser = Parser(
        PublishArguments,
        description="Prepare the files of a Hub repository for a model, check them, and upload them with --push. The "
        "prepared files are deleted at the end, unless --output_dir is given.",
    )
    parser.add_argument("source", type=Path, metavar="RUN_OR_MODEL", help="a finished run, or a model folder")
    parser.add_argument("repo_id", metavar="REPO_ID", help="owner/name on the Hub")
    arguments, others = parser.parse(argv)
    validate_repo_id(others.repo_id)
    if "/" not in others.repo_id:  # the code examples of the card would load another repository
        raise ValueError(f"REPO_ID must have the form OWNER/NAME, but is {others.repo_id}. Add the owner.")
    with tempfile.TemporaryDirectory() as temporary:
        folder = arguments.output_dir or Path(temporary) / "repository"
        stage(others.source, others.repo_id, folder, arguments)
        check(folder)
        paths = sorted(path for path in folder.rglob("*") if path.is_file())
        print(*(f"{path.stat().st_size:>15,}  {path.relative_to(folder).as_posix()}" for path in paths), sep="\n")
        if arguments.push:
            print(f"Uploaded to {push(folder, others.repo_id, HfApi(), arguments.private)}.")
        else:
            print(f"Nothing was uploaded. Add --push to upload to {others.repo_id}.")
    if arguments.output_dir is None:
        print("The files above were deleted. Use --output_dir DIR to keep them.")
    else:
        print(f"The files above are in {arguments.output_dir}.")


if __name__ == "__main__":
    main(sys.argv[1:])
