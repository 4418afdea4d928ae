# Copyright 2026 The AO-GPT package authors. SPDX-License-Identifier: Apache-2.0
"""Conversion of causal language models to any-order models and back, against Transformers' own classes."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer, processors
from torch import nn
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoTokenizer,
    PreTrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerFast,
    Qwen2Tokenizer,
)

from common.models import save_model
from common.tokenizers import train_tokenizer, vocabulary_arguments
from modeling_aogpt import AOGPTConfig, AOGPTForAnyOrderLM, AOGPTForCausalLM
from modeling_aogpt.conversion import read_tensors
from modeling_aogpt.orders import random_orders
from tests.references import conditional, perturb_vectors, seeded
from training.conversion.causal_lm import convert, convert_model, find_start_token
from training.conversion.core import read_source_facts
from training.conversion.export_causal_lm import export, export_model

START, LENGTH = 13, 12

SIZES = {
    "vocab_size": 16,
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": LENGTH,
    "initializer_range": 0.4,
    "bos_token_id": START,
    "eos_token_id": START,
    "pad_token_id": None,
}
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 100.0,
    "factor": 4.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 6,
}
YARN = {"rope_type": "yarn", "rope_theta": 100.0, "factor": 2.0, "original_max_position_embeddings": 6}
FAMILIES = {
    "llama": {"model_type": "llama"},
    "llama, scaled, tied": {"model_type": "llama", "rope_parameters": LLAMA3, "tie_word_embeddings": True},
    "llama, biases, head width": {"model_type": "llama", "attention_bias": True, "mlp_bias": True, "head_dim": 6},
    "llama, linear": {
        "model_type": "llama",
        "rope_parameters": {"rope_type": "linear", "rope_theta": 9.0, "factor": 3.0},
    },
    "llama, dynamic": {
        "model_type": "llama",
        "rope_parameters": {"rope_type": "dynamic", "rope_theta": 9.0, "factor": 3.0},
    },
    "mistral": {"model_type": "mistral", "sliding_window": None, "head_dim": 6},
    "mistral, window": {"model_type": "mistral", "sliding_window": LENGTH},
    "qwen2": {"model_type": "qwen2", "tie_word_embeddings": True},
    "qwen2, yarn": {"model_type": "qwen2", "rope_parameters": YARN},
    "qwen3": {"model_type": "qwen3", "head_dim": 6},
    "smollm3": {"model_type": "smollm3", "no_rope_layer_interval": 2},
    "olmo": {"model_type": "olmo"},
    "gpt2": {"model_type": "gpt2", "n_inner": 24, "activation_function": "relu"},
}
families = pytest.mark.parametrize("family", FAMILIES)
rotary_families = pytest.mark.parametrize("family", [name for name in FAMILIES if name != "gpt2"])


def make_causal(family: str, **changes: object) -> PreTrainedModel:
    settings = SIZES | FAMILIES[family] | changes
    if settings["model_type"] == "gpt2":
        settings |= {"n_embd": 16, "n_layer": 2, "n_head": 4, "n_positions": LENGTH}
        settings = {name: value for name, value in settings.items() if not name.startswith(("num_", "hidden", "inter"))}
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(**settings)).eval()
    perturb_vectors(model)
    return model


@torch.no_grad()
def predict_left_to_right(causal: PreTrainedModel, ids: torch.LongTensor) -> torch.Tensor:
    return causal(torch.cat((torch.full_like(ids[:, :1], START), ids[:, :-1]), dim=1), use_cache=False).logits


def draw_ids(batch_size: int = 3) -> torch.LongTensor:
    return torch.randint(16, (batch_size, LENGTH), generator=seeded())


def train_in_any_order(model: AOGPTForAnyOrderLM, num_steps: int = 3) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(num_steps):
        ids, orders = draw_ids(), random_orders(3, LENGTH, generator=seeded(step))
        model(ids, orders, labels=ids).loss.backward()
        optimizer.step()
        optimizer.zero_grad()


@pytest.fixture
def exact_norms(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let Transformers compute norms in the dtype of the model. Otherwise they are in float32, even in float64."""
    monkeypatch.setattr(torch.Tensor, "to", keep_float64(torch.Tensor.to))


def keep_float64(to: object) -> object:
    def keep(tensor: torch.Tensor, *arguments: object, **options: object) -> torch.Tensor:
        is_cast = torch.float32 in (*arguments, *options.values())
        return tensor if tensor.dtype == torch.float64 and is_cast else to(tensor, *arguments, **options)

    return keep


@families
@torch.no_grad()
def test_left_to_right_predictions_do_not_change(family: str, request: pytest.FixtureRequest) -> None:
    causal, ids = make_causal(family), draw_ids()
    model = convert_model(causal, START)
    expected = predict_left_to_right(causal, ids)
    assert expected.std() > 0.3
    torch.testing.assert_close(model(ids).logits, expected, rtol=0, atol=1e-4)
    request.getfixturevalue("exact_norms")
    causal.double()
    if family != "gpt2":
        causal.model.rotary_emb.float()  # angles are computed in float32 in both models
    expected = predict_left_to_right(causal, ids)
    torch.testing.assert_close(model.double()(ids).logits, expected, rtol=0, atol=1e-9)


@families
@torch.no_grad()
def test_the_causal_view_of_a_converted_model_continues_as_the_source_does(family: str) -> None:
    causal = make_causal(family)
    model = convert_model(causal, START)
    view = AOGPTForCausalLM(model.config).eval()
    view.load_state_dict(model.state_dict())
    prompt, options = torch.tensor([[3, 1, 4]]), {"max_new_tokens": 6, "do_sample": False, "eos_token_id": None}
    expected = causal.generate(torch.tensor([[START, 3, 1, 4]]), **options)[:, 1:]
    assert torch.equal(view.generate(prompt, **options), expected)
    continued = model.generate(prompt, max_new_tokens=6, do_sample=False, stop_at_eos=False)
    assert torch.equal(continued, expected)


@pytest.mark.parametrize("vocab_size", [50257, 50304])
@torch.no_grad()
def test_the_loss_of_a_gpt2_does_not_change(vocab_size: int) -> None:
    """The logits are far below 0, as those of the released GPT-2 are. Any additional id would increase the loss."""
    causal, ids = make_causal("gpt2", vocab_size=vocab_size), draw_ids()
    causal.transformer.wte.weight[:, 0] = 1.0
    causal.transformer.ln_f.bias[0] = -40.0
    logits = predict_left_to_right(causal, ids)
    assert logits.mean() < -30
    model = convert_model(causal, START)
    assert model.config.vocab_size == vocab_size
    expected = nn.functional.cross_entropy(logits.flatten(0, 1), ids.flatten())
    torch.testing.assert_close(model(ids, labels=ids).loss, expected)


def test_target_injection_of_a_gpt2_has_no_effect_at_first_and_is_trained(caplog: pytest.LogCaptureFixture) -> None:
    causal, ids = make_causal("gpt2"), draw_ids()
    model = convert_model(causal, START)
    assert "MISSING" not in caplog.text  # Transformers reports weights that it initializes
    torch.testing.assert_close(model(ids).logits, predict_left_to_right(causal, ids), rtol=0, atol=1e-5)
    names = {name for name, _ in model.named_parameters() if "target_embeddings" in name or "modulation" in name}
    orders = random_orders(3, LENGTH, generator=seeded())
    before = model(ids, orders, labels=ids).loss
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for step in range(2):
        optimizer.zero_grad()
        model(ids, orders, labels=ids).loss.backward()
        untrained = {name for name, weight in model.named_parameters() if name in names and not weight.grad.any()}
        assert untrained <= ({"model.target_embeddings.weight"} if step == 0 else set())
        optimizer.step()
    assert model(ids, orders, labels=ids).loss < before


@rotary_families
def test_exported_models_predict_the_same_after_training_in_any_order(family: str) -> None:
    causal, ids = make_causal(family), draw_ids()
    model = convert_model(causal, START)
    untrained = export_model(model)
    assert type(untrained) is type(causal)
    assert str(untrained.config.dtype).removeprefix("torch.") == "float32"
    assert untrained.config.to_dict() | {"dtype": None} == causal.config.to_dict() | {"dtype": None}
    for name, weight in causal.state_dict().items():
        assert torch.equal(untrained.state_dict()[name], weight)
    before = model(ids).logits
    train_in_any_order(model)
    exported = export_model(model)
    expected = predict_left_to_right(exported, ids)
    assert (expected - before).abs().max() > 0.01
    torch.testing.assert_close(model(ids).logits, expected, rtol=0, atol=1e-4)


@rotary_families
def test_converted_models_predict_in_any_order_with_a_cache(family: str, request: pytest.FixtureRequest) -> None:
    """Generated log-probabilities equal full forward passes, and the likelihood; targets matter."""
    model = convert_model(make_causal(family), START).double()
    for arguments in ({}, {"num_steps": 4}, {"strategy": "speculative"}):
        output = model.generate(
            num_return_sequences=2, max_length=6, generator=seeded(), return_dict_in_generate=True, **arguments
        )
        for ids, order, steps, logprobs in zip(
            output.sequences, output.orders, output.unmasking_steps, output.token_logprobs, strict=True
        ):
            if ids[0] == START:  # a forward pass reads it as the start of the text
                continue
            for rank, target in enumerate(order.tolist()):
                before = order[:rank].tolist()
                if "num_steps" in arguments:
                    before = [p for p in before if steps[p] < steps[target]]
                context = tuple((p, ids[p].item()) for p in before)
                reference = conditional(model, context, target, 6)[ids[target]].log()
                assert abs(logprobs[target] - reference) < 1e-8
    ids = draw_ids(1).expand(2, -1)
    orders = torch.tensor([[*range(10), 10, 11], [*range(10), 11, 10]])
    logits = model(ids, orders).logits
    assert (logits[0, 10] - logits[1, 11]).abs().max() > 1e-3


def test_likelihoods_of_a_converted_model_are_those_of_the_source_and_of_generation() -> None:
    causal, ids = make_causal("qwen3"), draw_ids()
    model = convert_model(causal, START)
    expected = predict_left_to_right(causal, ids).log_softmax(dim=-1).gather(2, ids[..., None])[..., 0]
    scores = model.log_likelihood(ids)
    torch.testing.assert_close(scores.token_log_likelihood.float(), expected, rtol=0, atol=1e-4)
    output = model.generate(
        num_return_sequences=3,
        max_length=LENGTH,
        strategy="speculative",
        generator=seeded(),
        return_dict_in_generate=True,
    )
    assert output.num_forward_passes < LENGTH
    is_text = output.sequences[:, 0] != START
    assert is_text.any()
    scores = model.log_likelihood(output.sequences[is_text], orders=output.orders[is_text])
    torch.testing.assert_close(scores.token_log_likelihood, output.token_logprobs[is_text], rtol=0, atol=1e-4)


def test_lora_adapters_of_a_converted_model_are_trained_in_any_order_merged_and_exported() -> None:
    peft = pytest.importorskip("peft")
    model, ids = convert_model(make_causal("llama"), START), draw_ids()
    before = model(ids).logits
    settings = peft.LoraConfig(r=2, target_modules=["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "down_proj"])
    adapted = peft.get_peft_model(model, settings)
    torch.testing.assert_close(adapted(ids).logits, before)
    train_in_any_order(adapted)
    after = adapted(ids).logits
    assert (after - before).abs().max() > 0.01
    merged = adapted.merge_and_unload()
    exported = export_model(merged)
    assert exported.config.model_type == "llama"
    torch.testing.assert_close(predict_left_to_right(exported, ids), after, rtol=0, atol=1e-4)


def test_models_trained_from_scratch_with_known_layers_can_be_exported() -> None:
    layers = {
        "vocab_size": 16,
        "hidden_size": 16,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": LENGTH,
        "target_injection": "none",
        "position_encoding": "rotary",
        "gated_mlp": True,
        "hidden_act": "silu",
        "attention_bias": False,
        "attention_output_bias": False,
        "mlp_bias": False,
        "lm_head_bias": False,
        "start_token_id": START,
        "initializer_range": 0.4,
    }
    for changes, model_type in (
        ({}, "qwen3"),
        ({"qk_norm": False}, "llama"),
        ({"qk_norm": False, "attention_bias": True}, "qwen2"),
        ({"qk_norm": False, "attention_bias": True, "attention_output_bias": True, "mlp_bias": True}, "llama"),
    ):
        torch.manual_seed(0)
        model = AOGPTForAnyOrderLM(AOGPTConfig(**layers | changes)).eval()
        perturb_vectors(model)
        causal, ids = export_model(model), draw_ids()
        assert causal.config.model_type == model_type
        torch.testing.assert_close(predict_left_to_right(causal, ids), model(ids).logits, rtol=0, atol=1e-4)
    for changes, message in (
        ({"start_token_id": None}, "learned start embedding"),
        ({"gated_mlp": False}, "its layers are not those of a Llama"),
        ({"target_injection": "adaln"}, "target_injection='adaln'"),
    ):
        with pytest.raises(ValueError, match=message):
            export_model(AOGPTForAnyOrderLM(AOGPTConfig(**layers | changes)))


# ------------------------------------------------------------------------------------------------------------- folders

# Settings in the config.json of published models, with the names and values that Transformers wrote before version 5.
# Only sizes and token ids are smaller. Ratios of heads are kept.
LLAMA_SCALING = {"factor": 32.0, "high_freq_factor": 4.0, "low_freq_factor": 1.0, "rope_type": "llama3"}
PUBLISHED = {
    "Llama-3.2-1B-Instruct": {
        "model_type": "llama",
        "head_dim": 8,
        "num_key_value_heads": 1,
        "max_position_embeddings": 131072,
        "rope_theta": 500000.0,
        "rope_scaling": LLAMA_SCALING | {"original_max_position_embeddings": 8192},
        "tie_word_embeddings": True,
        "eos_token_id": [1, 8, 13],
        "pretraining_tp": 1,
    },
    "TinyLlama-1.1B": {"model_type": "llama", "rope_scaling": None, "rope_theta": 10000.0, "pretraining_tp": 1},
    "SmolLM2-135M": {
        "model_type": "llama",
        "num_attention_heads": 3,
        "num_key_value_heads": 1,
        "hidden_size": 24,
        "is_llama_config": True,
        "rope_interleaved": False,
        "rope_theta": 100000,
        "tie_word_embeddings": True,
    },
    "deepseek-coder-1.3b": {"model_type": "llama", "rope_scaling": {"factor": 4.0, "type": "linear"}, "vocab_size": 32},
    "Falcon3-1B": {"model_type": "llama", "activation": "swiglu", "head_dim": 8, "rope_theta": 1000042},
    "SmolLM3-3B": {
        "model_type": "smollm3",
        "layer_types": ["full_attention"] * 4,
        "no_rope_layers": [1, 1, 1, 0],
        "num_hidden_layers": 4,
        "max_window_layers": 28,
        "rope_theta": 5000000.0,
        "use_sliding_window": False,
        "tie_word_embeddings": True,
    },
    "Qwen2.5-7B-Instruct": {
        "model_type": "qwen2",
        "max_position_embeddings": 32768,
        "max_window_layers": 28,
        "num_hidden_layers": 3,
        "sliding_window": 131072,
        "use_sliding_window": False,
        "rope_theta": 1000000.0,
        "vocab_size": 32,
    },
    "Qwen2.5-7B-Instruct, YaRN": {
        "model_type": "qwen2",
        "max_position_embeddings": 131072,
        "rope_theta": 1000000.0,
        "rope_scaling": {"factor": 4.0, "original_max_position_embeddings": 32768, "type": "yarn"},
    },
    "Qwen3-4B": {
        "model_type": "qwen3",
        "head_dim": 10,
        "max_window_layers": 36,
        "rope_scaling": None,
        "rope_theta": 1000000,
        "sliding_window": None,
        "use_sliding_window": False,
        "tie_word_embeddings": True,
        "vocab_size": 32,
    },
    "Mistral-7B-v0.3": {"model_type": "mistral", "rope_theta": 1000000.0, "sliding_window": None},
    "OLMo-1B-hf": {"model_type": "olmo", "clip_qkv": None, "bos_token_id": None, "tie_word_embeddings": True},
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_configurations_of_published_models_are_converted_and_exported(name: str, source: Path, tmp_path: Path) -> None:
    for path in source.glob("*.safetensors*"):
        path.unlink()
    settings = SIZES | {"vocab_size": 17, "torch_dtype": "bfloat16", "transformers_version": "4.45.0"} | PUBLISHED[name]
    (source / "config.json").write_text(json.dumps(settings))
    (source / "generation_config.json").write_text(
        json.dumps({"eos_token_id": [8, 13], "top_p": 0.8, "do_sample": True})
    )
    torch.manual_seed(0)
    weights = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(source)).bfloat16().state_dict()
    if settings.get("tie_word_embeddings"):
        del weights["lm_head.weight"]
    weights = {key: weight.contiguous() for key, weight in weights.items()}
    weights["model.layers.0.self_attn.rotary_emb.inv_freq"] = torch.ones(2)  # in files of early versions
    save_file(weights, source / "model.safetensors", metadata={"format": "pt"})

    convert(str(source), tmp_path / "model")
    model = AOGPTForAnyOrderLM.from_pretrained(tmp_path / "model").eval()
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "model")
    assert (model.dtype, model.config.vocab_size) == (torch.bfloat16, settings["vocab_size"])
    assert tokenizer.mask_token_id == model.config.mask_token_id == 17
    assert model.config.eos_token_id == [13, 8]
    causal = AutoModelForCausalLM.from_pretrained(source, dtype=torch.float32)
    ids = draw_ids()
    torch.testing.assert_close(model.float()(ids).logits, predict_left_to_right(causal, ids), rtol=0, atol=1e-4)
    assert model.infill(f"ab{tokenizer.mask_token}c", tokenizer=tokenizer, lengths=[2]).sequences[
        0, [0, 1, 4]
    ].tolist() == [0, 1, 2]
    train_in_any_order(model)

    exported = export(str(tmp_path / "model"), tmp_path / "exported")
    for key, weight in weights.items():
        assert key not in exported.state_dict() or torch.equal(exported.state_dict()[key], weight)
    before, after = (AutoConfig.from_pretrained(path).to_dict() for path in (source, tmp_path / "exported"))
    ignored = {"_name_or_path": None, "architectures": None}
    assert after | ignored == before | ignored
    written = json.loads((tmp_path / "exported" / "config.json").read_text())  # read by Transformers 4 and others
    assert written["rope_theta"] == settings.get("rope_theta", 10000.0)
    assert bool(written["rope_scaling"]) == bool(scaling := settings.get("rope_scaling"))
    assert (
        not scaling
        or written["rope_scaling"].items() >= {key: scaling[key] for key in scaling.keys() - {"type"}}.items()
    )


@pytest.fixture
def source(tmp_path: Path, tiny_tokenizer: PreTrainedTokenizerFast) -> Path:
    """Return the folder of a Qwen3 in bfloat16, in two files, with a padded vocabulary and without a start token."""
    folder = tmp_path / "source"
    causal = make_causal("qwen3", bos_token_id=None, vocab_size=20, head_dim=6).bfloat16()
    causal.save_pretrained(folder, max_shard_size="4KB")
    assert len(list(folder.glob("*.safetensors"))) > 1
    tiny_tokenizer.mask_token = None
    tokenizer = tiny_tokenizer
    tokenizer.save_pretrained(folder)
    return folder


def test_folders_are_converted_and_exported(source: Path, tmp_path: Path) -> None:
    model = convert(str(source), tmp_path / "model")
    assert model.dtype == torch.bfloat16
    loaded = AOGPTForAnyOrderLM.from_pretrained(tmp_path / "model")
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "model")
    assert tokenizer.mask_token_id == loaded.config.mask_token_id == loaded.config.num_valid_tokens
    assert (loaded.config.start_token_id, loaded.config.vocab_size) == (START, 20)
    assert loaded.generate(max_length=4).max() < loaded.config.num_valid_tokens
    with pytest.raises(ValueError, match="exists and is not an empty folder"):
        convert(str(source), tmp_path / "model")

    with pytest.warns(UserWarning, match="start token"):  # which the tokenizer does not add
        export(str(tmp_path / "model"), tmp_path / "exported")
    original, exported = (AutoModelForCausalLM.from_pretrained(path) for path in (source, tmp_path / "exported"))
    assert type(original) is type(exported)
    assert exported.dtype == torch.bfloat16
    for name, weight in original.state_dict().items():
        assert torch.equal(exported.state_dict()[name], weight)
    before, after = (AutoTokenizer.from_pretrained(path) for path in (source, tmp_path / "exported"))
    assert after.get_vocab() == before.get_vocab()
    assert after.mask_token is None
    assert after("a b").input_ids == before("a b").input_ids
    assert not any("aogpt" in path.name for path in (tmp_path / "exported").iterdir())


def test_added_tokens_of_the_tokenizer_are_kept(source: Path, tmp_path: Path) -> None:
    """With an empty `added_tokens_decoder`, the tokenizer of Qwen would lose the tokens that are not special."""
    vocabulary = {letter: index for index, letter in enumerate("abcdefghijklmnop")}
    tokenizer = Qwen2Tokenizer(vocabulary, merges=[], unk_token=None, eos_token="<|endoftext|>")
    tokenizer.add_tokens(["<think>"])
    tokenizer.chat_template = "{{ messages }}"
    tokenizer.save_pretrained(source)
    model = convert(str(source), tmp_path / "model")
    export(str(tmp_path / "model"), tmp_path / "exported")
    before, after = (AutoTokenizer.from_pretrained(path) for path in (source, tmp_path / "exported"))
    assert before("a<think>").input_ids == after("a<think>").input_ids == [0, 17]
    assert after.get_vocab() == before.get_vocab()
    assert after.chat_template == before.chat_template
    assert model.config.mask_token_id == 18


@pytest.mark.parametrize("mask", ["a", "<m>", "<|mask|>"])
def test_the_mask_token_of_the_source_is_exported(mask: str, source: Path, tmp_path: Path) -> None:
    """`<m>` and `<|mask|>` have the highest id, so they also become the mask of the converted model."""
    tokenizer = AutoTokenizer.from_pretrained(source)
    tokenizer.add_special_tokens({"mask_token": mask})
    tokenizer.save_pretrained(source)
    model = convert(str(source), tmp_path / "model")
    assert model.config.mask_token_id == 17
    export(str(tmp_path / "model"), tmp_path / "exported")
    before, after = (AutoTokenizer.from_pretrained(path) for path in (source, tmp_path / "exported"))
    assert after.get_vocab() == before.get_vocab()
    assert (after.mask_token, after.mask_token_id) == (before.mask_token, before.mask_token_id)


@pytest.mark.parametrize("value", [torch.nan, torch.inf])
@pytest.mark.parametrize("family", ["llama", "gpt2"])
def test_weights_that_are_not_finite_are_named(family: str, value: float) -> None:
    causal = make_causal(family)
    name, weight = list(causal.named_parameters())[3]
    weight.data.view(-1)[5] = value
    with pytest.raises(ValueError, match=f"NaN or infinite values in {name}"):
        convert_model(causal, START)


def test_a_model_whose_weights_are_not_finite_is_not_exported() -> None:
    model = convert_model(make_causal("llama", vocab_size=1000), START)
    model.model.embed_tokens.weight.data[999] = torch.nan
    with pytest.raises(ValueError, match="NaN"):
        export_model(model)


@pytest.mark.parametrize(
    ("index", "message"),
    [
        ({"weight_map": {"w": "../secret/private.safetensors"}}, r"weight_map.*'\.\./secret"),
        ({"weight_map": {"w": "/secret/private.safetensors"}}, "weight_map.*'/secret"),
        ({"weight_map": {"w": ["model.safetensors"]}}, "weight_map"),
        ({"weight_map": ["model.safetensors"]}, "weight_map"),
        ({}, "weight_map"),
        ([], "not a JSON object"),
    ],
)
def test_an_index_names_files_in_its_folder(index: Any, message: str, source: Path, tmp_path: Path) -> None:
    for name in ("model.safetensors", "pytorch_model.bin"):
        path = source / f"{name}.index.json"
        content = path.read_text() if path.exists() else None
        path.write_text(json.dumps(index))
        with pytest.raises(ValueError, match=message):
            convert(str(source), tmp_path / "model")
        path.unlink() if content is None else path.write_text(content)
    (source / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(ValueError, match=message):
        read_tensors(source)


def test_an_adapter_must_be_merged_first(source: Path, tmp_path: Path) -> None:
    (tmp_path / "adapter").mkdir()
    (tmp_path / "adapter/adapter_config.json").write_text(json.dumps({"base_model_name_or_path": str(source)}))
    with pytest.raises(ValueError, match=r"is an adapter\. Merge it"):
        convert(str(tmp_path / "adapter"), tmp_path / "model")


def test_a_model_with_a_class_of_its_own_is_refused(source: Path, tmp_path: Path) -> None:
    """Diffusion models, such as DiffuLLaMA, can have the configuration of the causal model they were trained from."""
    path = source / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"architectures": ["DiscreteDiffusionModel"]}))
    with pytest.raises(ValueError, match=r"DiscreteDiffusionModel.* cannot be converted"):
        convert(str(source), tmp_path / "model")


def test_generation_settings_are_exported_and_all_ends_of_text_are_known(source: Path, tmp_path: Path) -> None:
    """Chat models have several ends of text, often only in generation_config.json."""
    settings = {"eos_token_id": [5, START], "do_sample": True, "temperature": 0.7, "repetition_penalty": 1.05}
    (source / "generation_config.json").write_text(json.dumps(settings))
    model = convert(str(source), tmp_path / "model")
    loaded = AOGPTForAnyOrderLM.from_pretrained(tmp_path / "model")
    assert model.config.eos_token_id == [START, 5]  # the first separates and pads documents in training
    assert loaded.config.eos_token_id == loaded.generation_config.eos_token_id == [START, 5]
    assert loaded.generation_config.temperature == 1.0
    assert loaded.generation_config.order == "left_to_right"
    export(str(tmp_path / "model"), tmp_path / "exported")
    exported = AutoModelForCausalLM.from_pretrained(tmp_path / "exported")
    assert exported.generation_config.to_dict().items() >= settings.items()
    assert not hasattr(exported.config, "generation_config")


@pytest.mark.parametrize("content", ["{", "[1]"])
def test_damaged_generation_settings_are_an_error(content: str, source: Path, tmp_path: Path) -> None:
    """Transformers ignores such a file, so ends of text would be lost."""
    (source / "generation_config.json").write_text(content)
    with pytest.raises(ValueError, match=r"generation_config\.json is (missing or )?damaged"):
        convert(str(source), tmp_path / "model")


def test_generation_settings_that_cannot_be_saved_are_not_exported(source: Path, tmp_path: Path) -> None:
    """Some published models set `temperature` together with `do_sample=False`."""
    settings = {"do_sample": False, "temperature": 0.9, "eos_token_id": [5, START]}
    (source / "generation_config.json").write_text(json.dumps(settings))
    convert(str(source), tmp_path / "model")
    exported = export(str(tmp_path / "model"), tmp_path / "exported")
    assert exported.generation_config.temperature is None
    assert exported.generation_config.eos_token_id == [5, START]


def test_an_export_whose_tokens_transformers_reads_differently_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Transformers reads the tokenizer of each Qwen2 as Qwen2's, with one token for each digit."""
    warnings: list[str] = []
    monkeypatch.setattr("modeling_aogpt.tokenization.logger.warning", warnings.append)
    tokenizer = train_tokenizer(["1234567"] * 9, 263)
    layers = {"target_injection": "none", "position_encoding": "rotary", "gated_mlp": True, "qk_norm": False}
    layers |= {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "start_token_id": 0}
    layers |= {"attention_output_bias": False, "mlp_bias": False, "lm_head_bias": False, "max_position_embeddings": 8}
    for has_bias in (False, True):
        config = AOGPTConfig(**layers, **vocabulary_arguments(tokenizer), attention_bias=has_bias)
        save_model(AOGPTForAnyOrderLM(config), tokenizer, tmp_path / f"model{has_bias}")
        export(str(tmp_path / f"model{has_bias}"), tmp_path / f"exported{has_bias}")
        assert len(warnings) == has_bias


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_conversion_and_export_do_not_copy_weights(dtype: torch.dtype) -> None:
    causal = make_causal("llama, scaled, tied")
    for weight in causal.parameters():  # but not the rotary frequencies
        weight.data = weight.data.to(dtype)
    expected = {name: weight.clone() for name, weight in causal.state_dict().items()}
    for step in (lambda model: convert_model(model, START), export_model):
        converted = step(causal)
        before, after = causal.state_dict(), converted.state_dict()
        for name, weight in expected.items():
            assert after[name].data_ptr() == before[name].data_ptr(), name
            assert after[name].dtype == dtype
            assert torch.equal(after[name], weight)
        causal = converted


def test_models_with_float64_weights_are_converted_and_exported() -> None:
    """Transformers computes norms and rotations in float32, so the predictions differ by rounding in float32."""
    model = convert_model(make_causal("llama").double(), START)
    assert model.dtype == export_model(model).dtype == torch.float64


def test_converted_models_remember_the_name_and_the_licence_of_their_source(source: Path, tmp_path: Path) -> None:
    """A path is private, so only names on the Hub are kept. The facts are not settings of the exported model."""
    (source / "README.md").write_text("---\nlicense: mit\n---\n# A model\n")
    config = convert(str(source), tmp_path / "model").config
    assert config.source_config["license"] == "mit"
    assert str(tmp_path) not in (tmp_path / "model" / "config.json").read_text()
    exported = export(str(tmp_path / "model"), tmp_path / "exported").config
    assert not hasattr(exported, "license")
    for text in ("---\nNote: not a card: a text\n---\n", "---\n- a list\n---\n", "---\nlicense: '[mit](x)'\n---\n"):
        (source / "README.md").write_text(text)
        assert read_source_facts(str(source)) == {}
    (source / "README.md").unlink()
    assert read_source_facts(str(source)) == {}


def test_converted_models_load_from_their_own_code_in_a_clean_process(source: Path, tmp_path: Path) -> None:
    convert(str(source), tmp_path / "model")
    program = (
        "import sys, torch, transformers; path = sys.argv[1];"
        "model = transformers.AutoModel.from_pretrained(path, trust_remote_code=True);"
        "causal = transformers.AutoModelForCausalLM.from_pretrained(path, trust_remote_code=True);"
        "print(model.generate(torch.tensor([[1, 2]]), max_new_tokens=3, do_sample=False).tolist());"
        "assert not any(name == 'modeling_aogpt' for name in sys.modules), sys.modules"
    )
    command = [sys.executable, "-I", "-c", program, str(tmp_path / "model")]
    result = subprocess.run(command, capture_output=True, text=True, check=True, cwd=tmp_path)
    model = AOGPTForAnyOrderLM.from_pretrained(tmp_path / "model")
    expected = model.generate(torch.tensor([[1, 2]]), max_new_tokens=3, do_sample=False)
    assert json.loads(result.stdout.splitlines()[-1]) == expected.tolist()


def test_a_mask_outside_the_table_is_not_written() -> None:
    """`AutoTokenizer` reads config.json without the code of this package, and would warn about such an id."""
    config = convert_model(make_causal("llama"), START).config
    assert config.mask_token_id == config.vocab_size == 16
    assert "mask_token_id" not in json.loads(config.to_json_string())
    assert AOGPTConfig.from_dict(json.loads(config.to_json_string())).mask_token_id == 16


def test_the_start_token_can_be_chosen(source: Path, tmp_path: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(source)
    config = AutoConfig.from_pretrained(source)
    assert find_start_token(config, tokenizer, "c") == 2
    assert find_start_token(config, tokenizer, None) == START
    with pytest.raises(ValueError, match="`start_token` must be in the vocabulary of"):
        convert(str(source), tmp_path / "model", start_token="zzz")
    added = Tokenizer.from_str(tokenizer.backend_tokenizer.to_str())
    added.post_processor = processors.TemplateProcessing("d $A", None, [("d", 3)])
    assert find_start_token(config, PreTrainedTokenizerFast(tokenizer_object=added, bos_token="c"), None) == 3
    tokenizer.eos_token = config.eos_token_id = None
    with pytest.raises(ValueError, match="Set `--start_token`"):
        find_start_token(config, tokenizer, None)


LONGROPE = {"short_factor": [1.0] * 2, "long_factor": [1.0] * 2, "original_max_position_embeddings": 6}


@pytest.mark.parametrize(
    ("family", "changes", "message"),
    [
        ("mistral", {"sliding_window": 5}, r"the last 5 tokens.* Set `--max_length` to 5"),
        ("mistral", {"sliding_window": 5, "layer_types": ["full_attention"] * 2}, "the last 5 tokens"),  # ignored
        (
            "llama",
            {"model_type": "granite", "attention_multiplier": 0.50001},
            "attention_multiplier=0.50001",
        ),  # a head has a width of 4
        ("llama", {"auto_map": {"AutoModel": "modeling.MyLlama"}}, "auto_map={'AutoModel'"),  # its code is not run
        ("llama", {"attention_chunk_size": 5}, "attention_chunk_size=5"),  # of the cache in generation
        pytest.param(
            *("llama", {"per_layer_config": {"1": {"skip": ["mlp"]}}}, "is_heterogeneous=True"),
            marks=pytest.mark.skipif(
                not hasattr(PreTrainedConfig, "is_heterogeneous"), reason="needs Transformers 5.24"
            ),
        ),
        ("qwen2", {"use_sliding_window": True, "sliding_window": 5, "max_window_layers": 1}, "the last 5 tokens"),
        ("olmo", {"clip_qkv": 3.0}, "clip_qkv=3.0"),
        ("gpt2", {"scale_attn_by_inverse_layer_idx": True}, "scale_attn_by_inverse_layer_idx=True"),
        ("llama", {"rope_parameters": LONGROPE | {"rope_type": "longrope", "rope_theta": 9.0}}, "rope_type"),
        (
            "mistral",
            {"model_type": "ministral3", "rope_parameters": YARN | {"llama_4_scaling_beta": 0.1}},
            "llama_4_scaling_beta",
        ),
    ],
)
def test_models_that_cannot_be_converted_are_refused_by_name(family: str, changes: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        convert_model(make_causal(family, **changes), START)


def test_a_window_is_converted_for_sequences_within_it() -> None:
    causal = make_causal("mistral", sliding_window=5)
    model = convert_model(causal, START, max_length=5)
    assert model.config.max_position_embeddings == 5
    ids = draw_ids()[:, :5]
    torch.testing.assert_close(model(ids).logits, predict_left_to_right(causal, ids), rtol=0, atol=1e-4)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("model_type", ["gemma", "phi3", "granite", "qwen3_moe", "olmo2", "apertus", "phi"])
def test_other_layers_are_refused(model_type: str, dtype: torch.dtype) -> None:
    config = AutoConfig.for_model(**SIZES | {"model_type": model_type, "head_dim": 4, "pad_token_id": 0})
    if model_type == "granite":
        config.residual_multiplier = 0.5
    torch.manual_seed(0)
    with pytest.raises(
        ValueError, match=r"cannot be converted|do not fit a Llama|logits of Transformers' (gemma|granite) .* differ by"
    ):
        convert_model(AutoModelForCausalLM.from_config(config).to(dtype).eval(), START)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model_type": "bert"}, "type 'bert' cannot be converted, .*no rope_parameters"),
        ({"model_type": "phi3", "pad_token_id": 0}, "type 'phi3'.* do not fit a Llama.*q_proj.weight is missing"),
        ({"model_type": "stablelm"}, "type 'stablelm' cannot be converted, .*no rms_norm_eps"),
        ({"model_type": "recurrent_gemma", "max_position_embeddings": "absent"}, "no max_position_embeddings"),
        ({"model_type": "clip"}, "type 'clip' cannot be converted, .*Unrecognized configuration"),  # no bos_token_id
        ({"model_type": "llama", "hidden_act": "swish_glu"}, "type 'llama' cannot be converted, .*KeyError"),
        ({"model_type": "llama", "vocab_size": "large"}, "configuration of .* cannot be used.*vocab_size"),
        ({"model_type": "granite", "embedding_multiplier": 12.0}, "Convert a model with `embedding_multiplier=1.0`"),
        ({"model_type": "llama", "quantization_config": {"quant_method": "fp8"}}, "`quantization_config=None`"),
        ({"model_type": "mistral", "sliding_window": 5}, "Set `--max_length` to 5 or less"),
        ({"model_type": "llama", "vocab_size": 16}, "has ids up to 16, but the embedding table of SOURCE has only 16"),
    ],
)
def test_models_are_refused_before_their_weights_are_loaded(
    changes: dict, message: str, source: Path, tmp_path: Path
) -> None:
    for path in source.glob("*.safetensors*"):
        path.unlink()
    settings = SIZES | {"bos_token_id": 1, "eos_token_id": 1} | changes
    settings = {name: value for name, value in settings.items() if value != "absent"}
    (source / "config.json").write_text(json.dumps(settings))
    with pytest.raises(ValueError, match=message):
        convert(str(source), tmp_path / "out")


def test_folders_without_a_model_are_errors(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"There is no model '.*nowhere'"):
        convert(str(tmp_path / "nowhere"), tmp_path / "out")
