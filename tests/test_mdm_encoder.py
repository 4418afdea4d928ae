# Copyright 2026 The AO-GPT package authors. SPDX-License-Identifier: Apache-2.0
"""Encoder-only masked diffusion models. See test_convert_released_encoder.py for parity with released models."""

import itertools
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from transformers import AutoConfig, AutoModel, AutoModelForMaskedLM, PreTrainedTokenizerFast, pipeline

import modeling_aogpt
from modeling_aogpt import MDMEncoderConfig, MDMEncoderForMaskedLM
from modeling_aogpt.convert_reference_checkpoint import RADD, SEDD
from tests import references
from tests.references import network_output, perturb_vectors, random_model

FIXTURES = Path(__file__).parent / "fixtures"
MASK = 11

DECODER_FORMS = {
    f"{injection}-{encoding}": {"target_injection": injection, "position_encoding": encoding}
    for injection, encoding in itertools.product(("adaln", "input", "shared", "per_layer"), ("learned", "rotary"))
}
FORMS = {"radd": RADD.settings, "sedd": SEDD.settings} | DECODER_FORMS
forms = pytest.mark.parametrize("form", FORMS)


def random_encoder(form: str = "adaln-rotary", **arguments: object) -> MDMEncoderForMaskedLM:
    """Return a small float64 model of 11 ids of text, whose predictions depend strongly on every weight."""
    model = references.random_encoder(**FORMS[form] | arguments)
    perturb_vectors(model)
    return model


@pytest.fixture
def masked_ids() -> torch.LongTensor:
    ids = torch.randint(0, 11, (3, 12), generator=torch.Generator().manual_seed(1))
    return ids.masked_fill(ids % 2 == 0, MASK)


@pytest.fixture
def labels(masked_ids: torch.LongTensor) -> torch.LongTensor:
    return torch.ones_like(masked_ids).masked_fill(masked_ids != MASK, -100)


# -------------------------------------------------------------------------------------------------------- the model


@pytest.mark.parametrize("form", [form for form in DECODER_FORMS if "learned" in form])
@torch.no_grad()
def test_an_encoder_with_target_embeddings_is_the_decoder_with_full_attention(
    form: str, masked_ids: torch.LongTensor
) -> None:
    """With the same weights, every row predicts its own position and attends to all others; there is no start row."""
    decoder = random_model(**DECODER_FORMS[form], vocab_size=12, num_valid_tokens=11)
    weights = {name: weight for name, weight in decoder.state_dict().items() if "start_embedding" not in name}
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
    model = random_encoder(form, initializer_range=0.2)  # larger weights saturate attention
    ids = torch.tensor([[MASK, 3, MASK, 5, 1, MASK]])
    logits = model(ids).logits
    for position in (1, 3, 4):
        changed = ids.clone()
        changed[0, position] += 1
        differs = (model(changed).logits - logits)[0].abs().amax(-1) > 1e-6
        assert differs[[0, 2, 5, position]].all()
    assert (logits[0, 0] - logits[0, 2]).abs().max() > 1e-3  # and on its own position


@forms
@torch.no_grad()
def test_masks_are_predicted_as_text_and_unmasked_tokens_stay(form: str, masked_ids: torch.LongTensor) -> None:
    model = random_encoder(form, vocab_size=14, num_valid_tokens=11)
    assert model.config.mask_token_id == MASK
    probabilities = model(masked_ids).logits.softmax(-1)
    is_masked = masked_ids == MASK
    assert (probabilities[is_masked][:, :11] > 0).all()
    assert (probabilities[is_masked][:, 11:] == 0).all()
    expected = network_output(model, masked_ids)[is_masked][:, :11].softmax(-1)
    torch.testing.assert_close(probabilities[is_masked][:, :11], expected, rtol=0, atol=1e-12)
    assert (probabilities.gather(2, masked_ids[..., None])[~is_masked] == 1).all()


@forms
@torch.no_grad()
def test_padding_anywhere_changes_no_logits_and_no_loss(form: str) -> None:
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
def test_a_sequence_of_only_padding_leaves_gradients_finite(
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
def test_eager_and_sdpa_attention_agree(form: str, masked_ids: torch.LongTensor) -> None:
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
def test_hidden_states_and_attentions_are_returned_on_request(masked_ids: torch.LongTensor) -> None:
    model = random_encoder()
    model.set_attn_implementation("eager")
    output = model(masked_ids, output_hidden_states=True, output_attentions=True)
    assert [states.shape for states in output.hidden_states] == [(3, 12, 16)] * 3
    assert all((weights > 0).all() and weights.shape == (3, 2, 12, 12) for weights in output.attentions)


# -------------------------------------------------------------------------------------------------------- noise levels


@torch.no_grad()
def test_the_default_noise_level_matches_the_fraction_of_masks() -> None:
    """With 2 of 5 tokens masked, 1 - e^-sigma = (1 - 1e-3) 2 / 5. Padding is not counted, even if it holds masks."""
    model = random_encoder("sedd")
    ids = torch.tensor([[MASK, 3, MASK, 5, 1, MASK]])
    keep = torch.tensor([[1, 1, 1, 1, 1, 0]])
    sigma = -torch.log(1 - 0.999 * torch.tensor([0.4], dtype=torch.float64))
    torch.testing.assert_close(model(ids, keep).logits, model(ids, keep, sigma=sigma).logits, rtol=0, atol=1e-12)
    assert (model(ids, keep).logits - model(ids, keep, sigma=sigma + 0.1).logits).abs().max() > 1e-3
    states = [model.model(ids.index_fill(1, torch.tensor([5]), id), attention_mask=keep)[0] for id in (MASK, 0)]
    assert torch.equal(states[0][:, :5], states[1][:, :5])
    all_masked = model(torch.full((1, 4), MASK)).logits
    none_masked = model(torch.tensor([[1, 2, 3]])).logits
    assert all_masked.isfinite().all()
    assert none_masked.argmax(-1).tolist() == [[1, 2, 3]]


def test_close_noise_levels_differ_in_bfloat16_too() -> None:
    first, second = random_encoder("sedd").bfloat16().model.sigma_embedding(torch.tensor([4.0, 4.01]), torch.bfloat16)
    assert not torch.equal(first, second)


@torch.no_grad()
def test_each_sequence_has_its_own_noise_level(masked_ids: torch.LongTensor) -> None:
    model = random_encoder("sedd")
    sigma = torch.tensor([0.2, 1.0, 4.0])
    together = model(masked_ids, sigma=sigma).logits
    alone = [model(masked_ids[row : row + 1], sigma=sigma[row : row + 1]).logits for row in range(3)]
    torch.testing.assert_close(together, torch.cat(alone), rtol=0, atol=1e-12)


@pytest.mark.parametrize(
    ("form", "sigma", "message"),
    [
        (
            "sedd",
            [1.0],
            r"`sigma` must have one noise level per sequence, that is, shape \(3,\), but has shape \(1,\)",
        ),
        ("sedd", [[1.0]] * 3, r"shape \(3,\), but has shape \(3, 1\)"),
        ("sedd", [1.0, 0.0, 1.0], r"`sigma` must be positive and finite, but is \[1.0, 0.0, 1.0\]"),
        ("sedd", [1.0, float("nan"), 1.0], "`sigma` must be positive and finite, but is .*nan"),
        ("radd", [1.0] * 3, r"`sigma` is given, but this model \(target_injection='none'\) takes no noise level"),
        ("adaln-learned", [1.0] * 3, r"this model \(target_injection='adaln'\) takes no noise level"),
    ],
)
def test_noise_levels_that_are_not_allowed_are_errors(
    masked_ids: torch.LongTensor, form: str, sigma: list, message: str
) -> None:
    model = random_encoder(form)
    with pytest.raises(ValueError, match=message):
        model(masked_ids, sigma=torch.tensor(sigma))


# ------------------------------------------------------------------------------------------------- the configuration


def test_the_last_id_is_the_mask_unless_the_vocabulary_is_that_of_gpt2() -> None:
    small = MDMEncoderConfig(vocab_size=20)
    assert (small.num_valid_tokens, small.mask_token_id) == (19, 19)
    padded = MDMEncoderConfig()
    assert (padded.vocab_size, padded.num_valid_tokens, padded.mask_token_id) == (50304, 50257, 50257)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"vocab_size": 20, "mask_token_id": 20}, r"`mask_token_id` \(20\) must be in the token table of an encoder"),
        ({"vocab_size": 20, "num_valid_tokens": 20}, r"`mask_token_id` \(20\) must be in the token table"),
        ({"vocab_size": 20, "mask_token_id": 3}, r"`mask_token_id` must be at least `num_valid_tokens` \(19\).* is 3"),
        ({"start_token_id": 5}, r"`start_token_id` \(5\) has no effect in an encoder"),
        ({"target_injection": "time"}, "`target_injection` must be one of .* 'none', 'sigma', but is 'time'"),
    ],
)
def test_configurations_that_are_not_allowed_are_errors(arguments: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        MDMEncoderConfig(**arguments)


def test_a_decoder_with_a_target_injection_of_encoders_is_an_error() -> None:
    with pytest.raises(ValueError, match=r"`target_injection` must be one of .*'none'"):
        random_model(target_injection="sigma")


@pytest.mark.parametrize(
    ("ids", "message"),
    [
        ([[0, 12]], "`input_ids` contains the id 12"),
        ([[-1, 0]], "`input_ids` contains the id -1"),
        ([[0] * 13], "`input_ids` has 13 tokens per sequence"),
    ],
)
def test_ids_that_are_not_allowed_are_errors(ids: list, message: str) -> None:
    model, ids = random_encoder("sedd"), torch.tensor(ids)
    with pytest.raises(ValueError, match=message):
        model(ids)


# --------------------------------------------------------------------------------------------------- saving and loading


@forms
@torch.no_grad()
def test_a_saved_model_loads_with_the_same_logits(form: str, masked_ids: torch.LongTensor, tmp_path: Path) -> None:
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
def test_a_saved_folder_loads_without_the_package(masked_ids: torch.LongTensor, tmp_path: Path) -> None:
    """A process without the package loads a saved folder, saves the model again, and loads that."""
    torch.save(masked_ids, tmp_path / "ids.pt")
    package = Path(modeling_aogpt.__file__).parent
    expected = {}
    for form in ("radd", "sedd", "adaln-learned"):
        model = random_encoder(form)
        model.save_pretrained(tmp_path / form)
        expected[form] = model(masked_ids).logits
        auto_map = json.loads((tmp_path / form / "config.json").read_text())["auto_map"]
        assert auto_map == {
            "AutoConfig": "configuration_aogpt.MDMEncoderConfig",
            "AutoModel": "modeling_mdm_encoder.MDMEncoderForMaskedLM",
            "AutoModelForMaskedLM": "modeling_mdm_encoder.MDMEncoderForMaskedLM",
        }
        code = list((tmp_path / form).glob("*.py"))
        assert {"configuration_aogpt.py", "modeling_mdm_encoder.py"} <= {file.name for file in code}
        assert all(file.read_bytes() == (package / file.name).read_bytes() for file in code)
    environment = os.environ | {"HF_MODULES_CACHE": str(tmp_path / "modules")}
    command = [sys.executable, "-I", "-c", REMOTELY, tmp_path, FIXTURES]
    process = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert process.returncode == 0, process.stderr
    for form, logits in expected.items():
        for given in torch.load(tmp_path / f"{form}.pt"):
            torch.testing.assert_close(given, logits, rtol=0, atol=1e-12)


def test_the_fill_mask_pipeline_returns_the_likeliest_tokens(
    tiny_tokenizer: PreTrainedTokenizerFast, tmp_path: Path
) -> None:
    random_encoder("sedd", vocab_size=17).float().save_pretrained(tmp_path)
    tiny_tokenizer.save_pretrained(tmp_path)
    fill = pipeline("fill-mask", model=str(tmp_path), trust_remote_code=False)
    assert isinstance(fill.model, MDMEncoderForMaskedLM)
    with torch.no_grad():  # as in the pipeline: with gradients, matrix products on a CPU are rounded differently
        best = fill.model(torch.tensor([[0, 1, 16, 3]])).logits[0, 2].softmax(-1).topk(3)
    predictions = fill("ab<mask>d", top_k=3)
    assert [prediction["token"] for prediction in predictions] == best.indices.tolist()
    assert [prediction["score"] for prediction in predictions] == pytest.approx(best.values.tolist())
