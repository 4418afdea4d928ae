# Copyright 2026 The AO-GPT package authors. SPDX-License-Identifier: Apache-2.0
"""Shared fixtures and settings: no network, one thread (small models gain nothing from more)."""

import os

# Set before torch and transformers are imported, which read them once. Child processes inherit them.
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["TOKENIZERS_PARALLELISM"] = "false"
os.environ["OMP_NUM_THREADS"] = "1"

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast, set_seed

from modeling_aogpt import AOGPTConfig, AOGPTForAnyOrderLM, AOGPTForCausalLM
from tests.references import SIZES, perturb_vectors, save_judge, seeded, with_class

FIXTURES = Path(__file__).parent / "fixtures"


@pytest.fixture
def datasets_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Use an empty cache."""
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path / "cache")


@pytest.fixture
def saved_figures(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Return a list of the figures that matplotlib saves."""
    figure = pytest.importorskip("matplotlib.figure").Figure
    figures, save = [], figure.savefig

    def record(self: Any, *arguments: Any, **options: Any) -> None:
        figures.append(self)
        save(self, *arguments, **options)

    monkeypatch.setattr(figure, "savefig", record)
    return figures


@pytest.fixture
def large_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """
    Compute the logits of thousands of tiny sequences at once.

    The default chunks, made for large vocabularies, take many times as long. `test_chunks_do_not_change_samples` in
    test_sampling.py checks that chunks do not change the samples.
    """
    monkeypatch.setattr("modeling_aogpt.sampling.ROWS_ON_CPU", 2**16)
    monkeypatch.setattr("modeling_aogpt.sampling.ROWS_PER_HEAD_CALL", 2**16)


@pytest.fixture
def ids() -> torch.LongTensor:
    """Return three sequences of `random_model`."""
    return torch.randint(0, 11, (3, 12), generator=seeded(1))


@pytest.fixture
def causal(any_order: AOGPTForAnyOrderLM) -> AOGPTForCausalLM:
    """Return a causal language model with the weights of the fixture `any_order` of the test file."""
    return with_class(any_order, AOGPTForCausalLM)


@pytest.fixture
def tiny_config() -> AOGPTConfig:
    """Return a configuration of the released architecture with 16 ids and at most 12 positions."""
    return AOGPTConfig(vocab_size=16, **SIZES | {"initializer_range": 0.5})


@pytest.fixture
def tiny_model(tiny_config: AOGPTConfig) -> AOGPTForAnyOrderLM:
    """Return a model of `tiny_config` in evaluation mode with random weights, biases and norms."""
    set_seed(0)
    model = AOGPTForAnyOrderLM(tiny_config).eval()
    perturb_vectors(model)
    return model


@pytest.fixture
def tiny_tokenizer() -> PreTrainedTokenizerFast:
    """Return a tokenizer of the letters a to m, then end-of-text (13), padding (14), unknown (15) and mask (16)."""
    vocabulary = {letter: index for index, letter in enumerate("abcdefghijklm")}
    tokenizer = Tokenizer(models.WordLevel(vocabulary | {"<eos>": 13, "<pad>": 14, "<unk>": 15}, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, eos_token="<eos>", pad_token="<pad>", unk_token="<unk>", mask_token="<mask>"
    )


@pytest.fixture
def folder(tiny_model: AOGPTForAnyOrderLM, tiny_tokenizer: PreTrainedTokenizerFast, tmp_path: Path) -> str:
    """Return a folder with `tiny_model` and `tiny_tokenizer`."""
    tiny_model.save_pretrained(tmp_path / "model")
    tiny_tokenizer.save_pretrained(tmp_path / "model")
    return str(tmp_path / "model")


@pytest.fixture
def judge(tiny_tokenizer: PreTrainedTokenizerFast, tmp_path: Path) -> str:
    """Return a folder with a tiny GPT-2 and `tiny_tokenizer`."""
    return save_judge(tmp_path / "judge", tiny_tokenizer)


@pytest.fixture(params=["aogpt", "sigmagpt"])
def released_name(request: pytest.FixtureRequest) -> str:
    """Return an architecture with moving averages and golden values of the authors' code in tests/fixtures."""
    return request.param


@pytest.fixture
def released(released_name: str) -> dict[str, Any]:
    """
    Return the content of a released checkpoint file.

    Its moving averages are those that the golden values were computed with. Its live weights, which tests/fixtures does
    not contain, are the averages plus noise.
    """
    with safe_open(FIXTURES / f"{released_name}_ema.safetensors", framework="pt") as file:
        names = json.loads(file.metadata()["names"])
        averages = [file.get_tensor(name) for name in names]
        settings = json.loads(file.metadata()["model_args"])
    generator = torch.Generator().manual_seed(0)
    live = [average + 0.1 * torch.randn(average.shape, generator=generator) for average in averages]
    weights = dict(zip(names, live, strict=True))
    if released_name == "sigmagpt":
        weights["lm_head.weight"] = weights["transformer.wte.weight"]
    return {
        "model": weights,
        "ema_model": {"decay": 0.9999, "num_updates": 0, "shadow_params": averages},
        "ema_rate": 0.9999,
        "optimizer": {"state": {}, "param_groups": []},
        "model_args": settings,
        "iter_num": 250_000,
        "config": {"random_ratio": 0.9},
    }
