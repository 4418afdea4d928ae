# Copyright 2026 The AO-GPT package authors. SPDX-License-Identifier: Apache-2.0
"""A saved folder loads through every Auto class without the package, and so does a folder saved from that model."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import set_seed

import modeling_aogpt
from modeling_aogpt import AOGPTConfig, AOGPTForAnyOrderLM, AOGPTForCausalLM, AOGPTForMaskedLM

SCRIPT = Path(__file__).parent / "fixtures" / "load_remotely.py"
PACKAGE = Path(modeling_aogpt.__file__).parent

CLASSES = {"released": AOGPTForAnyOrderLM, "tied": AOGPTForMaskedLM, "rotary": AOGPTForCausalLM}
SIZES = {"vocab_size": 16, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}
VARIANTS = {
    "released": {"target_injection": "adaln", "position_encoding": "learned"},
    "tied": {
        **{"target_injection": "input", "norm": "layernorm", "tie_word_embeddings": True, "lm_head_bias": False},
        **{"max_gap_length": 3, "eos_token_id": 0},
    },
    "rotary": {"target_injection": "per_layer", "position_encoding": "rotary"},
}
FOLDERS = [*VARIANTS, "sharded", "hub"]
RESAVED = ["released-any", "released-masked", "released-causal", "tied-any", "tied-masked", "tied-causal", "hub-any"]

# A Hub repository as it is stored in the cache after a download.
REPOSITORY = "somebody/hub"
SNAPSHOT = Path("cache", "models--somebody--hub", "snapshots", "0" * 40)


def variant_of(folder: str) -> str:
    name = folder.partition("-")[0]
    return name if name in VARIANTS else "released"


def path_of(root: Path, folder: str) -> Path:
    if folder in RESAVED:
        return root / "resaved" / folder
    return root / (SNAPSHOT if folder == "hub" else folder)


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with inputs and a model of each variant and class, one also in shards and as a Hub repository."""
    root = tmp_path_factory.mktemp("remote")
    for name, options in VARIANTS.items():
        set_seed(0)
        config = AOGPTConfig(**SIZES, max_position_embeddings=12, initializer_range=0.5, **options)
        model = CLASSES[name](config)
        model.save_pretrained(root / name)
        if name == "released":
            model.save_pretrained(root / "sharded", max_shard_size="10kB")
            model.save_pretrained(root / SNAPSHOT)
            main = root / SNAPSHOT.parents[1] / "refs" / "main"
            main.parent.mkdir()
            main.write_text(SNAPSHOT.name)
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(16, (3, 12), generator=generator)
    orders = torch.stack([torch.randperm(12, generator=generator) for _ in ids])
    is_masked = torch.rand(ids.shape, generator=generator) < 0.5
    inputs = {"input_ids": ids, "orders": orders, "masked_ids": ids.masked_fill(is_masked, config.mask_token_id)}
    torch.save(inputs, root / "inputs.pt")
    return root


def load_remotely(root: Path, folders: list[Path | str], resaved: Path) -> dict[str, dict[str, Any]]:
    """Return the results of a new process that loads the folders with an empty cache of remote code."""
    empty, results = resaved / "empty", resaved / "results.pt"
    empty.mkdir(parents=True)
    command = [sys.executable, "-I", SCRIPT, root / "inputs.pt", results, resaved, *folders]
    environment = os.environ | {"HF_MODULES_CACHE": str(resaved / "modules"), "HF_HUB_CACHE": str(root / "cache")}
    process = subprocess.run(command, cwd=empty, env=environment, capture_output=True, text=True, check=False)
    assert process.returncode == 0, process.stderr
    return torch.load(results)


@pytest.fixture(scope="module")
def first(root: Path) -> dict[str, dict[str, Any]]:
    folders = [REPOSITORY if name == "hub" else root / name for name in FOLDERS]
    return load_remotely(root, folders, root / "resaved")


@pytest.fixture(scope="module")
def second(root: Path, first: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    return load_remotely(root, [path_of(root, name) for name in RESAVED], root / "resaved_again")


@pytest.fixture(params=[*FOLDERS, *RESAVED])
def folder(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
def results(folder: str, request: pytest.FixtureRequest) -> dict[str, Any]:
    return request.getfixturevalue("first" if folder in FOLDERS else "second")[folder]


@pytest.fixture
def inputs(root: Path) -> dict[str, torch.Tensor]:
    return torch.load(root / "inputs.pt")


def load_here(auto_class: type, root: Path, folder: str) -> Any:
    return auto_class.from_pretrained(root / variant_of(folder)).eval()


def test_every_auto_class_loads_its_class(results: dict[str, Any], folder: str) -> None:
    assert results["config"] == "AOGPTConfig"
    names = {"any": "AOGPTForAnyOrderLM", "masked": "AOGPTForMaskedLM", "causal": "AOGPTForCausalLM"}
    assert results["class"] == names
    is_tied = variant_of(folder) == "tied"
    assert set(results["is_tied"].values()) == {is_tied}
    assert results["max_gap_length"] == (3 if is_tied else None)


@torch.no_grad()
def test_the_any_order_model_gives_the_same_results(
    results: dict[str, Any], folder: str, root: Path, inputs: dict[str, torch.Tensor]
) -> None:
    model = load_here(AOGPTForAnyOrderLM, root, folder)
    ids, orders, masked_ids = inputs["input_ids"], inputs["orders"], inputs["masked_ids"]
    expected = model(ids, orders=orders).logits
    torch.testing.assert_close(results["any"], model(ids).logits)
    torch.testing.assert_close(results["given_order"], expected)
    torch.testing.assert_close(results["log_likelihood"], model.log_likelihood(ids, orders=orders).log_likelihood)
    generator = torch.Generator().manual_seed(0)
    assert torch.equal(results["sequences"], model.generate(masked_ids, num_steps=3, generator=generator))
    torch.testing.assert_close(results["device_map=cpu"], expected)
    torch.testing.assert_close(results["device_map=auto"], expected, rtol=1e-3, atol=1e-3)  # on any device
    assert results["bfloat16"].dtype == torch.bfloat16
    assert (results["bfloat16"] - expected).abs().max() < 0.1 * expected.abs().max()
    assert results["meta"] == {name: tensor.shape for name, tensor in model.state_dict().items()}


@torch.no_grad()
def test_the_masked_lm_gives_the_same_results(
    results: dict[str, Any], folder: str, root: Path, inputs: dict[str, torch.Tensor]
) -> None:
    model = load_here(AOGPTForMaskedLM, root, folder)
    torch.testing.assert_close(results["masked"], model(inputs["masked_ids"]).logits)


@torch.no_grad()
def test_the_causal_lm_gives_the_same_results(
    results: dict[str, Any], folder: str, root: Path, inputs: dict[str, torch.Tensor]
) -> None:
    model = load_here(AOGPTForCausalLM, root, folder)
    ids = inputs["input_ids"]
    torch.testing.assert_close(results["causal"], model(ids).logits, equal_nan=True)
    assert torch.equal(results["causal_sequences"], model.generate(ids[:, :3], max_length=12, do_sample=False))


@pytest.mark.parametrize("folder", [*FOLDERS[:-1], *RESAVED])
def test_the_code_in_the_folder_is_that_of_the_package(folder: str, root: Path, second: object) -> None:
    """The files are equal byte for byte, and the configuration names files of the folder itself."""
    path = path_of(root, folder)
    code = sorted(path.glob("*.py"))
    assert {"configuration_aogpt.py", "modeling_aogpt.py"} <= {file.name for file in code}
    assert all(file.read_bytes() == (PACKAGE / file.name).read_bytes() for file in code)
    auto_map = json.loads((path / "config.json").read_text())["auto_map"]
    assert auto_map == {
        "AutoConfig": "configuration_aogpt.AOGPTConfig",
        "AutoModel": "modeling_aogpt.AOGPTForAnyOrderLM",
        "AutoModelForMaskedLM": "modeling_aogpt.AOGPTForMaskedLM",
        "AutoModelForCausalLM": "modeling_aogpt.AOGPTForCausalLM",
    }


def test_a_sharded_folder_has_shards(root: Path) -> None:
    assert len(list((root / "sharded").glob("model-*.safetensors"))) > 2
    assert not (root / "sharded" / "model.safetensors").exists()
