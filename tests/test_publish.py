# Copyright 2026 The AO-GPT package authors. SPDX-License-Identifier: Apache-2.0
"""Publishing: preparing a repository, checking it in a clean process, and uploading it in one commit."""

import json
import re
import shutil
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock, create_autospec

import pytest
import torch
from huggingface_hub import HfApi, ModelCard
from huggingface_hub.errors import HfHubHTTPError
from safetensors.torch import load_file, save_file
from transformers import AutoTokenizer, GPT2Config, set_seed

import modeling_aogpt
from common.corpora import unicode_names
from common.models import identity_of_weights
from common.tokenizers import train_tokenizer, vocabulary_arguments
from model_cards import publish
from model_cards.publish import PublishArguments, default_card
from modeling_aogpt import AOGPTConfig, AOGPTForAnyOrderLM, MDMEncoderConfig, MDMEncoderForMaskedLM
from tests.test_tables import make_results

ROOT = Path(__file__).parents[1]
SIZES = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "max_position_embeddings": 16}
NAME = "somebody/names"


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a finished run: a small untrained model, a tokenizer, and the results of the quickstart."""
    run = tmp_path_factory.mktemp("runs") / "run"
    tokenizer = train_tokenizer((name for _, name in islice(unicode_names(), 2000)), vocab_size=400)
    set_seed(0)
    model = AOGPTForAnyOrderLM(AOGPTConfig(**vocabulary_arguments(tokenizer), **SIZES, initializer_range=0.5))
    model.save_pretrained(run / "model")
    tokenizer.save_pretrained(run / "model")
    shutil.copy(ROOT / "docs/results/quickstart/results.json", run)
    return run


@pytest.fixture(scope="module")
def staged(run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("staged") / "repository"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(publish, "MAX_SHARD_SIZE", "20KB")
        stage(run, folder, card="quickstart")
    return folder


@pytest.fixture
def copied(staged: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(staged, tmp_path / "repository"))


@pytest.fixture
def api(monkeypatch: pytest.MonkeyPatch) -> Mock:
    """Return a stand-in for the client of the Hub, with a public repository."""
    api = create_autospec(HfApi, instance=True)
    names = (".gitattributes", "README.md", "old/model.safetensors")
    siblings = [SimpleNamespace(rfilename=name) for name in names]
    api.repo_info.return_value = SimpleNamespace(private=False, sha="0" * 40, siblings=siblings)
    api.create_commit.return_value.commit_url = "https://huggingface.co/commit"
    monkeypatch.setattr(publish, "HfApi", lambda: api)
    return api


def stage(source: Path, folder: Path, **options: Any) -> None:
    publish.stage(source, NAME, folder, PublishArguments(**options))


def read_files(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


# -------------------------------------------------------------------------------------------------------- preparation


def test_a_repository_is_complete(staged: Path, run: Path) -> None:
    files = read_files(staged)
    assert {"README.md", "LICENSE", "config.json", "generation_config.json", "tokenizer.json"} <= files.keys()
    shards = sorted(staged.glob("*.safetensors"))
    assert len(shards) > 2
    assert "model.safetensors.index.json" in files
    weights = {name: tensor for shard in shards for name, tensor in load_file(shard).items()}
    expected = load_file(run / "model" / "model.safetensors")
    assert weights.keys() == expected.keys()
    assert all(torch.equal(weights[name], tensor) for name, tensor in expected.items())
    package = Path(modeling_aogpt.__file__).parent
    code = {name: content for name, content in files.items() if name.endswith(".py")}
    assert {"configuration_aogpt.py", "modeling_aogpt.py"} <= code.keys()
    assert all(content == (package / name).read_bytes() for name, content in code.items())
    assert len(json.loads(files["config.json"])["auto_map"]) == 4
    assert json.loads(files["tokenizer_config.json"])["model_max_length"] == 16


def test_the_card_shows_the_measurements_of_the_run(staged: Path) -> None:
    card = ModelCard.load(staged / "README.md")
    results = json.loads((ROOT / "docs/results/quickstart/results.json").read_text())["evaluations"][-1]
    values = {result.metric_name: result.metric_value for result in card.data.eval_results}
    assert values == {
        "bits per byte, left to right": results["left_to_right"],
        "bits per byte, random orders": results["any_order"],
    }
    assert "| learning rate | 0.004 |" in card.text
    assert "names of the characters in the Unicode database" in card.text  # from quickstart.yaml
    # The model was trained on names padded with end-of-text. Without padding it would continue the texts.
    assert card.text.count('padding="max_length", max_length=16, return_tensors') == 2


def test_the_model_folder_of_a_run_gets_the_card_of_the_run(staged: Path, run: Path, tmp_path: Path) -> None:
    copied = Path(shutil.copytree(run, tmp_path / "run"))
    (copied / "tokenizer").mkdir(exist_ok=True)  # all runs have it
    stage(copied / "model", tmp_path / "staged", card="quickstart")
    assert (tmp_path / "staged" / "README.md").read_text() == (staged / "README.md").read_text()


def test_examples_of_the_card_have_the_length_of_the_training(run: Path, tmp_path: Path) -> None:
    copied = Path(shutil.copytree(run, tmp_path / "run"))
    results = json.loads((run / "results.json").read_text())
    results["arguments"]["sequence_length"] = 12  # the model supports 16
    (copied / "results.json").write_text(json.dumps(results))
    stage(copied, tmp_path / "staged", card="quickstart")
    text = ModelCard.load(tmp_path / "staged" / "README.md").text
    assert text.count("max_length=12, return_tensors") == 2
    assert "padded_length=12" in text
    assert "16" not in re.findall(r"length=(\d+)", text)


@pytest.fixture
def run_on_mails(run: Path, tmp_path: Path) -> Path:
    """Return the folder of a run on another corpus, a local file."""
    copied = Path(shutil.copytree(run, tmp_path / "run"))
    results = json.loads((run / "results.json").read_text())
    results["arguments"]["corpus"] = [str(tmp_path / "mails.txt")]
    (copied / "results.json").write_text(json.dumps(results))
    return copied


def test_the_card_of_a_run_names_its_corpus_without_folders(
    run_on_mails: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("mine.yaml").write_text("title: Mails\ncorpus: mails.txt\n")
    stage(run_on_mails, tmp_path / "repository", card="mine.yaml")
    files = read_files(tmp_path / "repository")
    assert b"mails.txt: 25,534 documents" in files["README.md"]
    assert not [name for name, content in files.items() if bytes(tmp_path) in content]


def test_the_default_card_depends_on_the_model() -> None:
    for config, is_left_to_right, card in (
        (AOGPTConfig(), False, "default"),
        (AOGPTConfig(), True, "left_to_right"),
        (AOGPTConfig(source_config={"model_type": "llama"}), True, "converted"),
        (MDMEncoderConfig(vocab_size=9), False, "encoder"),
        (MDMEncoderConfig(vocab_size=9, source_config={"model_type": "llada"}), False, "converted_masked"),
    ):
        assert default_card(config, is_left_to_right) == card


def test_facts_that_a_users_file_lacks_fit_the_model(run: Path, tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text("license: mit\n")
    vocabulary = vocabulary_arguments(AutoTokenizer.from_pretrained(run / "model"))
    vocabulary["vocab_size"] += 1  # the table of an encoder has an entry for the mask
    model = MDMEncoderForMaskedLM(MDMEncoderConfig(**vocabulary, **SIZES))
    model.save_pretrained(tmp_path / "encoder")
    stage(tmp_path / "encoder", tmp_path / "staged", card=str(tmp_path / "mine.yaml"), tokenizer=str(run / "model"))
    text = (tmp_path / "staged" / "README.md").read_text()
    assert "An encoder-only masked diffusion language model." in text
    assert "The licence of the weights is mit." in text
    with pytest.raises(ValueError, match=r"The card 'encoder' is for models of another"):
        stage(run, tmp_path / "other", card="encoder")


def test_a_card_cannot_replace_the_settings_of_a_run(run: Path, tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text("hyperparameters: {learning rate: 1}\n")
    with pytest.raises(ValueError, match="has `hyperparameters`, but those of a run are"):
        stage(run, tmp_path / "staged", card=str(tmp_path / "mine.yaml"))


def test_left_to_right_models_are_not_called_any_order(run: Path, tmp_path: Path) -> None:
    copied = Path(shutil.copytree(run, tmp_path / "run"))
    for settings, is_left_to_right in (
        ({"order": "left_to_right"}, True),
        ({"order": "left_to_right", "stride": 4}, False),
    ):
        (copied / "model" / "generation_config.json").write_text(json.dumps(settings))
        stage(copied, tmp_path / f"{is_left_to_right}")
        card = (tmp_path / f"{is_left_to_right}" / "README.md").read_text()
        assert ("fills in masks from left to right" in card) == is_left_to_right
        assert ("any-order" in ModelCard(card).data.tags) == (not is_left_to_right)
        config = json.loads((copied / "model" / "config.json").read_text()) | {"source_config": {"model_type": "llama"}}
        (tmp_path / "converted").mkdir(exist_ok=True)
        for path in (copied / "model").iterdir():
            shutil.copy(path, tmp_path / "converted")
        (tmp_path / "converted" / "config.json").write_text(json.dumps(config))
        stage(tmp_path / "converted", tmp_path / f"converted-{is_left_to_right}")
        card = ModelCard.load(tmp_path / f"converted-{is_left_to_right}" / "README.md")
        assert ("any-order" in card.data.tags) == (not is_left_to_right)


def test_the_card_of_a_fine_tuned_model_names_the_model_before_it(run: Path, tmp_path: Path) -> None:
    last = Path(shutil.copytree(run, tmp_path / "last"))
    for init_from, weights, name, base_model in (
        (str(tmp_path / "earlier" / "model"), "0123456789ab", "earlier", None),
        ("someone/base", "0" * 40, "someone/base", "someone/base"),
    ):
        results = json.loads((run / "results.json").read_text())
        results["arguments"]["init_from"], results["initial_weights"] = init_from, weights
        (last / "results.json").write_text(json.dumps(results))
        stage(last, tmp_path / name)
        card = ModelCard.load(tmp_path / name / "README.md")
        assert (
            "1,500 steps with 3,072,000 tokens, padding included, and 0.0725 hours. It ended on this machine:"
            in card.text
        )
        assert f"It started from the weights of {name}." in card.text
        assert card.data.base_model == base_model


def test_the_licence_is_an_option_of_default_cards(run: Path, tmp_path: Path) -> None:
    stage(run, tmp_path / "staged", license="mit")
    card = ModelCard.load(tmp_path / "staged" / "README.md")
    assert card.data.license == "mit"
    assert "The licence of the weights is mit." in card.text
    with pytest.raises(ValueError, match="--license"):
        stage(run, tmp_path / "other", license="mit", card="quickstart")


def test_the_code_of_a_card_runs_with_short_sequences(run: Path, tmp_path: Path) -> None:
    stage(run, tmp_path / "repository")
    card = (tmp_path / "repository" / "README.md").read_text()
    assert "The any-order model writes a text." not in card  # 20 tokens, but the model has 16 positions
    code = "\n".join(re.findall(r"```python\n(.*?)```", card, re.DOTALL)).replace(NAME, str(tmp_path / "repository"))
    names: dict[str, Any] = {}
    exec(code, names)
    assert names["any_order"].log_likelihood.shape == (1,)
    (tmp_path / "mine.yaml").write_text(f"infill: '{'{mask} and ' * 9}'\n")
    with pytest.raises(ValueError, match=r"`infill` of the card must have at most 16 tokens, .* but has \d+"):
        stage(run, tmp_path / "other", card=str(tmp_path / "mine.yaml"))


def test_a_card_of_another_corpus_is_an_error(run: Path, run_on_mails: Path, tmp_path: Path) -> None:
    for card, source, message in (
        ("quickstart", run_on_mails, "is for models trained on unicode-names, but .*/run was trained on mails.txt"),
        ("ao-gpt-small", run, "is for models trained on OpenWebText by the authors of AO-GPT, but .* on unicode-names"),
    ):
        with pytest.raises(ValueError, match=f"The card '{card}' {message}. Remove `--card`"):
            stage(source, tmp_path / "repository", card=card)
    assert not (tmp_path / "repository").exists()


def test_a_model_folder_keeps_its_dtype_and_gets_a_tokenizer(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(publish, "identity_of_weights", None)  # not called without results
    publish.load_local(run / "model").to(torch.bfloat16).save_pretrained(tmp_path / "model")
    stage(tmp_path / "model", tmp_path / "repository", tokenizer=str(run / "model"))
    assert "| weights | bfloat16, safetensors |" in (tmp_path / "repository" / "README.md").read_text()
    assert {tensor.dtype for tensor in load_file(tmp_path / "repository" / "model.safetensors").values()} == {
        torch.bfloat16
    }


def test_pickled_weights_are_refused(run: Path, tmp_path: Path) -> None:
    model = publish.load_local(run / "model")
    model.config.save_pretrained(tmp_path)
    torch.save(model.state_dict(), tmp_path / "pytorch_model.bin")
    with pytest.raises(ValueError, match=r"weights of .* are missing or damaged"):
        publish.load_local(tmp_path)


def test_the_check_runs_in_an_isolated_process(staged: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It has no network, no input, an empty cache of remote code, another working folder, and no PYTHONPATH."""
    monkeypatch.setattr(publish.subprocess, "run", process := Mock(return_value=Mock(returncode=0)))
    monkeypatch.delenv("HF_HUB_OFFLINE")
    monkeypatch.chdir(staged.parent)
    publish.check(Path(staged.name))
    (_, isolated, *utf8, _, folder, _), options = process.call_args.args[0], process.call_args.kwargs
    temporary = Path(options["cwd"])
    assert [isolated, *utf8] == ["-I", "-X", "utf8"]
    assert folder == str(staged)
    assert options["stdin"] == publish.subprocess.DEVNULL
    assert options["env"]["HF_HUB_OFFLINE"] == "1"
    assert temporary in Path(options["env"]["HF_MODULES_CACHE"]).parents
    assert not temporary.exists()


@pytest.mark.parametrize("architecture", ["decoder", "encoder"])
def test_a_repository_works_in_a_clean_process(
    architecture: str, staged: Path, run: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    folder = staged
    if architecture == "encoder":
        tokenizer = AutoTokenizer.from_pretrained(run / "model")
        sizes = vocabulary_arguments(tokenizer)
        sizes["vocab_size"] += 1
        MDMEncoderForMaskedLM(MDMEncoderConfig(**sizes, **SIZES)).save_pretrained(tmp_path / "model")
        folder = tmp_path / "repository"
        stage(tmp_path / "model", folder, tokenizer=str(run / "model"))
    publish.check(folder)
    checks = [line.partition(": ")[0] for line in capfd.readouterr().out.splitlines()]
    expected = {
        "decoder": [
            "AutoTokenizer",
            "AutoModel -> AOGPTForAnyOrderLM",
            "AutoModelForCausalLM -> AOGPTForCausalLM",
            "AutoModelForMaskedLM -> AOGPTForMaskedLM",
            "pipeline('fill-mask')",
            "pipeline('text-generation')",
        ],
        "encoder": [
            "AutoTokenizer",
            "AutoModel -> MDMEncoderForMaskedLM",
            "AutoModelForMaskedLM -> MDMEncoderForMaskedLM",
            "pipeline('fill-mask')",
        ],
    }
    assert checks == expected[architecture]


def remove_code(folder: Path) -> None:
    (folder / "orders.py").unlink()


def import_the_package(folder: Path) -> None:
    code = folder / "modeling_aogpt.py"
    code.write_text("from modeling_aogpt.orders import check_orders as _\n" + code.read_text())


def import_another_package(folder: Path) -> None:
    code = folder / "modeling_aogpt.py"
    code.write_text("import accelerate\n" + code.read_text())


def change_code(folder: Path) -> None:
    code = folder / "modeling_aogpt.py"
    before, line, after = code.read_text().partition("return add_product(normalized + shift")
    assert line
    code.write_text(f"{before}{line.replace('+', '-')}{after}")


def change_the_mask(folder: Path) -> None:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"mask_token_id": 500}))


def damage_an_embedding(folder: Path) -> None:
    name = "model.embed_tokens.weight"
    path = folder / json.loads((folder / "model.safetensors.index.json").read_text())["weight_map"][name]
    weights = load_file(path)
    weights[name][-1] = torch.nan
    save_file(weights, path, metadata={"format": "pt"})


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (damage_an_embedding, "weights are not finite"),
        (import_the_package, "modeling_aogpt"),
        (import_another_package, "accelerate"),
        (change_code, "not close"),
        (change_the_mask, "the mask ids of the tokenizer and of the model differ"),
    ],
)
def test_the_check_detects(damage: Callable[[Path], None], message: str, copied: Path) -> None:
    damage(copied)
    with pytest.raises(ValueError, match=message):
        publish.check(copied)


def test_sources_that_cannot_be_published_are_errors(run: Path, tmp_path: Path) -> None:
    folder = tmp_path / "repository"
    with pytest.raises(ValueError, match="neither a finished run nor a model folder"):
        stage(tmp_path, folder)
    GPT2Config().save_pretrained(tmp_path / "gpt2")
    with pytest.raises(ValueError, match="is a model of type 'gpt2', not a model of"):
        stage(tmp_path / "gpt2", folder)
    bare = Path(shutil.copytree(run / "model", tmp_path / "bare"))
    with pytest.raises(ValueError, match=r"trained on unicode-names, but .*bare is no"):
        stage(bare, folder, card="quickstart")
    other = train_tokenizer((f"{number} {number}" for number in range(9000)), vocab_size=400)
    other.save_pretrained(tmp_path / "other")  # with as many tokens
    with pytest.raises(ValueError, match=r"`tokenizer` .* differs"):
        stage(bare, folder, tokenizer=str(tmp_path / "other"))
    for path in bare.glob("tokenizer*"):
        path.unlink()
    with pytest.raises(ValueError, match=r"contains no tokenizer\. Pass the tokenizer"):
        stage(bare, folder)
    config = json.loads((bare / "config.json").read_text())
    (bare / "config.json").write_text(json.dumps(config | {"mask_token_id": 500}))
    with pytest.raises(ValueError, match="its mask has the id 400, but the mask of the"):
        stage(bare, folder, tokenizer=str(run / "model"))
    (bare / "config.json").write_text(json.dumps(config | {"num_hidden_layers": 3}))
    with pytest.raises(ValueError, match=r"weights of .* do not match its configuration"):
        stage(bare, folder, tokenizer=str(run / "model"))
    unfinished = tmp_path / "unfinished"
    shutil.copytree(run / "model", unfinished / "model")
    with pytest.raises(ValueError, match=r"has no results\.json, so the run is not"):
        stage(unfinished, folder)
    assert not folder.exists()
    (folder / "mine").mkdir(parents=True)
    with pytest.raises(ValueError, match="is not an empty folder"):
        stage(run, folder)


def test_weights_that_changed_after_the_run_are_not_published_with_its_measurements(run: Path, tmp_path: Path) -> None:
    changed = Path(shutil.copytree(run, tmp_path / "run"))
    written = json.loads((run / "results.json").read_text())
    written |= {"weights": identity_of_weights(str(run / "model"))}
    (changed / "results.json").write_text(json.dumps(written))
    stage(changed, tmp_path / "one")
    model = publish.load_local(run / "model")
    model.get_input_embeddings().weight.data[0] += 1
    model.save_pretrained(changed / "model")
    with pytest.raises(ValueError, match="changed after the run"):
        stage(changed, tmp_path / "two")
    shutil.move(changed / "model", tmp_path / "model")
    stage(tmp_path / "model", tmp_path / "three")


def test_results_of_another_model_are_an_error(run: Path, staged: Path, tmp_path: Path) -> None:
    folder, path = tmp_path / "repository", tmp_path / "zero_shot.json"
    figures = {"sequences": 9, "perplexity": 12.3456, "perplexity_standard_error": None}
    datasets: dict[str, Any] = {
        "text files": {"files": ["mine.txt"], "packing": "documents", "measures": {"left_to_right": figures}},
        "wikitext2": {"split": "test", "documents": 4358, "sequences": 9, "measures": {"left_to_right": figures}},
    }
    model = publish.load_local(run / "model")
    results = make_results(num_parameters=model.num_parameters(), protocol="clean", datasets=datasets)
    other_weights = {"revision": None, "weights": "0123456789ab", "model": "another"}
    for other, message in (
        ({"num_parameters": 1}, "contains results of other weights than those to publish: mine with 1 parameters"),
        (other_weights, "contains results of other weights than those to publish: another with "),
    ):
        path.write_text(json.dumps(results | other))
        with pytest.raises(ValueError, match=message):
            stage(run, folder, results=[path])
    same_weights = {"weights": identity_of_weights(str(staged))}
    for same in (same_weights, {"weights": None, "revision": "0" * 40}):
        path.write_text(json.dumps(results | same))
        stage(run, tmp_path / "same", results=[path])
        shutil.rmtree(tmp_path / "same")
    assert not folder.exists()
    path.write_text(json.dumps(results))
    stage(run, folder, results=[path])
    card = (folder / "README.md").read_text()
    assert "| mine.txt, all, documents, sequences of 1024 tokens, mixed precision 'bf16' | perplexity, left" in card
    with pytest.raises(ValueError, match=r"contains two results with the label"):
        stage(run, tmp_path / "twice", results=[path, path])
    documents = json.loads((run / "results.json").read_text())["corpus"]["train"]["documents"]
    assert f"unicode-names: {documents:,} documents" in card
    assert "type: Salesforce/wikitext" in card


# ------------------------------------------------------------------------------------------------------------- upload


@pytest.mark.parametrize("private", [True, False])
def test_a_push_replaces_all_files_unless_there_is_a_newer_commit(private: bool, tmp_path: Path, api: Mock) -> None:
    api.repo_info.return_value.private = private
    for name in ("README.md", "additional/template.jinja"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(name)
    assert publish.push(tmp_path, NAME, api, private) == "https://huggingface.co/commit"
    api.create_repo.assert_called_once_with(NAME, private=private, exist_ok=True)
    ((name, operations), options), *others = api.create_commit.call_args_list
    assert (name, options, others) == (NAME, {"commit_message": "Upload model", "parent_commit": "0" * 40}, [])
    files = {one.path_in_repo: getattr(one, "path_or_fileobj", None) for one in operations}
    new = {name: str(tmp_path / name) for name in ("README.md", "additional/template.jinja")}
    assert files == {"old/model.safetensors": None, **new}


def test_a_private_push_to_a_public_repository_is_an_error(tmp_path: Path, api: Mock) -> None:
    with pytest.raises(ValueError, match="exists and is public"):
        publish.push(tmp_path, NAME, api, private=True)
    api.create_commit.assert_not_called()


# ------------------------------------------------------------------------------------------------------------ command


def command(*arguments: object) -> None:
    publish.main([str(argument) for argument in arguments])


@pytest.mark.parametrize("is_kept", [True, False])
def test_without_push_nothing_is_sent(
    is_kept: bool,
    run: Path,
    api: Mock,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture,
) -> None:
    """The prepared files are kept with --output_dir only, and the output says which."""
    folders = []
    monkeypatch.setattr(publish, "check", folders.append)
    command(run, NAME, "--card", "quickstart", *(["--output_dir", tmp_path / "kept"] if is_kept else []))
    assert api.method_calls == []
    shown = capsys.readouterr().out
    assert f"Nothing was uploaded. Add --push to upload to {NAME}." in shown
    assert folders[0].exists() == is_kept
    if is_kept:
        kept = read_files(tmp_path / "kept")
        assert {"README.md", "LICENSE", "model.safetensors"} <= kept.keys()
        assert all(name in shown for name in kept)
        assert f"The files above are in {tmp_path / 'kept'}." in shown
    else:
        assert "The files above were deleted. Use --output_dir DIR to keep them." in shown


def test_push(run: Path, api: Mock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(publish, "check", lambda folder: None)  # tested above
    uploaded = []
    api.create_commit.side_effect = lambda _, operations, **__: (
        uploaded.extend(one.path_in_repo for one in operations) or Mock()
    )
    command(run, NAME, "--push")
    assert {"README.md", "model.safetensors"} <= set(uploaded)


def test_a_failed_check_sends_nothing(run: Path, api: Mock, monkeypatch: pytest.MonkeyPatch) -> None:
    stage = publish.stage

    def stage_and_damage(source: Path, repo_id: str, folder: Path, arguments: PublishArguments) -> None:
        stage(source, repo_id, folder, arguments)
        remove_code(folder)

    monkeypatch.setattr(publish, "stage", stage_and_damage)
    with pytest.raises(SystemExit, match="does not work in a new process"):
        command(run, NAME, "--push")
    assert api.method_calls == []


def test_wrong_arguments_are_errors(run: Path) -> None:
    with pytest.raises(SystemExit, match="error: Repo id must"):
        command(run, "a/b/c")
    with pytest.raises(SystemExit, match="error: REPO_ID must have the form OWNER/NAME"):
        command(run, "names")
    with pytest.raises(SystemExit, match="error: `private` has no effect without `push`"):
        command(run, NAME, "--private")


@pytest.mark.parametrize("error", [OSError("no network"), HfHubHTTPError("no token", response=Mock())])
def test_errors_of_the_hub_are_reported_in_one_line(
    error: Exception, run: Path, api: Mock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(publish, "check", lambda folder: None)
    api.create_repo.side_effect = error
    with pytest.raises(SystemExit, match=rf"^error: {error}$"):
        command(run, NAME, "--push")
