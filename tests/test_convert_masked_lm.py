# Copyright 2026 The AO-GPT package authors. SPDX-License-Identifier: Apache-2.0
"""
Conversion of masked diffusion models with the layers of a Llama or Qwen, against Transformers' own classes.

The golden values of LLaDA and Dream are float32 outputs of the authors' code at some positions of three sequences.
"""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import AutoModelForMaskedLM, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerFast

from model_cards.publish import default_card
from modeling_aogpt import MDMEncoderConfig, MDMEncoderForMaskedLM
from tests.references import network_output, seeded
from tests.test_convert_causal_lm import LENGTH, make_causal
from training.conversion import masked_lm
from training.conversion.masked_lm import convert, convert_model

FIXTURES = Path(__file__).parent / "fixtures"
OLD_MASK, NUM_TOKENS = 96, 100  # of the LLaDA; Dream has the same mask
FAMILIES = ("llama", "llama, biases, head width", "qwen2", "qwen3")


def make_tokenizer(num_tokens: int, **special: int) -> PreTrainedTokenizerFast:
    """Return a tokenizer of the words t0, t1, ..., some of which are special tokens."""
    tokenizer = Tokenizer(models.WordLevel({f"t{id}": id for id in range(num_tokens)}, unk_token="t0"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokens = {name: f"t{id}" for name, id in special.items()}
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, **tokens)


def read_settings(name: str) -> dict[str, Any]:
    with safe_open(FIXTURES / f"{name}_model.safetensors", framework="pt") as file:
        return json.loads(file.metadata()["config"])


@pytest.fixture
def llada(tmp_path: Path) -> Path:
    """Return the folder of a LLaDA, whose mask is not the last token."""
    folder = tmp_path / "llada"
    make_tokenizer(NUM_TOKENS, eos_token=81).save_pretrained(folder)
    (folder / "config.json").write_text(json.dumps(read_settings("llada")))
    tensors = load_file(FIXTURES / "llada_model.safetensors")
    files = {name: f"model-{number % 2}.safetensors" for number, name in enumerate(sorted(tensors))}
    for file in set(files.values()):
        save_file({name: tensors[name] for name in tensors if files[name] == file}, folder / file)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": files}))
    save_file({name: 0 * tensor for name, tensor in tensors.items()}, folder / "pytorch_model.safetensors")  # not used
    return folder


def change_settings(folder: Path, **changes: Any) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def save_dllm(causal: PreTrainedModel, folder: Path, **changes: Any) -> None:
    """Save a causal language model as dLLM does, with a tokenizer of 16 tokens, of which the last is the mask."""
    causal.save_pretrained(folder)
    kind = causal.config.model_type
    change_settings(folder, **{"model_type": f"a2d-{kind}", "architectures": ["A2DModel"]} | changes)
    make_tokenizer(16, eos_token=13, mask_token=15).save_pretrained(folder)


@torch.no_grad()
def full_attention_logits(causal: PreTrainedModel, ids: torch.LongTensor) -> torch.Tensor:
    causal.set_attn_implementation("eager")
    return causal(ids, attention_mask=torch.zeros(1, 1, ids.shape[1], ids.shape[1]), use_cache=False).logits


@pytest.mark.parametrize("name", ["llada", "dream"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@torch.no_grad()
def test_outputs_equal_those_of_the_authors_code(name: str, dtype: torch.dtype) -> None:
    tensors = load_file(FIXTURES / f"{name}_model.safetensors")
    model = convert_model(read_settings(name), tensors, OLD_MASK, OLD_MASK).to(dtype)
    golden = load_file(FIXTURES / f"{name}_golden.safetensors")
    logits = network_output(model, golden["input_ids"])[:, golden["positions"]]
    torch.testing.assert_close(logits, golden["logits"], rtol=0, atol=1e-5, check_dtype=False)


@torch.no_grad()
def test_a_llada_gets_a_mask_with_the_highest_id(llada: Path, tmp_path: Path) -> None:
    convert(str(llada), tmp_path / "model")
    model = AutoModelForMaskedLM.from_pretrained(tmp_path / "model")
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "model")
    assert isinstance(model, MDMEncoderForMaskedLM)
    assert tokenizer.mask_token_id == model.config.mask_token_id == model.config.num_valid_tokens == NUM_TOKENS
    assert (model.config.vocab_size, model.config.max_position_embeddings) == (128, 64)
    golden = load_file(FIXTURES / "llada_golden.safetensors")
    ids = golden["input_ids"].masked_fill(golden["input_ids"] == OLD_MASK, NUM_TOKENS)
    logits = network_output(model, ids)[:, golden["positions"]]
    torch.testing.assert_close(logits, golden["logits"], rtol=0, atol=1e-5)

    model.lm_head.weight[OLD_MASK] = 100 * model.lm_head.weight.abs().amax(dim=0)  # would often be the likeliest
    filled = model.generate(ids, num_steps=4, generator=seeded())
    assert (filled < NUM_TOKENS).all()
    assert not (filled == OLD_MASK).any()
    assert (model.generate(ids, num_steps=4, generator=seeded(), suppress_tokens=None) == OLD_MASK).any()
    assert model.generation_config.eos_token_id == 81
    assert default_card(model.config, is_left_to_right=False) == "converted_masked"


@pytest.fixture
def dream(tmp_path: Path) -> Path:
    """Return the folder of a Dream, whose tokenizer has a class of its own. Its tokens are 93 bytes and 4 others."""
    folder = tmp_path / "dream"
    folder.mkdir()
    characters = [chr(id + 33) for id in range(93)]
    (folder / "vocab.json").write_text(json.dumps({character: id for id, character in enumerate(characters)}))
    (folder / "merges.txt").write_text("#version: 0.2\n")
    special = {93: "<|endoftext|>", 94: "<|im_start|>", 95: "<|beginoftext|>", OLD_MASK: "<|mask|>"}
    settings = {
        "added_tokens_decoder": {
            id: {"content": token, "lstrip": False, "normalized": False, "rstrip": False, "single_word": False,
                 "special": True}
            for id, token in special.items()
        },
        "auto_map": {"AutoTokenizer": ["tokenization_dream.DreamTokenizer", None]},
        "tokenizer_class": "DreamTokenizer",
        "bos_token": "<|beginoftext|>", "eos_token": "<|endoftext|>", "pad_token": "<|endoftext|>",
        "mask_token": "<|mask|>", "unk_token": None,
    }  # fmt: skip
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    (folder / "config.json").write_text(json.dumps(read_settings("dream")))
    save_file(load_file(FIXTURES / "dream_model.safetensors"), folder / "model.safetensors")
    return folder


@torch.no_grad()
def test_a_dream_is_converted_with_its_tokenizer(dream: Path, tmp_path: Path) -> None:
    convert(str(dream), tmp_path / "model")
    model = AutoModelForMaskedLM.from_pretrained(tmp_path / "model")
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "model")
    assert model.config.shift_predictions
    assert (tokenizer.mask_token, tokenizer.mask_token_id, tokenizer.eos_token_id) == ("<|mask|>", OLD_MASK, 93)
    assert model.generation_config.suppress_tokens is None
    assert tokenizer("ab<|mask|>c").input_ids == [64, 65, OLD_MASK, 66]
    golden = load_file(FIXTURES / "dream_golden.safetensors")
    ids = golden["input_ids"]
    logits = network_output(model, ids)[:, golden["positions"]]
    torch.testing.assert_close(logits, golden["logits"], rtol=0, atol=1e-5)

    # In generation and likelihoods, too, each position is predicted by the row before it.
    filled = model.generate(ids, do_sample=False, unmasking="fixed_count", num_steps=1)
    is_masked = ids == OLD_MASK
    assert torch.equal(filled[is_masked], network_output(model, ids)[..., :OLD_MASK].argmax(dim=-1)[is_masked])
    scores = model.log_likelihood(filled, targets=is_masked, num_times=2, generator=seeded())
    assert scores.log_likelihood.isfinite().all()


@torch.no_grad()
def test_shifted_predictions_skip_padding(dream: Path, tmp_path: Path) -> None:
    model = convert(str(dream), tmp_path / "model")
    ids = load_file(FIXTURES / "dream_golden.safetensors")["input_ids"][:1, :6]
    expected = network_output(model, ids)
    padded, mask = torch.full((1, 9), 93), torch.zeros(1, 9, dtype=torch.long)
    columns = torch.tensor([1, 2, 4, 5, 6, 8])
    padded[:, columns], mask[:, columns] = ids, 1
    output = model.apply_head(model.model(padded, attention_mask=mask).last_hidden_state)[:, columns]
    torch.testing.assert_close(output, expected, rtol=0, atol=1e-5)


def test_shifted_predictions_need_rows_without_targets() -> None:
    with pytest.raises(ValueError, match="`shift_predictions` needs"):
        MDMEncoderConfig(shift_predictions=True)
    with pytest.raises(ValueError, match="`shift_predictions` must be"):
        MDMEncoderConfig(shift_predictions=1, target_injection="none")


@torch.no_grad()
def generate_as_llada(
    model: MDMEncoderForMaskedLM, prompt: torch.LongTensor, gen_length: int, block_length: int, steps: int
) -> torch.LongTensor:
    """Return what LLaDA's `generate` returns at temperature 0, with `remasking="low_confidence"`."""
    ids = torch.cat((prompt, prompt.new_full((len(prompt), gen_length), NUM_TOKENS)), dim=1)
    tokens_per_step = gen_length // steps
    for block_end in range(prompt.shape[1] + block_length, ids.shape[1] + 1, block_length):
        for _ in range(block_length // tokens_per_step):
            logits = network_output(model, ids)[..., :NUM_TOKENS]
            logits[..., OLD_MASK] = -torch.inf
            confidence, tokens = logits.double().softmax(dim=-1).max(dim=-1)
            confidence[ids != NUM_TOKENS] = -torch.inf
            confidence[:, block_end:] = -torch.inf
            chosen = confidence.topk(tokens_per_step).indices
            ids.scatter_(1, chosen, tokens.gather(1, chosen))
    return ids


@pytest.mark.parametrize("steps", [16, 8])
def test_a_llada_generates_as_with_its_own_function(steps: int, llada: Path, tmp_path: Path) -> None:
    model = convert(str(llada), tmp_path / "model")
    prompt = torch.randint(96, (6, 8), generator=seeded())
    ids = model.generate(
        prompt, max_new_tokens=16, block_length=8, num_steps=steps, unmasking="fixed_count", order="confidence",
        do_sample=False, stop_at_eos=False,
    )  # fmt: skip
    assert torch.equal(ids, generate_as_llada(model, prompt, 16, 8, steps))


@pytest.mark.parametrize("max_length", [None, LENGTH - 2])
@pytest.mark.parametrize("family", FAMILIES)
def test_models_of_dllm_predict_the_same(
    family: str, max_length: int | None, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    causal = make_causal(family)
    save_dllm(causal, tmp_path / "source")
    model = convert(str(tmp_path / "source"), tmp_path / "model", max_length)
    assert "a2d" not in caplog.text  # Transformers does not know this type of model
    assert (model.config.mask_token_id, model.config.num_valid_tokens) == (15, 15)
    assert model.config.max_position_embeddings == (max_length or LENGTH)
    assert model.generation_config.suppress_tokens is None
    ids = torch.randint(16, (3, max_length or LENGTH), generator=seeded())
    loaded = AutoModelForMaskedLM.from_pretrained(tmp_path / "model")
    expected = full_attention_logits(causal, ids)
    assert expected.std() > 0.3
    torch.testing.assert_close(network_output(loaded, ids), expected, rtol=0, atol=1e-4)
    assert loaded.generate(ids, num_steps=3, generator=seeded()).max() < 15


def test_tables_without_room_for_the_mask_grow(tmp_path: Path) -> None:
    """The mask of the tokenizer has the id 4, and each of its 16 tokens has a row."""
    causal = make_causal("qwen2").bfloat16()  # with tied embeddings
    causal.model.norm.float()
    save_dllm(causal, tmp_path / "source")
    make_tokenizer(16, eos_token=13, mask_token=4).save_pretrained(tmp_path / "source")
    model = convert(str(tmp_path / "source"), tmp_path / "model")
    assert (model.dtype, model.config.vocab_size, model.config.mask_token_id) == (torch.bfloat16, 17, 16)
    assert model.model.norm.weight.dtype == torch.bfloat16
    table = model.get_input_embeddings().weight
    assert torch.equal(table[:16], causal.get_input_embeddings().weight)
    assert torch.equal(table[16], table[4])
    assert model.generation_config.suppress_tokens == [4]


@pytest.mark.parametrize("has_head", [False, True])
def test_a_llada_can_have_tied_weights_and_defaults(has_head: bool, llada: Path, tmp_path: Path) -> None:
    tensors = load_file(FIXTURES / "llada_model.safetensors")
    tensors["model.transformer.ff_out.weight"] = tensors["model.transformer.wte.weight"].clone()
    if not has_head:
        del tensors["model.transformer.ff_out.weight"]
    (llada / "model.safetensors.index.json").unlink()
    save_file(tensors, llada / "model.safetensors")
    change_settings(llada, weight_tying=True, embedding_size=None, vocab_size=128)
    model = convert(str(llada), tmp_path / "model")
    assert model.lm_head.weight is model.get_input_embeddings().weight
    tensors["model.transformer.ff_out.weight"] = 2 * tensors["model.transformer.wte.weight"]
    save_file(tensors, llada / "model.safetensors")
    with pytest.raises(ValueError, match="weights are tied"):
        convert(str(llada), tmp_path / "other")


@pytest.mark.parametrize("other", ["adapter_config.json", "model.safetensors.index.json"])
def test_files_of_another_model_in_the_folder_are_an_error(other: str, tmp_path: Path) -> None:
    """Transformers would also load the adapter."""
    save_dllm(make_causal("qwen2"), tmp_path / "source")
    (tmp_path / "source" / other).write_text('{"weight_map": {"a": "b.safetensors"}}')
    with pytest.raises(ValueError, match=f"more than one model: .*{other}"):
        convert(str(tmp_path / "source"), tmp_path / "model")
    assert not (tmp_path / "model").exists()


def test_all_ends_of_text_are_known(tmp_path: Path) -> None:
    save_dllm(make_causal("qwen3"), tmp_path / "source", eos_token_id=[13, 12])
    (tmp_path / "source" / "generation_config.json").unlink()
    assert convert(str(tmp_path / "source"), tmp_path / "one").generation_config.eos_token_id == [13, 12]
    (tmp_path / "source" / "generation_config.json").write_text(json.dumps({"eos_token_id": [13, 11]}))
    assert convert(str(tmp_path / "source"), tmp_path / "two").generation_config.eos_token_id == [13, 11]


def test_windows_are_ignored(tmp_path: Path) -> None:
    """In the code of dLLM, layers with a sliding window have full attention, too."""
    causal, layers = make_causal("qwen2"), ["sliding_attention"] * 2
    save_dllm(causal, tmp_path / "source", use_sliding_window=True, sliding_window=2, layer_types=layers)
    model = convert(str(tmp_path / "source"), tmp_path / "model")
    ids = torch.randint(16, (3, LENGTH), generator=seeded())
    torch.testing.assert_close(network_output(model, ids), full_attention_logits(causal, ids), rtol=0, atol=1e-4)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"mask_token_id": -1}, "`mask_token_id` is -1 in config.json, and None in the tokenizer"),
        ({"mask_token_id": 101}, "`mask_token_id` is 101 in config.json"),
        ({"mask_token_id": "96"}, "`mask_token_id` is '96' in config.json"),
        ({"mask_token_id": None}, "`mask_token_id` is None in config.json, and None in the tokenizer"),
        ({"max_sequence_length": "long"}, "config.json has settings that are not allowed"),
        ({"rope_theta": "large"}, "type 'llama' cannot be converted, .*TypeError"),
        ({"n_heads": 0}, "config.json has settings that are not allowed"),
        ({"model_type": "qwen2"}, "type 'qwen2' cannot be converted.*'llada', 'Dream', 'a2d-llama'"),
        ({"alibi": True}, "alibi=True"),
        ({"clip_qkv": 0.5}, "clip_qkv=None"),
        ({"rope_scaling": {"factor": 2.0}}, "rope_scaling=None"),
        ({"n_layers": 3}, "model.transformer.blocks.2.attn_norm.weight is missing"),
        ({"n_layers": 1}, "model.transformer.blocks.1.attn_norm.weight is unknown"),
        ({"d_model": 64}, r"has shape \(32, 32\) instead of \(64, 64\)"),
    ],
)
def test_other_models_are_refused(changes: dict[str, Any], message: str, llada: Path, tmp_path: Path) -> None:
    change_settings(llada, **changes)
    with pytest.raises(ValueError, match=message):
        convert(str(llada), tmp_path / "model")
    assert not (tmp_path / "model").exists()


def test_block_diffusion_models_are_refused(tmp_path: Path) -> None:
    """They have the same config.json as masked diffusion models, so only their name shows what they are."""
    source = tmp_path / "Qwen3-0.6B-diffusion-bd3lm-v0.1"
    save_dllm(make_causal("qwen3"), source)
    with pytest.raises(ValueError, match="is a block diffusion model"):
        convert(str(source), tmp_path / "model")


def test_incomplete_folders_are_errors(llada: Path, tmp_path: Path) -> None:
    def check(message: str) -> None:
        with pytest.raises(ValueError, match=message):
            convert(str(llada), tmp_path / "model")

    settings = json.loads((llada / "tokenizer_config.json").read_text())
    other_mask = {"mask_token": {"__type": "AddedToken", "content": "t50"}}
    (llada / "tokenizer_config.json").write_text(json.dumps(settings | other_mask))
    check("`mask_token_id` is 96 in config.json, and 50 in the tokenizer")
    (llada / "tokenizer_config.json").write_text(json.dumps(settings | {"mask_token": f"t{OLD_MASK}"}))
    tensors = load_file(llada / "model-0.safetensors")
    name = min(tensors)
    save_file(tensors | {name: tensors[name] / 0}, llada / "model-0.safetensors")
    check(f"NaN or infinite values in {name}")
    del tensors[name]
    save_file(tensors, llada / "model-0.safetensors")
    check(f"lacks 1 tensors, such as {name}")
    (llada / "model-0.safetensors").unlink()
    check("model-0.safetensors is missing or damaged")
    settings = json.loads((llada / "config.json").read_text())
    del settings["n_heads"]
    for content, message in ((json.dumps(settings), "n_heads"), ("[]", "not a JSON object"), ("{", "damaged")):
        (llada / "config.json").write_text(content)
        check(message)
    (llada / "config.json").unlink()
    check(r"has no config\.json")
    with pytest.raises(ValueError, match="The model 'nobody/nothing' was not found as a"):
        convert("nobody/nothing", tmp_path / "model")


def test_settings_are_checked_before_weights_are_read(llada: Path, tmp_path: Path) -> None:
    for path in llada.glob("*.safetensors*"):
        path.unlink()
    with pytest.raises(ValueError, match="`max_length` must be an integer from 1 to 64"):
        convert(str(llada), tmp_path / "model", max_length=65)


def test_tokens_without_embeddings_are_an_error(tmp_path: Path) -> None:
    save_dllm(make_causal("llama"), tmp_path / "source")
    make_tokenizer(18, eos_token=13, mask_token=4).save_pretrained(tmp_path / "source")
    with pytest.raises(ValueError, match="has ids up to 17, but the embedding table has"):
        convert(str(tmp_path / "source"), tmp_path / "model")


def test_predictions_are_checked(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    save_dllm(make_causal("llama"), tmp_path / "source")
    real = masked_lm.convert_settings
    monkeypatch.setattr(masked_lm, "convert_settings", lambda *given: real(*given) | {"norm_eps": 0.5})
    with pytest.raises(ValueError, match="logits of Transformers' llama"):
        convert(str(tmp_path / "source"), tmp_path / "model")
