# Copyright 2026 The AO-GPT package authors. SPDX-License-Identifier: Apache-2.0
"""README and documentation: snippets run, commands parse, and links and pictures exist."""

import re
import shlex
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModel, AutoTokenizer, GPT2Config

from aogpt.cli import make_parser
from common.commands import Parser
from common.corpora import unicode_names
from common.tokenizers import train_tokenizer, vocabulary_arguments
from eval.benchmarks.speed import SpeedArguments
from eval.generative import GenerativeArguments
from eval.protocols import EVALUATION_SETS
from eval.zero_shot import ScoringArguments
from model_cards.publish import PublishArguments
from modeling_aogpt import AOGPTConfig, AOGPTForAnyOrderLM
from modeling_aogpt.unmasking import CERTAINTY_MEASURES
from training.arguments import TrainingArguments
from training.command_line import parse_arguments
from training.conversion.causal_lm import convert_config
from training.lora import add_lora

ROOT = Path(__file__).parent.parent
PAGES = {path.name: path for path in (ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").glob("*.md"))}


def read_page(page: str) -> str:
    return PAGES[page].read_text(encoding="utf-8")


def find_blocks(page: str, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", read_page(page), flags=re.DOTALL)


def find_commands(script: str = "") -> list[list[str]]:
    """Return the words of all commands of all pages, or the words after `script` of the commands that run it."""
    lines = (
        "\n".join(block for page in PAGES for block in find_blocks(page, "console")).replace("\\\n", " ").splitlines()
    )
    words = [shlex.split(line.removeprefix("$ "), comments=True) for line in lines if line.startswith("$ ")]
    return [line[line.index(script) + 1 :] for line in words if script in line] if script else words


def make_model(folder: Path, length: int) -> Path:
    """Save an untrained model with the shape of the quickstart's."""
    tokenizer = train_tokenizer((name for _, name in islice(unicode_names(), 3000)), vocab_size=512)
    config = AOGPTConfig(
        **vocabulary_arguments(tokenizer),
        hidden_size=128,
        num_hidden_layers=4,
        num_attention_heads=4,
        max_position_embeddings=length,
        position_encoding="rotary",
        initializer_range=0.06,
    )
    AOGPTForAnyOrderLM(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def model_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model(tmp_path_factory.mktemp("model"), length=16)


@pytest.fixture(scope="module")
def book_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model(tmp_path_factory.mktemp("book"), length=128)


@pytest.fixture(scope="module")
def adapter_folder(book_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Save an untrained LoRA adapter of the model."""
    folder = tmp_path_factory.mktemp("adapter")
    training = TrainingArguments(init_from=str(book_folder), lora_rank=2)
    add_lora(AutoModel.from_pretrained(book_folder), training).save_pretrained(folder)
    AutoTokenizer.from_pretrained(book_folder).save_pretrained(folder)
    return folder


def check_readme(names: dict[str, Any]) -> None:
    assert names["prompt"]["input_ids"].shape[0] == 1


def check_generation(names: dict[str, Any]) -> None:
    mask = names["tokenizer"].mask_token_id
    for name in ("filled", "in_blocks", "also_filled", "fast", "careful"):
        assert not (names[name] == mask).any()
    is_masked = (names["inputs"] == mask).repeat_interleave(2, 0)
    assert torch.equal(names["output"].unmasking_steps >= 0, is_masked)
    assert not (names["output"].sequences[is_masked] == names["tokenizer"].eos_token_id).any()
    assert torch.equal(names["output"].history[-1], names["output"].sequences)


def check_likelihood(names: dict[str, Any]) -> None:
    n, m = 16, 4
    assert names["exact"].num_rows == 2 * 2 * (n + (m - 1) * sum(range(3, n + 1)))
    assert names["few_rows"].num_rows == 2 * (64 * n + 16 * m * n)
    is_masked = names["inputs"] == names["tokenizer"].mask_token_id
    assert names["ranked"].shape == (3,)
    assert torch.equal(names["infill"].token_log_likelihood != 0, is_masked)
    assert names["log_probs"].shape == (8,)
    assert names["model"].lm_head.weight.grad.any()


def check_infilling(names: dict[str, Any]) -> None:
    assert names["output"].sequences.shape == names["filled"].shape == (1, 16)
    assert 1 <= int(names["output"].lengths) <= 6
    assert not (names["filled"] == names["tokenizer"].mask_token_id).any()


def check_training(names: dict[str, Any]) -> None:
    assert (names["batch"]["orders"][:, :4] < 4).all()


def check_evaluation(names: dict[str, Any]) -> None:
    assert len(names["scores"]["perplexities"]) == 2


def check_design(names: dict[str, Any]) -> None:
    assert names["queried"].shape == (2, names["model"].config.vocab_size)


def check_finetuning(names: dict[str, Any]) -> None:
    assert names["collator"]([names["chat"], names["gap"]])["orders"].tolist() == [[0, 1, 2, 3], [0, 2, 3, 1]]
    assert {type(names["model"]), type(names["merged"])} == {AOGPTForAnyOrderLM}
    assert 0 < len(names["body"]) < 80


CHECKS: dict[str, Callable[[dict[str, Any]], None]] = {
    "README.md": check_readme,
    "generation.md": check_generation,
    "likelihood.md": check_likelihood,
    "training.md": check_training,
    "evaluation.md": check_evaluation,
    "design.md": check_design,
    "infilling.md": check_infilling,
    "finetuning.md": check_finetuning,
}


@pytest.mark.parametrize("page", CHECKS)
def test_python_snippets_run_one_after_another(
    page: str,
    model_folder: Path,
    book_folder: Path,
    adapter_folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture,
) -> None:
    monkeypatch.chdir(ROOT)
    monkeypatch.setitem(CERTAINTY_MEASURES, "collision", None)  # a page adds it, and it is removed after the test
    source = "\n".join(find_blocks(page, "python"))
    folders = {"quickstart": model_folder, "book": book_folder, "python": book_folder, "bodies": adapter_folder}
    for run, folder in folders.items():
        source = source.replace(f"runs/{run}/model", str(folder))
    source = source.replace(", trust_remote_code=True", "")
    names: dict[str, Any] = {}
    exec(source, names)
    CHECKS[page](names)


def test_every_page_with_snippets_is_tested() -> None:
    others = {"CONTRIBUTING.md"}  # tested in test_contributing.py
    assert {page for page in PAGES if "```python" in read_page(page)} - others == set(CHECKS)


# ----------------------------------------------------------------------------------------------------------- commands


def test_scripts_and_targets_of_commands_exist() -> None:
    scripts = [Path(word) for command in find_commands() for word in command if word.endswith((".py", ".yaml"))]
    assert scripts
    assert [script for script in scripts if not (ROOT / script).is_file()] == []
    targets = {command[1] for command in find_commands() if command[0] == "make"}
    assert {"quickstart", "test"} <= targets
    assert [target for target in targets if f"\n{target}:" not in (ROOT / "Makefile").read_text()] == []


def test_training_commands_parse(model_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    convert_config(GPT2Config(), set(), 50256).save_pretrained(tmp_path)
    others = dict.fromkeys(("models/any-order", "runs/book", "runs/python/model"), tmp_path)
    folders = {"runs/quickstart/model": model_folder} | others
    lines = find_commands("training/pretrain.py")
    assert len(lines) > 5
    for line in lines:
        parse_arguments([str(folders.get(word, word)) for word in line])


@pytest.mark.parametrize(
    ("script", "arguments", "positional"),
    [
        ("eval/zero_shot.py", ScoringArguments, "?"),
        ("eval/generative.py", GenerativeArguments, "+"),
        ("eval/benchmarks/speed.py", SpeedArguments, None),
        ("model_cards/publish.py", PublishArguments, "+"),
    ],
)
def test_other_commands_parse(script: str, arguments: type, positional: str | None) -> None:
    lines = find_commands(script)
    assert lines
    for line in lines:
        parser = Parser(arguments)
        if positional is not None:
            parser.add_argument("model", nargs=positional)
        parser.parse(line)


def test_commands_of_the_package_parse() -> None:
    lines = [line[line.index("|") + 1 :] if "|" in line else line for line in find_commands()]
    lines = [line[1:] for line in lines if line[0] == "aogpt"]
    assert {line[0] for line in lines} == {"generate", "infill", "score", "convert", "serve"}
    for line in lines:
        make_parser().parse_args(line)


# --------------------------------------------------------------------------------------------- links and other names


def find_anchors(page: Path) -> set[str]:
    """Return the anchors that GitHub gives to the headings of a page."""
    text = re.sub("```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    headings = [re.sub(r"\[(.*?)\]\(.*?\)", r"\1", line) for line in re.findall("^#+ (.*)$", text, re.MULTILINE)]
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES)
def test_links_and_pictures_exist(page: str) -> None:
    links = [link for link in re.findall(r"\]\(([^)]+)\)", read_page(page)) if "://" not in link]
    for file, _, anchor in (link.partition("#") for link in links):
        path = PAGES[page].parent / file if file else PAGES[page]
        assert path.exists(), file
        assert not anchor or anchor in find_anchors(path), f"{file}#{anchor}"


def test_every_recipe_is_described() -> None:
    recipes = re.findall(r"`(\w+\.yaml)`", read_page("training.md"))
    assert set(recipes) == {path.name for path in (ROOT / "training" / "configs").glob("*.yaml")}


def test_documented_local_files_are_those_that_are_read() -> None:
    for name, dataset in EVALUATION_SETS.items():
        (row,) = (line for line in read_page("evaluation.md").splitlines() if line.startswith(f"| `{name}` | `"))
        assert row.endswith(f"| {dataset.split} |")
        pattern = re.escape(dataset.local).replace(re.escape("{split}"), r"(\{train,valid,test\}|test)")
        assert re.search(f"`{pattern}`", row)


def test_measured_results_are_listed_with_their_commands() -> None:
    results = ROOT / "docs" / "results"
    rows = re.findall(r"^\| \[(\w+)\]\(([^)]+)\)(.*)$", (results / "README.md").read_text("utf-8"), re.MULTILINE)
    assert {name for name, _, _ in rows} == {path.name for path in results.iterdir() if path.is_dir()}
    for name, link, description in rows:
        assert (results / link).is_file()
        commands = re.findall(r"`(?:make ([\w-]+)|python (\S+\.py|-m \S+))", description)
        assert commands, name
        for target, script in commands:
            if script.startswith("-m "):
                script = f"{script[3:].replace('.', '/')}.py"
            assert (ROOT / script).is_file() if script else f"\n{target}:" in (ROOT / "Makefile").read_text(), name


def test_scripts_in_reports_exist() -> None:
    """Reports name the commands that write them."""
    pages = (ROOT / "docs" / "results").rglob("*.md")
    scripts = {script for page in pages for script in re.findall(r"python (\S+\.py)", page.read_text("utf-8"))}
    assert len(scripts) > 3
    assert [script for script in scripts if not (ROOT / script).is_file()] == []
