# Copyright 2026 The AO-GPT package authors.
# SPDX-License-Identifier: Apache-2.0
"""A run becomes a repository, works in a clean process, and reaches a Hub in one commit or not at all."""

import json
import shutil
from collections.abc import Callable, Iterator
from io import StringIO
from itertools import islice
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import torch
from huggingface_hub import HfApi, ModelCard, constants
from huggingface_hub.errors import HfHubHTTPError
from rich.console import Console
from safetensors.torch import load_file
from transformers import AutoTokenizer, GPT2Config, set_seed

import modeling_aogpt
from common.corpora import unicode_names
from common.models import identity_of_weights
from common.tokenization import train_tokenizer, vocabulary_arguments
from model_cards import publish
from model_cards.publish import PublishArguments
from modeling_aogpt import AOGPTConfig, AOGPTForAnyOrderLM, MDMEncoderConfig, MDMEncoderForMaskedLM
from tests.hub_server import Hub, Repository, running_hub

ROOT = Path(__file__).parents[1]
SIZES = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "max_position_embeddings": 16}
NAME = "somebody/names"


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run: a small model of names with its tokenizer, and results of the quickstart's format."""
    run = tmp_path_factory.mktemp("runs") / "run"
    tokenizer = train_tokenizer((name for _, name in islice(unicode_names(), 2000)), vocab_size=400)
    set_seed(0)
    model = AOGPTForAnyOrderLM(AOGPTConfig(**vocabulary_arguments(tokenizer), **SIZES, initializer_range=0.5))
    model.save_pretrained(run / "model")
    tokenizer.save_pretrained(run / "model")
    for name in ("results.json", "report.json"):
        shutil.copy(ROOT / "docs" / "results" / "quickstart" / name, run / name)
    return run


@pytest.fixture(scope="module")
def staged(run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("staged") / "repository"
    stage(run, folder, card="quickstart", max_shard_size="20KB")
    return folder


@pytest.fixture
def copied(staged: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(staged, tmp_path / "repository"))


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    with running_hub() as hub:
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
        monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)
        yield hub


@pytest.fixture
def api(hub: Hub) -> HfApi:
    return HfApi(endpoint=hub.endpoint, token="hf_test")


def stage(source: Path, folder: Path, **options: Any) -> None:
    publish.stage(source, NAME, folder, PublishArguments(**options))


def push(folder: Path, api: HfApi, **options: Any) -> str:
    return publish.push(folder, NAME, api, PublishArguments(push=True, **options))


def files_of(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


# ----------------------------------------------------------------------------------------------------------- staging


def test_a_repository_is_complete(staged: Path, run: Path) -> None:
    files = files_of(staged)
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


def test_the_card_shows_the_runs_own_figures(staged: Path) -> None:
    card = ModelCard.load(staged / "README.md")
    report = json.loads((ROOT / "docs/results/quickstart/report.json").read_text())["bits_per_byte"]
    values = {result.metric_name: result.metric_value for result in card.data.eval_results}
    assert values == {
        "bits per byte, left to right": report["left_to_right"],
        "bits per byte, random orders": report["any_order"],
    }
    assert "| learning rate | 0.004 |" in card.text
    assert "names of the characters in the Unicode database" in card.text  # the card's own words
    # Names are filled up with end-of-text in training: without it they would go on.
    assert card.text.count('padding="max_length", max_length=16, return_tensors') == 2


def test_a_runs_card_names_its_data_and_no_place_on_the_machine(run: Path, tmp_path: Path) -> None:
    copied = shutil.copytree(run, tmp_path / "run")
    results = json.loads((run / "results.json").read_text())
    results["arguments"]["corpus"] = [str(tmp_path / "mails.txt")]
    (copied / "results.json").write_text(json.dumps(results))
    stage(copied, tmp_path / "repository")
    files = files_of(tmp_path / "repository")
    assert b"mails.txt: 25,534 documents" in files["README.md"]
    assert not [name for name, content in files.items() if bytes(tmp_path) in content]


def test_a_model_folder_keeps_its_type_and_takes_a_tokenizer(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(publish, "identity_of_weights", None)  # without results there is nothing to tell apart
    publish.load_local(run / "model").to(torch.bfloat16).save_pretrained(tmp_path / "model")
    stage(tmp_path / "model", tmp_path / "repository", tokenizer=str(run / "model"))
    assert "| weights | bfloat16, safetensors |" in (tmp_path / "repository" / "README.md").read_text()
    assert {tensor.dtype for tensor in load_file(tmp_path / "repository" / "model.safetensors").values()} == {
        torch.bfloat16
    }


def test_pickled_weights_are_not_read(run: Path, tmp_path: Path) -> None:
    model = publish.load_local(run / "model")
    model.config.save_pretrained(tmp_path)
    torch.save(model.state_dict(), tmp_path / "pytorch_model.bin")
    with pytest.raises(ValueError, match=r"weights of .* are missing or damaged: .*safetensors"):
        publish.load_local(tmp_path)


def test_the_check_is_a_process_by_itself(staged: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a network, what others have cached or ask, the folder it was called in, or this environment's paths."""
    done = Mock(returncode=0, stdout='warned\n[["a", "b"]]\n')
    monkeypatch.setattr(publish.subprocess, "run", process := Mock(return_value=done))
    monkeypatch.delenv("HF_HUB_OFFLINE")
    monkeypatch.chdir(staged.parent)
    assert publish.check(Path(staged.name)) == [("a", "b")]
    (_, isolated, _, folder, _), options = process.call_args.args[0], process.call_args.kwargs
    temporary = Path(options["cwd"])
    assert isolated == "-I"
    assert folder == str(staged)
    assert options["stdin"] == publish.subprocess.DEVNULL
    assert options["env"]["HF_HUB_OFFLINE"] == "1"
    assert temporary in Path(options["env"]["HF_MODULES_CACHE"]).parents
    assert not temporary.exists()


@pytest.mark.parametrize("architecture", ["decoder", "encoder"])
def test_a_repository_works_in_a_clean_process(architecture: str, staged: Path, run: Path, tmp_path: Path) -> None:
    folder = staged
    if architecture == "encoder":
        tokenizer = AutoTokenizer.from_pretrained(run / "model")
        sizes = vocabulary_arguments(tokenizer)
        sizes["vocab_size"] += 1
        MDMEncoderForMaskedLM(MDMEncoderConfig(**sizes, **SIZES)).save_pretrained(tmp_path / "model")
        folder = tmp_path / "repository"
        stage(tmp_path / "model", folder, tokenizer=str(run / "model"))
    done = [what for what, _ in publish.check(folder)]
    expected = {
        "decoder": [
            "AutoTokenizer",
            "AutoModel -> AOGPTForAnyOrderLM",
            "AutoModelForCausalLM -> AOGPTForCausalLM",
            "AutoModelForMaskedLM -> AOGPTForMaskedLM",
            'pipeline("fill-mask")',
            'pipeline("text-generation")',
        ],
        "encoder": [
            "AutoTokenizer",
            "AutoModel -> MDMEncoderForMaskedLM",
            "AutoModelForMaskedLM -> MDMEncoderForMaskedLM",
            'pipeline("fill-mask")',
        ],
    }
    assert done == expected[architecture]


def remove_code(folder: Path) -> None:
    (folder / "orders.py").unlink()


def import_the_package(folder: Path) -> None:
    code = folder / "modeling_aogpt.py"
    code.write_text("from modeling_aogpt.orders import check_orders as _\n" + code.read_text())


def import_what_is_not_required(folder: Path) -> None:
    code = folder / "modeling_aogpt.py"
    code.write_text("import accelerate\n" + code.read_text())


def change_code(folder: Path) -> None:
    code = folder / "modeling_aogpt.py"
    code.write_text(code.read_text().replace("hidden_states + shift", "hidden_states - shift"))


def move_the_mask(folder: Path) -> None:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"mask_token_id": config["mask_token_id"] + 1}))


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (import_the_package, "modeling_aogpt"),
        (import_what_is_not_required, "accelerate"),
        (change_code, "not close"),
        (move_the_mask, "mask is not the model's"),
    ],
)
def test_the_check_finds(damage: Callable[[Path], None], message: str, copied: Path) -> None:
    damage(copied)
    with pytest.raises(ValueError, match=message):
        publish.check(copied)


def test_refuses_what_cannot_be_published(run: Path, tmp_path: Path) -> None:
    folder = tmp_path / "repository"
    with pytest.raises(ValueError, match="neither a finished run nor a model folder"):
        stage(tmp_path, folder)
    GPT2Config().save_pretrained(tmp_path / "gpt2")
    with pytest.raises(ValueError, match="is a model of type 'gpt2', not of this package"):
        stage(tmp_path / "gpt2", folder)
    bare = Path(shutil.copytree(run / "model", tmp_path / "bare"))
    for path in bare.glob("tokenizer*"):
        path.unlink()
    with pytest.raises(ValueError, match="has no tokenizer: name the one"):
        stage(bare, folder)
    config = json.loads((bare / "config.json").read_text())
    (bare / "config.json").write_text(json.dumps(config | {"mask_token_id": 500}))
    with pytest.raises(ValueError, match="has 400 tokens before its mask, but the model 500"):
        stage(bare, folder, tokenizer=str(run / "model"))
    (bare / "config.json").write_text(json.dumps(config | {"num_hidden_layers": 3}))
    with pytest.raises(ValueError, match=r"weights of .* are not those of its configuration"):
        stage(bare, folder, tokenizer=str(run / "model"))
    unfinished = tmp_path / "unfinished"
    shutil.copytree(run / "model", unfinished / "model")
    with pytest.raises(ValueError, match=r"has no results\.json; finish the run first"):
        stage(unfinished, folder)
    assert not folder.exists()
    (folder / "mine").mkdir(parents=True)
    with pytest.raises(ValueError, match="is not an empty folder"):
        stage(run, folder)


def test_results_are_the_models_own(run: Path, staged: Path, tmp_path: Path) -> None:
    folder, path = tmp_path / "repository", tmp_path / "zero_shot.json"
    figures = {"perplexity": 12.3456, "perplexity_standard_error": None}
    datasets = {
        "text files": {"files": ["mine.txt"], "measures": {"left_to_right": figures}},
        "wikitext2": {"split": "test", "measures": {"left_to_right": figures}},
    }
    model = publish.load_local(run / "model")
    results = {"model_type": "aogpt", "num_parameters": model.num_parameters(), "protocol": "clean"}
    other_weights = {"revision": None, "weights": "0123456789ab", "model": "another"}
    for other, message in (
        ({"model_type": "gpt2"}, "holds results of another model"),
        ({"num_parameters": 1}, "holds results of another model"),
        (other_weights, "holds results of other weights, those of another when it was scored"),
    ):
        path.write_text(json.dumps(results | other | {"arguments": {}, "datasets": datasets}))
        with pytest.raises(ValueError, match=message):
            stage(run, folder, results=[path])
    in_shards = {"weights": identity_of_weights(str(staged))}
    for same in (in_shards, {"weights": None, "revision": "0" * 40}):
        path.write_text(json.dumps(results | same | {"arguments": {}, "datasets": datasets}))
        stage(run, tmp_path / "same", results=[path])
        shutil.rmtree(tmp_path / "same")
    assert not folder.exists()
    path.write_text(json.dumps(results | {"arguments": {}, "datasets": datasets}))
    stage(run, folder, results=[path])
    card = (folder / "README.md").read_text()
    assert "| mine.txt, all, clean protocol | perplexity, left to right | 12.35 |" in card
    documents = json.loads((run / "results.json").read_text())["corpus"]["train"]["documents"]
    assert f"unicode-names: {documents:,} documents" in card
    assert (folder / ".eval_results" / "Salesforce--wikitext.yaml").is_file()


# ------------------------------------------------------------------------------------------------------------ upload


def test_a_push_is_one_commit_of_exactly_these_files(staged: Path, hub: Hub, api: HfApi) -> None:
    address = push(staged, api, private=True, tag="v1", message="First")
    repository = hub.repositories[NAME]
    assert repository.private
    assert repository.messages == ["initial commit", "First"]
    assert repository.files() == files_of(staged) | {".gitattributes": b"*.safetensors filter=lfs\n"}
    assert address.endswith(repository.branches["main"])
    assert repository.tags == {"v1": repository.branches["main"]}


def test_a_second_push_replaces_what_is_stale(staged: Path, copied: Path, hub: Hub, api: HfApi) -> None:
    push(staged, api)
    (copied / "LICENSE").unlink()
    (copied / "README.md").write_text((copied / "README.md").read_text() + "\nMore.\n")
    (copied / "pictures").mkdir()
    (copied / "pictures" / "one.png").write_bytes(b"1")
    uploads = sum(call.startswith("PUT") for call in hub.requests)
    push(copied, api)
    assert hub.repositories[NAME].files().keys() - {".gitattributes"} == files_of(copied).keys()
    assert hub.repositories[NAME].files()["README.md"].endswith(b"More.\n")
    assert sum(call.startswith("PUT") for call in hub.requests) == uploads  # weights that are there are not sent again


@pytest.mark.parametrize("refused", ["POST .*preupload", "POST .*lfs", "PUT .*", "POST .*commit", "POST .*validate"])
def test_a_push_that_fails_changes_nothing_and_the_next_goes_on(
    refused: str, staged: Path, copied: Path, hub: Hub, api: HfApi
) -> None:
    push(copied, api)
    before = dict(hub.repositories[NAME].branches)
    for shard in copied.glob("*.safetensors"):
        content = shard.read_bytes()
        shard.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    hub.refused = refused
    with pytest.raises((HfHubHTTPError, ValueError, RuntimeError)):
        push(copied, api, revision="next", tag="v2")
    assert hub.repositories[NAME].branches == before
    assert not hub.repositories[NAME].tags
    hub.refused = None
    stored = len(hub.blobs)
    hub.requests.clear()
    push(copied, api, revision="next", tag="v2")
    sent = sum(call.startswith("PUT") for call in hub.requests)
    assert sent == len(hub.blobs) - stored
    assert sent == (0 if "commit" in refused else len(list(copied.glob("*.safetensors"))))
    assert hub.repositories[NAME].files("next").keys() == hub.repositories[NAME].files().keys()
    assert hub.repositories[NAME].branches["main"] == before["main"]
    assert hub.repositories[NAME].tags == {"v2": hub.repositories[NAME].branches["next"]}


def test_an_interrupted_push_leaves_no_branch(
    staged: Path, hub: Hub, api: HfApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(api, "create_commit", Mock(side_effect=KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        push(staged, api, revision="next")
    assert list(hub.repositories[NAME].branches) == ["main"]


def test_a_branch_that_is_there_grows(staged: Path, copied: Path, hub: Hub, api: HfApi) -> None:
    push(staged, api, revision="next")
    (copied / "README.md").write_text((copied / "README.md").read_text() + "\nMore.\n")
    push(copied, api, revision="next")
    assert hub.repositories[NAME].files("next")["README.md"].endswith(b"More.\n")
    assert hub.repositories[NAME].files().keys() == {".gitattributes"}


def test_a_tag_that_is_taken_is_refused_before_anything_is_sent(staged: Path, hub: Hub, api: HfApi) -> None:
    push(staged, api, tag="v1")
    before = dict(hub.repositories[NAME].branches)
    hub.requests.clear()
    with pytest.raises(ValueError, match="has a tag 'v1' already"):
        push(staged, api, tag="v1")
    assert hub.repositories[NAME].branches == before
    assert not [call for call in hub.requests if "commit" in call or "PUT" in call]


def test_a_tag_that_fails_leaves_the_commit_and_says_so(staged: Path, hub: Hub, api: HfApi) -> None:
    hub.refused = "POST .*/tag/"
    with pytest.raises(RuntimeError, match=r"Uploaded: .*/commit/.*without the tag 'v1'"):
        push(staged, api, tag="v1")
    assert hub.repositories[NAME].files().keys() >= files_of(staged).keys()


def test_what_is_to_be_private_is_not_sent_to_a_public_repository(staged: Path, hub: Hub, api: HfApi) -> None:
    hub.repositories[NAME] = public = Repository(private=False)
    public.commit("main", {}, "initial commit")
    with pytest.raises(ValueError, match="is there already and public"):
        push(staged, api, private=True, revision="next")
    assert public.messages == ["initial commit"]
    assert list(public.branches) == ["main"]
    assert not [call for call in hub.requests if "upload" in call or "PUT" in call]
    public.private = True
    push(staged, api, private=True)
    assert len(public.messages) == 2


def test_somebody_elses_commit_in_the_meantime_is_not_overwritten(
    staged: Path, hub: Hub, api: HfApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    push(staged, api)
    real = api.create_commit

    def too_late(*arguments: object, **options: object) -> object:
        hub.repositories[NAME].commit("main", {"theirs": b"1"}, "theirs")
        return real(*arguments, **options)

    monkeypatch.setattr(api, "create_commit", too_late)
    (staged / "extra").write_text("new")
    try:
        with pytest.raises(HfHubHTTPError, match="412"):
            push(staged, api)
    finally:
        (staged / "extra").unlink()
    assert hub.repositories[NAME].files() == {"theirs": b"1"}


# ------------------------------------------------------------------------------------------------------- the command


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch, hub: Hub) -> Callable[..., None]:
    monkeypatch.setattr(publish, "HfApi", lambda: HfApi(endpoint=hub.endpoint, token="hf_test"))
    return lambda *arguments: publish.main([str(argument) for argument in arguments])


def test_without_push_nothing_is_sent(
    command: Callable[..., None],
    run: Path,
    hub: Hub,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture,
) -> None:
    monkeypatch.setattr(publish, "check", lambda folder: [("AutoModel", "loaded")])  # tested above
    command(run, NAME, "--card", "quickstart", "--output_dir", tmp_path / "kept")
    assert hub.requests == []
    shown = capsys.readouterr().out
    kept = files_of(tmp_path / "kept")
    assert {"README.md", "LICENSE", "model.safetensors"} <= kept.keys()
    assert all(name in shown for name in (*kept, "loaded"))
    assert "Nothing was sent" in shown


def test_options_reach_what_they_are_for(
    command: Callable[..., None], run: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    seen: list[tuple] = []
    monkeypatch.setattr(publish, "stage", lambda *given: seen.append(given))
    monkeypatch.setattr(publish, "check", lambda folder: [])
    monkeypatch.setattr(publish, "push", lambda *given: seen.append((*given[:2], *given[3:])))
    command(
        *(run, NAME, "--card", "mine.yaml", "--tokenizer", "gpt2", "--results", "a.json", "b.json"),
        *("--max_shard_size", "1GB", "--output_dir", tmp_path / "kept", "--push", "--tag", "v1"),
    )
    arguments = PublishArguments(
        *("mine.yaml", "gpt2", [Path("a.json"), Path("b.json")], "1GB", tmp_path / "kept"), push=True, tag="v1"
    )
    assert seen == [(run, NAME, tmp_path / "kept", arguments), (tmp_path / "kept", NAME, arguments)]


def test_what_is_shown_is_no_markup(tmp_path: Path) -> None:
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "[red]a").write_bytes(b" " * 1234)
    (tmp_path / "b").write_bytes(b" " * 1000)
    shown = StringIO()
    publish.show(tmp_path, [("AutoModel", "'[bold]text'")], Console(file=shown, width=200))
    for part in ("'[bold]text'", "code/[red]a", "1,234", "2 files", "2,234"):
        assert part in shown.getvalue()


def test_push(command: Callable[..., None], run: Path, hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(publish, "check", lambda folder: [])  # tested above
    command(run, NAME, "--push", "--private", "--revision", "trial", "--message", "Names")
    repository = hub.repositories[NAME]
    assert repository.private
    assert "README.md" in repository.files("trial")
    assert "README.md" not in repository.files("main")
    assert repository.messages[-1] == "Names"


def test_a_failed_check_sends_nothing(
    command: Callable[..., None], run: Path, hub: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage = publish.stage

    def stage_and_damage(source: Path, repo_id: str, folder: Path, arguments: PublishArguments) -> None:
        stage(source, repo_id, folder, arguments)
        remove_code(folder)

    monkeypatch.setattr(publish, "stage", stage_and_damage)
    with pytest.raises(SystemExit, match="does not work in a clean process"):
        command(run, NAME, "--push")
    assert hub.requests == []


def test_a_wrong_name_is_said_at_once(command: Callable[..., None], run: Path) -> None:
    with pytest.raises(SystemExit, match="error: Repo id must"):
        command(run, "a/b/c")
    with pytest.raises(SystemExit, match="error: names names no owner"):
        command(run, "names")


@pytest.mark.parametrize(
    ("endpoint", "token", "refused"),
    [("http://127.0.0.1:9", "hf_test", None), (None, True, None), (None, "hf_test", "PUT .*")],
    ids=["no connection", "no token", "an upload that breaks off"],
)
def test_what_goes_wrong_with_the_hub_is_said_in_a_line(
    endpoint: str | None,
    token: str | bool,
    refused: str | None,
    command: Callable[..., None],
    run: Path,
    hub: Hub,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    monkeypatch.setattr(publish, "check", lambda folder: [])
    monkeypatch.setattr(publish, "HfApi", lambda: HfApi(endpoint=endpoint or hub.endpoint, token=token))
    monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(tmp_path / "none"))
    monkeypatch.delenv("HF_TOKEN", raising=False)
    hub.refused = refused
    with pytest.raises(SystemExit, match=r"^error: "):
        command(run, NAME, "--push")


@pytest.mark.parametrize("option", ["--private", "--tag=v1", "--revision=trial", "--message=Names"])
def test_what_only_an_upload_heeds_needs_one(option: str) -> None:
    with pytest.raises(SystemExit, match=rf"^error: {option.partition('=')[0]} would change nothing: without --push"):
        publish.main(["run", NAME, option])
