# Copyright 2026 The AO-GPT package authors.
# SPDX-License-Identifier: Apache-2.0
"""
Encoder-only masked diffusion models. The golden values are what the authors' code of RADD and SEDD computes, in
float32, at some positions of three sequences.
"""

import itertools
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoModel, AutoModelForMaskedLM, PreTrainedTokenizerFast, pipeline

import modeling_aogpt
from modeling_aogpt import MDMEncoderConfig, MDMEncoderForMaskedLM
from modeling_aogpt.convert_reference_checkpoint import SEDD as RELEASED_SEDD
from modeling_aogpt.convert_reference_checkpoint import convert, encoder_config_of, load_released
from tests.references import perturb_vectors, random_model

FIXTURES = Path(__file__).parent / "fixtures"
MASK = 11

RADD = {
    "target_injection": "none",
    "position_encoding": "rotary",
    "norm": "layernorm",
    "qk_norm": False,
    "attention_bias": False,
    "hidden_act": "gelu_pytorch_tanh",
}
SEDD = RADD | {"target_injection": "sigma", "norm_bias": False}
DECODER = {
    f"{injection}-{encoding}": {"target_injection": injection, "position_encoding": encoding}
    for injection, encoding in itertools.product(("adaln", "input", "shared", "per_layer"), ("learned", "rotary"))
}
FORMS = {"radd": RADD, "sedd": SEDD} | DECODER
forms = pytest.mark.parametrize("form", FORMS)


def random_encoder(form: str = "adaln-rotary", **arguments: object) -> MDMEncoderForMaskedLM:
    """A small float64 model, 11 tokens and the mask, whose predictions depend much on every weight."""
    sizes = {"vocab_size": 12, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}
    more = {"max_position_embeddings": 12, "target_embedding_size": 8, "initializer_range": 0.6}
    torch.manual_seed(0)
    model = MDMEncoderForMaskedLM(MDMEncoderConfig(**(sizes | more | FORMS[form] | arguments))).double().eval()
    perturb_vectors(model)
    return model


@pytest.fixture
def masked_ids() -> torch.LongTensor:
    ids = torch.randint(0, 11, (3, 12), generator=torch.Generator().manual_seed(1))
    return ids.masked_fill(ids % 2 == 0, MASK)


@pytest.fixture
def labels(masked_ids: torch.LongTensor) -> torch.LongTensor:
    return torch.ones_like(masked_ids).masked_fill(masked_ids != MASK, -100)


# --------------------------------------------------------------------------------------------------- released encoders


@pytest.fixture(params=["radd", "sedd"])
def name(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
def settings(name: str) -> dict[str, Any]:
    with safe_open(FIXTURES / f"{name}_model.safetensors", framework="pt") as file:
        return json.loads(file.metadata()["config"])


@pytest.fixture
def source(name: str, settings: dict[str, Any], tmp_path: Path) -> Path:
    """A folder as it was released: settings and weights."""
    source = tmp_path / "source"
    source.mkdir()
    (source / "config.json").write_text(json.dumps(settings))
    save_file(load_file(FIXTURES / f"{name}_model.safetensors"), source / "model.safetensors")
    return source


@torch.no_grad()
def check_golden(model: MDMEncoderForMaskedLM, name: str, tolerance: float = 1e-4) -> None:
    golden = load_file(FIXTURES / f"{name}_golden.safetensors")
    ids, positions = golden["input_ids"], golden["positions"]
    assert (ids[:, positions] == model.config.mask_token_id).any()
    assert (ids[:, positions] != model.config.mask_token_id).any()
    if name == "radd":
        output = model.network_output(ids)[:, positions]
        torch.testing.assert_close(output, golden["logits"], rtol=0, atol=tolerance, check_dtype=False)
        return
    for level in range(3):
        output = model.log_score(ids, golden[f"sigma_{level}"])[:, positions]
        torch.testing.assert_close(output, golden[f"log_score_{level}"], rtol=0, atol=tolerance, check_dtype=False)


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_parity(source: Path, name: str, attention: str, dtype: torch.dtype) -> None:
    model = load_released(source).to(dtype)
    model.set_attn_implementation(attention)
    check_golden(model, name)


def test_converted_folder(source: Path, name: str, tmp_path: Path) -> None:
    written = convert(source, tmp_path / "new" / "model")
    assert (written.config.vocab_size, written.config.num_valid_tokens, written.config.mask_token_id) == (97, 96, 96)
    model = AutoModelForMaskedLM.from_pretrained(tmp_path / "new" / "model")
    assert isinstance(model, MDMEncoderForMaskedLM)
    check_golden(model, name)
    with safe_open(FIXTURES / f"{name}_model.safetensors", framework="pt") as file:
        released = {key: file.get_tensor(key).numel() for key in file.keys() if key != "rotary_emb.inv_freq"}
    assert model.num_parameters() == sum(released.values())


@torch.no_grad()
def test_denoiser_of_a_radd_and_of_a_score(name: str, source: Path) -> None:
    """RADD: log-softmax over the first V ids. SEDD: log q = log score + log(e^sigma - 1), but for the normalisation."""
    model = load_released(source).double()
    ids = load_file(FIXTURES / f"{name}_golden.safetensors")["input_ids"]
    if name == "radd":
        sigma, expected = None, model.network_output(ids)[..., :96].log_softmax(-1)
    else:
        sigma = torch.tensor([0.1, 1.0, 5.0])
        score = (model.log_score(ids, sigma)[..., :96] + sigma.expm1().log()[:, None, None]).exp()
        expected = (score / score.sum(-1, keepdim=True)).log()
    logits = model(ids, sigma=sigma).logits
    is_masked = ids == 96
    torch.testing.assert_close(logits.log_softmax(-1)[is_masked][:, :96], expected[is_masked], rtol=0, atol=1e-6)


def test_end_of_text_of_gpt2s_vocabulary(settings: dict[str, Any]) -> None:
    config = encoder_config_of(settings | {"tokens": 50257}, RELEASED_SEDD, Path("source"))
    assert (config.vocab_size, config.mask_token_id) == (50258, 50257)
    assert config.bos_token_id == config.eos_token_id == 50256
    assert encoder_config_of(settings, RELEASED_SEDD, Path("source")).eos_token_id is None


def refusal(source: Path, tmp_path: Path, **arguments: Any) -> str:
    with pytest.raises(ValueError, match="source") as error:
        convert(source, tmp_path / "model", **arguments)
    assert not (tmp_path / "model").exists()
    return str(error.value)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (lambda given: given["graph"].update(type="uniform"), "graph.type 'uniform'"),
        (lambda given: given["model"].update(n_blocks=3), "blocks.2.norm1.weight is missing"),
        (lambda given: given["model"].update(n_blocks=1), "blocks.1.mlp.0.weight is unknown"),
        (lambda given: given["model"].update(n_heads=8), "rotary_emb.inv_freq is not that of base 10000 and n_heads=8"),
        (lambda given: given["model"].update(n_heads=5), "num_attention_heads=5"),
        (lambda given: given["model"].pop("hidden_size"), "is not that of a SEDD or RADD"),
        (lambda given: given.update(tokens=95), "vocab_embed.embedding has shape (97, 32) instead of (96, 32)"),
        (lambda given: given.pop("tokens"), "tokens"),
        (lambda given: given.pop("model"), "is not that of a SEDD or RADD"),
    ],
)
def test_refuses_settings(
    source: Path, settings: dict[str, Any], tmp_path: Path, change: Callable[[dict], object], named: str
) -> None:
    change(settings)
    (source / "config.json").write_text(json.dumps(settings))
    assert named in refusal(source, tmp_path)


@pytest.mark.parametrize("name", ["sedd"], indirect=True)
def test_refuses_a_score_that_is_not_scaled(source: Path, settings: dict[str, Any], tmp_path: Path) -> None:
    settings["model"]["scale_by_sigma"] = False
    (source / "config.json").write_text(json.dumps(settings))
    assert "scale_by_sigma" in refusal(source, tmp_path)


def test_refuses_tensors(source: Path, tmp_path: Path) -> None:
    tensors = load_file(source / "model.safetensors")
    del tensors["blocks.1.attn_out.weight"]
    tensors["blocks.1.attn_out.bias"] = torch.zeros(32)
    save_file(tensors, source / "model.safetensors")
    message = refusal(source, tmp_path)
    assert "blocks.1.attn_out.weight is missing" in message
    assert "blocks.1.attn_out.bias is unknown" in message


def test_refuses_other_rotary_bases(source: Path, tmp_path: Path) -> None:
    tensors = load_file(source / "model.safetensors")
    tensors["rotary_emb.inv_freq"] = tensors["rotary_emb.inv_freq"] ** 2
    save_file(tensors, source / "model.safetensors")
    assert "rotary_emb.inv_freq" in refusal(source, tmp_path)


@pytest.mark.parametrize("file", ["config.json", "model.safetensors"])
def test_refuses_folders_that_are_damaged_or_lack_a_file(source: Path, tmp_path: Path, file: str) -> None:
    (source / file).write_bytes((source / file).read_bytes()[:-20])
    assert "is damaged" in refusal(source, tmp_path)
    (source / file).unlink()
    assert f"is a folder without {file}" in refusal(source, tmp_path)


def test_refuses_weights_that_a_folder_does_not_hold(source: Path, tmp_path: Path) -> None:
    assert "leave out 'live'" in refusal(source, tmp_path, weights="live")


# -------------------------------------------------------------------------------------------------------- the model


@pytest.mark.parametrize("form", DECODER)
@torch.no_grad()
def test_decoder_form_is_the_decoder_with_full_attention(form: str, masked_ids: torch.LongTensor) -> None:
    """Weight for weight: rows whose target is their own position, all of which see each other, and no start row."""
    decoder = random_model(**DECODER[form], vocab_size=12, num_valid_tokens=11)
    weights = {name: weight for name, weight in decoder.state_dict().items() if "start_embedding" not in name}
    if "learned" in form:
        weights["model.position_embeddings.weight"] = weights["model.position_embeddings.weight"][1:]
    encoder = random_encoder(form)
    encoder.load_state_dict(weights)
    positions = torch.arange(12).expand_as(masked_ids)
    visible = torch.ones(1, 1, 12, 12, dtype=torch.bool)
    expected = decoder.model(masked_ids, positions, positions, attention_mask=visible).last_hidden_state
    torch.testing.assert_close(encoder.model(masked_ids).last_hidden_state, expected, rtol=0, atol=1e-12)


@forms
@torch.no_grad()
def test_every_prediction_depends_on_every_token(form: str) -> None:
    model = random_encoder(form, initializer_range=0.2)  # larger ones saturate attention
    ids = torch.tensor([[MASK, 3, MASK, 5, 1, MASK]])
    logits = model(ids).logits
    for position in (1, 3, 4):
        changed = ids.clone()
        changed[0, position] += 1
        differs = (model(changed).logits - logits)[0].abs().amax(-1) > 1e-6
        assert differs[[0, 2, 5, position]].all()
    assert (logits[0, 0] - logits[0, 2]).abs().max() > 1e-3  # and knows where it is


@forms
@torch.no_grad()
def test_masks_are_filled_and_tokens_stay(form: str, masked_ids: torch.LongTensor) -> None:
    model = random_encoder(form, vocab_size=14, num_valid_tokens=11)
    assert model.config.mask_token_id == MASK
    probabilities = model(masked_ids).logits.softmax(-1)
    is_masked = masked_ids == MASK
    assert (probabilities[is_masked][:, :11] > 0).all()
    assert (probabilities[is_masked][:, 11:] == 0).all()
    expected = model.network_output(masked_ids)[is_masked][:, :11].softmax(-1)
    torch.testing.assert_close(probabilities[is_masked][:, :11], expected, rtol=0, atol=1e-12)
    assert (probabilities.gather(2, masked_ids[..., None])[~is_masked] == 1).all()


@forms
@torch.no_grad()
def test_padding_anywhere_changes_nothing(form: str) -> None:
    model = random_encoder(form)
    plain = model(torch.tensor([[3, MASK, 5, MASK]]), labels=torch.tensor([[-100, 4, -100, 2]]))
    for implementation in ("eager", "sdpa"):
        model.set_attn_implementation(implementation)
        padded = model(
            torch.tensor([[MASK, 3, MASK, 99, 5, MASK]]),
            attention_mask=torch.tensor([[0, 1, 1, 0, 1, 1]]),
            labels=torch.tensor([[7, -100, 4, 7, -100, 2]]),
        )
        torch.testing.assert_close(padded.logits[:, [1, 2, 4, 5]], plain.logits, rtol=0, atol=1e-12)
        torch.testing.assert_close(padded.loss, plain.loss, rtol=0, atol=1e-12)


@pytest.mark.parametrize("form", ["adaln-rotary", "sedd"])
@pytest.mark.parametrize("implementation", ["eager", "sdpa"])
def test_a_sequence_of_padding_alone_leaves_gradients_finite(
    implementation: str, form: str, masked_ids: torch.LongTensor, labels: torch.LongTensor
) -> None:
    model = random_encoder(form)
    model.set_attn_implementation(implementation)
    attention_mask = torch.ones_like(masked_ids)
    attention_mask[1] = 0
    model(masked_ids, attention_mask=attention_mask, labels=labels).loss.backward()
    assert all(parameter.grad.isfinite().all() for parameter in model.parameters())


@forms
@torch.no_grad()
def test_eager_and_sdpa_agree(form: str, masked_ids: torch.LongTensor) -> None:
    model = random_encoder(form)
    logits = []
    for implementation in ("eager", "sdpa"):
        model.set_attn_implementation(implementation)
        logits.append(model(masked_ids).logits)
    torch.testing.assert_close(*logits, rtol=0, atol=1e-10)


@forms
def test_gradient_checkpointing_gives_the_same_gradients(
    form: str, masked_ids: torch.LongTensor, labels: torch.LongTensor
) -> None:
    gradients = []
    for checkpointing in (False, True):
        model = random_encoder(form).train()
        if checkpointing:
            model.gradient_checkpointing_enable()
            assert all(layer.gradient_checkpointing for layer in model.model.layers)
        model(masked_ids, labels=labels).loss.backward()
        gradients.append([parameter.grad for parameter in model.parameters()])
    assert all(gradient.abs().sum() > 0 for gradient in gradients[0])
    torch.testing.assert_close(*gradients, rtol=0, atol=1e-12)


@torch.no_grad()
def test_hidden_states_and_attentions(masked_ids: torch.LongTensor) -> None:
    model = random_encoder()
    model.set_attn_implementation("eager")
    output = model(masked_ids, output_hidden_states=True, output_attentions=True)
    assert [states.shape for states in output.hidden_states] == [(3, 12, 16)] * 3
    assert all((weights > 0).all() and weights.shape == (3, 2, 12, 12) for weights in output.attentions)


# -------------------------------------------------------------------------------------------------------- noise levels


@torch.no_grad()
def test_noise_level_is_that_of_the_share_of_masks() -> None:
    """With 2 of 5 tokens masked, 1 - e^-sigma = (1 - 1e-3) 2 / 5; padding is not counted."""
    model = random_encoder("sedd")
    ids = torch.tensor([[MASK, 3, MASK, 5, 1, MASK]])
    keep = torch.tensor([[1, 1, 1, 1, 1, 0]])
    sigma = -torch.log(1 - 0.999 * torch.tensor([0.4], dtype=torch.float64))
    torch.testing.assert_close(model(ids, keep).logits, model(ids, keep, sigma=sigma).logits, rtol=0, atol=1e-12)
    assert (model(ids, keep).logits - model(ids, keep, sigma=sigma + 0.1).logits).abs().max() > 1e-3
    states = [model.model(ids.index_fill(1, torch.tensor([5]), id), attention_mask=keep)[0] for id in (MASK, 0)]
    assert torch.equal(states[0][:, :5], states[1][:, :5])  # not even of rows whose padding holds masks
    everything = model(torch.full((1, 4), MASK)).logits
    nothing = model(torch.tensor([[1, 2, 3]])).logits
    assert everything.isfinite().all()
    assert nothing.argmax(-1).tolist() == [[1, 2, 3]]


def test_noise_levels_are_told_apart_in_bfloat16_too() -> None:
    first, second = random_encoder("sedd").bfloat16().model.sigma_embedding(torch.tensor([4.0, 4.01]))
    assert not torch.equal(first, second)


@torch.no_grad()
def test_each_sequence_has_its_noise_level(masked_ids: torch.LongTensor) -> None:
    model = random_encoder("sedd")
    sigma = torch.tensor([0.2, 1.0, 4.0])
    together = model(masked_ids, sigma=sigma).logits
    alone = [model(masked_ids[row : row + 1], sigma=sigma[row : row + 1]).logits for row in range(3)]
    torch.testing.assert_close(together, torch.cat(alone), rtol=0, atol=1e-12)


@pytest.mark.parametrize(
    ("form", "sigma", "message"),
    [
        ("sedd", [1.0], r"shape \(1,\), but must have one noise level for each sequence of input_ids: \(3,\)"),
        ("sedd", [[1.0]] * 3, r"shape \(3, 1\)"),
        ("sedd", [1.0, 0.0, 1.0], "must be above 0 and finite"),
        ("sedd", [1.0, float("nan"), 1.0], "must be above 0 and finite"),
        ("radd", [1.0] * 3, "takes no noise level"),
        ("adaln-learned", [1.0] * 3, "takes no noise level"),
    ],
)
def test_refuses_noise_levels(masked_ids: torch.LongTensor, form: str, sigma: list, message: str) -> None:
    model = random_encoder(form)
    with pytest.raises(ValueError, match=message):
        model(masked_ids, sigma=torch.tensor(sigma))
    with pytest.raises(ValueError, match=message):
        model.log_score(masked_ids, torch.tensor(sigma))


# ------------------------------------------------------------------------------------------------- the configuration


def test_defaults_of_the_vocabulary() -> None:
    small = MDMEncoderConfig(vocab_size=20)
    assert (small.num_valid_tokens, small.mask_token_id) == (19, 19)
    padded = MDMEncoderConfig()
    assert (padded.vocab_size, padded.num_valid_tokens, padded.mask_token_id) == (50304, 50257, 50257)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"vocab_size": 20, "mask_token_id": 20}, "mask_token_id=20 has no row in the token table"),
        ({"vocab_size": 20, "num_valid_tokens": 20}, "mask_token_id=20 has no row in the token table"),
        ({"vocab_size": 20, "mask_token_id": 3}, "mask_token_id=3 is a real token"),
        ({"target_injection": "time"}, "target_injection='time' is not one of .* 'none', 'sigma'"),
    ],
)
def test_refuses_configurations(arguments: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        MDMEncoderConfig(**arguments)


def test_a_decoder_takes_none_of_the_encoders_injections() -> None:
    with pytest.raises(ValueError, match="target_injection='sigma' is not one of"):
        random_model(target_injection="sigma")


@pytest.mark.parametrize("ids", [[[0, 12]], [[-1, 0]], [[0] * 13]])
def test_refuses_ids(ids: list) -> None:
    model, ids = random_encoder("sedd"), torch.tensor(ids)
    for call in (model, model.network_output, lambda ids: model.log_score(ids, torch.ones(1))):
        with pytest.raises(ValueError, match="input_ids"):
            call(ids)


# --------------------------------------------------------------------------------------------------- saving and loading


@forms
@torch.no_grad()
def test_saved_model_is_the_same(form: str, masked_ids: torch.LongTensor, tmp_path: Path) -> None:
    model = random_encoder(form)
    model.save_pretrained(tmp_path)
    assert isinstance(AutoConfig.from_pretrained(tmp_path), MDMEncoderConfig)
    for auto_class in (AutoModel, AutoModelForMaskedLM):
        loaded = auto_class.from_pretrained(tmp_path)
        assert type(loaded) is MDMEncoderForMaskedLM
        assert torch.equal(loaded(masked_ids).logits, model(masked_ids).logits)


REMOTELY = """
import sys
from pathlib import Path
root, fixtures = map(Path, sys.argv[1:])
sys.path.insert(0, str(fixtures))
from load_remotely import PackageIsAbsent, load
sys.meta_path.insert(0, PackageIsAbsent())
import torch
from transformers import AutoModel, AutoModelForMaskedLM

ids = torch.load(root / "ids.pt")
for name in ("radd", "sedd", "adaln-learned"):
    model = load(AutoModel, root / name)
    model.save_pretrained(root / "resaved" / name)
    again = load(AutoModelForMaskedLM, root / "resaved" / name)
    with torch.no_grad():
        torch.save([model(ids).logits, again(ids).logits], root / f"{name}.pt")
assert "modeling_aogpt" not in sys.modules
"""


@torch.no_grad()
def test_remote_code(masked_ids: torch.LongTensor, tmp_path: Path) -> None:
    """In a process without the package, from a folder and from one that was saved there."""
    torch.save(masked_ids, tmp_path / "ids.pt")
    package = Path(modeling_aogpt.__file__).parent
    expected = {}
    for form in ("radd", "sedd", "adaln-learned"):
        model = random_encoder(form)
        model.save_pretrained(tmp_path / form)
        expected[form] = model(masked_ids).logits
        auto_map = json.loads((tmp_path / form / "config.json").read_text())["auto_map"]
        assert auto_map == {
            "AutoConfig": "configuration_mdm_encoder.MDMEncoderConfig",
            "AutoModel": "modeling_mdm_encoder.MDMEncoderForMaskedLM",
            "AutoModelForMaskedLM": "modeling_mdm_encoder.MDMEncoderForMaskedLM",
        }
        code = list((tmp_path / form).glob("*.py"))
        assert {"configuration_mdm_encoder.py", "modeling_mdm_encoder.py"} <= {file.name for file in code}
        assert all(file.read_bytes() == (package / file.name).read_bytes() for file in code)
    environment = os.environ | {"HF_MODULES_CACHE": str(tmp_path / "modules")}
    command = [sys.executable, "-I", "-c", REMOTELY, tmp_path, FIXTURES]
    process = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert process.returncode == 0, process.stderr
    for form, logits in expected.items():
        for given in torch.load(tmp_path / f"{form}.pt"):
            torch.testing.assert_close(given, logits, rtol=0, atol=1e-12)


def test_fill_mask_pipeline(tiny_tokenizer: PreTrainedTokenizerFast, tmp_path: Path) -> None:
    random_encoder("sedd", vocab_size=17).float().save_pretrained(tmp_path)
    tiny_tokenizer.save_pretrained(tmp_path)
    fill = pipeline("fill-mask", model=str(tmp_path), trust_remote_code=False)
    assert isinstance(fill.model, MDMEncoderForMaskedLM)
    best = fill.model(torch.tensor([[0, 1, 16, 3]])).logits[0, 2].softmax(-1).topk(3)
    answers = fill("ab<mask>d", top_k=3)
    assert [answer["token"] for answer in answers] == best.indices.tolist()
    assert [answer["score"] for answer in answers] == pytest.approx(best.values.tolist(), rel=1e-4)  # float32
