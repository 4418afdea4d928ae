# Copyright 2026 The AO-GPT package authors. SPDX-License-Identifier: Apache-2.0
import copy
import itertools
import math
import re
from functools import partial
from importlib.metadata import version
from pathlib import Path

import pytest
import torch
from packaging.version import Version
from transformers import AutoModel, AutoModelForCausalLM, AutoModelForMaskedLM

from modeling_aogpt import AOGPTConfig, AOGPTForAnyOrderLM, AOGPTForCausalLM, AOGPTForMaskedLM, MDMEncoderForMaskedLM
from modeling_aogpt.orders import branch_rows, random_orders
from tests.references import random_encoder, random_model

LLAMA = {  # grouped heads of their own width, gated MLP, no biases, rotary positions only
    "target_injection": "none",
    "position_encoding": "rotary",
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 6,
    "gated_mlp": True,
    "hidden_act": "silu",
    "attention_bias": False,
    "attention_output_bias": False,
    "mlp_bias": False,
    "lm_head_bias": False,
    "start_token_id": 3,
}
VARIANTS = [
    {"target_injection": injection, "position_encoding": encoding}
    for injection, encoding in itertools.product(("adaln", "input", "shared", "per_layer"), ("learned", "rotary"))
] + [
    {
        "norm": "layernorm",
        "qk_norm": False,
        "attention_bias": False,
        "mlp_bias": False,
        "norm_bias": False,
        "tie_word_embeddings": True,
        "lm_head_bias": False,
    },
    LLAMA,
    LLAMA | {"target_injection": "adaln", "no_rope_layers": [1], "norm": "layernorm", "norm_weight": False},
]
variants = pytest.mark.parametrize("variant", VARIANTS, ids=lambda variant: "-".join(map(str, variant.values()))[:40])


@pytest.fixture
def orders() -> torch.LongTensor:
    return random_orders(3, 12, torch.Generator().manual_seed(2))


@variants
def test_a_prediction_depends_on_exactly_the_tokens_before_it_in_the_order(
    variant: dict, ids: torch.LongTensor, orders: torch.LongTensor
) -> None:
    model = random_model(**variant)
    logits = model(ids, orders).logits
    for rank in (0, 5, 11):
        changed = ids.clone()
        position = orders[0, rank]
        changed[0, position] = (changed[0, position] + 1) % 11
        differs = (model(changed, orders).logits - logits)[0].abs().amax(-1) > 1e-6
        before, after = orders[0, : rank + 1], orders[0, rank + 1 :]
        assert not differs[before].any()
        assert differs[after].all()


@variants
def test_predictions_depend_on_their_target_and_on_the_context_order(variant: dict, ids: torch.LongTensor) -> None:
    model = random_model(**variant)
    first = model(ids, torch.arange(12).expand(3, 12)).logits
    swapped = model(ids, torch.tensor([1, 0, *range(2, 12)]).expand(3, 12)).logits
    assert (first[:, 2:] - swapped[:, 2:]).abs().amax(-1).min() > 1e-6
    assert (first[:, 0] - first[:, 1]).abs().max() > 1e-3


def test_rotary_attention_between_tokens_depends_only_on_distances(ids: torch.LongTensor) -> None:
    """With target embeddings of zero, shifting all positions changes no attention weight between tokens."""
    model = random_model(position_encoding="rotary", target_injection="input")
    torch.nn.init.zeros_(model.model.target_embeddings.weight)
    rows = {"input_ids": ids[:, :5], "positions": torch.tensor([[-1, 2, 0, 4, 1]]).expand(3, 5)}
    rows["positions"] = rows["positions"].clone()
    targets = torch.tensor([[2, 0, 4, 1, 3]]).expand(3, 5)
    plain = model.model(**rows, target_positions=targets).last_hidden_state
    rows["positions"][:, 1:] += 6
    shifted = model.model(**rows, target_positions=targets + 6).last_hidden_state
    # The start row keeps the position -1, so its distance to other rows does change: compare the weights between
    # tokens only, as the eager attention of the first layer returns them.
    model.set_attn_implementation("eager")
    shifted_weights = model.model(**rows, target_positions=targets + 6, output_attentions=True).attentions[0]
    rows["positions"][:, 1:] -= 6
    plain_weights = model.model(**rows, target_positions=targets, output_attentions=True).attentions[0]
    between_tokens = [
        weights[..., 1:, 1:] / weights[..., 1:, 1:].sum(-1, keepdim=True)
        for weights in (plain_weights, shifted_weights)
    ]
    torch.testing.assert_close(*between_tokens, rtol=0, atol=1e-6)
    assert (plain - shifted).abs().max() > 1e-3


@pytest.mark.parametrize(
    ("rope", "frequencies"),
    [
        ({"rope_type": "default", "rope_theta": 500.0}, 500.0 ** -(torch.arange(4) / 4).double()),
        ({"rope_type": "linear", "factor": 4.0}, 10000.0 ** -(torch.arange(4) / 4).double() / 4),
        ({"rope_type": "dynamic", "factor": 4.0}, 10000.0 ** -(torch.arange(4) / 4).double()),
    ],
)
def test_rotary_rotates_queries_by_target_minus_1_and_keys_by_the_position_of_the_token(
    rope: dict, frequencies: torch.Tensor, ids: torch.LongTensor
) -> None:
    """Attention of the first layer equals q . k from its projections, rotated by (position of the key - target + 1)."""
    model = random_model(position_encoding="rotary", target_injection="none", qk_norm=False, rope_parameters=rope)
    model.set_attn_implementation("eager")
    rows = {"input_ids": ids[:1, :4], "positions": torch.tensor([[-1, 7, 0, 9]])}
    targets = torch.tensor([[7, 0, 9, 4]])
    weights = model.model(**rows, target_positions=targets, output_attentions=True).attentions[0][0]

    layer = model.model.layers[0]
    states = layer.input_layernorm(model.model._embed(**rows))
    query, key = (project(states)[0].view(4, 2, 8) for project in (layer.self_attn.q_proj, layer.self_attn.k_proj))
    query, key = (torch.complex(states[..., :4], states[..., 4:]) for states in (query, key))
    angles = (rows["positions"] - targets.T + 1)[..., None] * frequencies
    rotations = torch.polar(torch.ones(4, 4, 4).double(), angles)
    scores = torch.einsum("rhc,shc,rsc->hrs", query.conj(), key, rotations).real / 8**0.5
    expected = scores.masked_fill(~torch.ones(4, 4).tril().bool(), float("-inf")).softmax(-1)
    torch.testing.assert_close(weights, expected, rtol=0, atol=1e-6)


def test_left_to_right_queries_and_keys_are_rotated_alike() -> None:
    """So that a layer is that of a standard rotary decoder."""
    model, rotations = random_model(**LLAMA), []
    model.model.layers[0].register_forward_pre_hook(
        lambda module, arguments, options: rotations.extend(options["rotations"]), with_kwargs=True
    )
    model(torch.tensor([[2, 1, 4, 1, 5]]))
    for query, key in zip(*rotations, strict=True):
        assert torch.equal(query, key)
    rotations.clear()
    model(torch.tensor([[2, 1, 4, 1, 5]]), orders=torch.tensor([[4, 0, 1, 2, 3]]))
    assert not torch.equal(rotations[0][1], rotations[1][1])


def test_layers_without_rotary_positions_do_not_use_them(ids: torch.LongTensor) -> None:
    """Without any, and without target injection, a prediction does not depend on its target."""
    model = random_model(**LLAMA | {"no_rope_layers": [0, 1]})
    orders = torch.tensor([[0, 1, 2, 3, 4, 5], [0, 1, 2, 3, 5, 4]])
    logits = model(ids[:1, :6].expand(2, -1), orders).logits
    torch.testing.assert_close(logits[0, 4], logits[1, 5], rtol=0, atol=1e-12)
    partial = random_model(**LLAMA | {"no_rope_layers": [0]})(ids[:1, :6].expand(2, -1), orders).logits
    assert (partial[0, 4] - partial[1, 5]).abs().max() > 1e-3


def test_sequences_begin_with_the_embedding_of_the_start_token(ids: torch.LongTensor) -> None:
    model = random_model(**LLAMA)
    assert model.model.start_embedding is None
    before = model(ids).logits
    with torch.no_grad():
        model.model.embed_tokens.weight[3] += 1.0
    assert (model(ids).logits[:, 0] - before[:, 0]).abs().max() > 1e-3


@variants
@pytest.mark.parametrize("masked", [False, True])
def test_eager_and_sdpa_attention_agree(variant: dict, masked: bool, ids: torch.LongTensor) -> None:
    model = AOGPTForMaskedLM(random_model(**variant).config).double() if masked else random_model(**variant)
    inputs = ids.masked_fill(ids % 3 == 0, 11) if masked else ids
    outputs = []
    for implementation in ("eager", "sdpa"):
        model.set_attn_implementation(implementation)
        outputs.append(model(inputs).logits)
    torch.testing.assert_close(*outputs, rtol=0, atol=1e-10)


@variants
def test_padding_anywhere_changes_no_logits_and_no_loss(variant: dict) -> None:
    model = random_model(**variant)
    ids, order = torch.tensor([[3, 7, 5, 1, 0]]), torch.tensor([[4, 1, 3, 0, 2]])
    plain = model(ids, order, labels=ids)
    keep = torch.tensor([[0, 1, 1, 0, 1, 0, 1, 1, 0]])
    columns = keep[0].nonzero().flatten()
    padded = torch.tensor([[-1, 0, 0, 11, 0, 99, 0, 0, 9]]).index_copy(1, columns, ids)
    # The order has padding between tokens too. The model moves it to the end.
    padded_order = torch.tensor([[0, *columns[order[0, :2]], 3, 5, *columns[order[0, 2:]], 8]])
    result = model(padded, padded_order, attention_mask=keep, labels=padded)
    torch.testing.assert_close(result.logits[:, columns], plain.logits, rtol=0, atol=1e-12)
    torch.testing.assert_close(result.loss, plain.loss, rtol=0, atol=1e-12)


def test_shared_target_embeddings_are_added_in_every_layer(ids: torch.LongTensor) -> None:
    """The second layer still gets the targets if the output of the first one is replaced by zeros."""
    model = random_model(target_injection="shared")
    model.model.layers[0].register_forward_hook(lambda module, arguments, output: torch.zeros_like(output))
    states = model(ids).logits[0]
    assert (states[1:] - states[:1]).abs().amax(-1).min() > 1e-6


def test_a_misspelt_argument_is_an_error(ids: torch.LongTensor, orders: torch.LongTensor) -> None:
    message = r"AOGPTForAnyOrderLM\.forward got the unknown argument `order`\. Did you mean `orders`\?"
    with pytest.raises(ValueError, match=message):
        random_model()(ids, order=orders)
    random_model()(ids, token_type_ids=torch.zeros_like(ids), inputs_embeds=None)  # tokenizers and PEFT pass these


def test_int32_inputs_are_accepted(ids: torch.LongTensor, orders: torch.LongTensor) -> None:
    model = random_model()
    expected = model(ids, orders, labels=ids)
    result = model(ids.int(), orders.int(), labels=ids.int())
    assert torch.equal(result.logits, expected.logits)
    assert torch.equal(result.loss, expected.loss)


def test_the_mask_is_not_text_even_inside_the_token_table() -> None:
    model = random_model(vocab_size=16, num_valid_tokens=11)
    with pytest.raises(ValueError, match=r"`input_ids` contains the id 11, .* This id is"):
        model(torch.tensor([[1, 11]]))


def test_loss_of_bfloat16_logits_is_computed_in_float32(ids: torch.LongTensor) -> None:
    model = random_model(initializer_range=0.1).bfloat16()
    output = model(ids, labels=ids)
    assert output.loss.dtype == torch.float32
    expected = torch.nn.functional.cross_entropy(output.logits.float().flatten(0, 1), ids.flatten())
    assert torch.equal(output.loss, expected)


def test_loss_is_the_mean_over_labels_or_divided_by_num_items_in_batch(
    ids: torch.LongTensor, orders: torch.LongTensor
) -> None:
    model = random_model()
    labels = ids.masked_fill(ids > 6, -100)
    output = model(ids, orders, labels=labels)
    expected = -output.logits.log_softmax(-1).gather(2, ids[..., None])[labels != -100].mean()
    torch.testing.assert_close(output.loss, expected)
    total = model(ids, orders, labels=labels, num_items_in_batch=torch.tensor(7)).loss
    torch.testing.assert_close(total, expected * (labels != -100).sum() / 7)


@pytest.mark.parametrize("count", [None, 7, torch.tensor(7)])
def test_the_loss_without_logits_is_the_same(
    ids: torch.LongTensor, orders: torch.LongTensor, count: torch.Tensor | int | None
) -> None:
    attention_mask = torch.ones_like(ids)
    attention_mask[0, -2:] = 0
    labels, gradients = ids.masked_fill(ids > 6, -100), []
    for skip_logits in (False, True):
        model = random_model()
        options = {"attention_mask": attention_mask, "labels": labels, "num_items_in_batch": count}
        output = model(ids, orders, skip_logits=skip_logits, **options)
        assert (output.logits is None) == skip_logits
        gradients.append([output.loss, *torch.autograd.grad(output.loss, list(model.parameters()))])
    torch.testing.assert_close(*gradients)
    assert model(ids, orders, skip_logits=True).logits is not None  # there is nothing else to return
    torch.testing.assert_close(*(values[0] for values in gradients), rtol=1e-12, atol=0)  # the model is in float64


def test_the_loss_without_labels_is_nan(ids: torch.LongTensor) -> None:
    labels = torch.full_like(ids, -100)
    assert all(random_model()(ids, labels=labels, skip_logits=skip).loss.isnan() for skip in (False, True))


@pytest.mark.parametrize("kind", [AOGPTForAnyOrderLM, AOGPTForCausalLM, AOGPTForMaskedLM, MDMEncoderForMaskedLM])
def test_attention_cannot_be_changed_by_arguments_of_transformers(kind: type, ids: torch.LongTensor) -> None:
    model = random_encoder() if kind is MDMEncoderForMaskedLM else kind(random_model().config)
    lengths = torch.tensor([0, 6, 12], dtype=torch.int32)
    packed = {"cu_seq_lens_q": lengths, "cu_seq_lens_k": lengths, "max_length_q": 6, "seq_idx": ids}
    packed |= {} if kind is AOGPTForCausalLM else {"position_ids": torch.arange(12)[None] % 6}
    rows = {"positions": ids, "target_positions": ids} if kind is not MDMEncoderForMaskedLM else {}
    for name, value in (packed | {"is_causal": False}).items():
        for call in (model, partial(model.model, **rows)):
            with pytest.raises(ValueError, match="forward does not support the argument"):
                call(ids, **{name: value})


def test_a_head_of_another_kind_is_called(ids: torch.LongTensor) -> None:
    """A head may have adapters, quantized weights or hooks."""

    class Scaled(torch.nn.Linear):
        def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
            return 2 * super().forward(hidden_states)

    other, hooked = random_model(), random_model()
    other.lm_head.__class__ = Scaled
    hooked.lm_head.register_forward_hook(lambda module, inputs, logits: 2 * logits)
    for model in (other, hooked):
        output = model(ids, labels=ids, skip_logits=True)
        assert torch.equal(output.loss, model(ids, labels=ids).loss)


def test_gates_are_not_promoted_to_float32_by_autocast(ids: torch.LongTensor, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []
    addcmul = torch.addcmul

    def record(*tensors: torch.Tensor) -> torch.Tensor:
        seen.append((torch.is_autocast_enabled("cpu"), tensors[2].dtype))
        return addcmul(*tensors)

    monkeypatch.setattr(torch, "addcmul", record)
    with torch.autocast("cpu", torch.bfloat16):
        random_model().float()(ids)
    assert set(seen) == {(False, torch.bfloat16)}  # scales, and outputs of attention and MLP


@variants
def test_gradient_checkpointing_gives_the_same_gradients(variant: dict, ids: torch.LongTensor) -> None:
    gradients = []
    for checkpointing in (False, True):
        model = random_model(**variant).train()
        if checkpointing:
            model.gradient_checkpointing_enable()
        model(ids, labels=ids).loss.backward()
        gradients.append({name: parameter.grad for name, parameter in model.named_parameters()})
    assert all(gradient is not None for gradient in gradients[0].values())
    torch.testing.assert_close(*gradients, rtol=0, atol=1e-12)


def test_modulations_of_few_rows_and_looked_up_modulations_of_many_rows_agree(ids: torch.LongTensor) -> None:
    """More rows than positions are looked up in a table of all positions; fewer are projected one by one."""
    model = random_model()
    assert ids.numel() > 12 >= ids[:1].numel()
    torch.testing.assert_close(model(ids).logits[:1], model(ids[:1]).logits, rtol=0, atol=1e-12)


def test_initialization_follows_the_paper() -> None:
    config = AOGPTConfig(vocab_size=500, hidden_size=64, num_hidden_layers=8, num_attention_heads=4)
    model = AOGPTForAnyOrderLM(config)
    for name, parameter in model.named_parameters():
        residual = name.endswith(("o_proj.weight", "down_proj.weight"))
        std = 0.02 / math.sqrt(16) if residual else 0.02
        if "norm" in name:
            assert (parameter == 1).all()
        elif name.endswith("bias"):
            assert (parameter == 0).all()
        else:
            assert parameter.abs().max() <= 3 * std
            assert parameter.std().item() == pytest.approx(0.987 * std, rel=0.1)  # a normal cut at three sigma


def test_released_sizes_have_170_and_426_million_parameters() -> None:
    with torch.device("meta"):
        small = AOGPTForAnyOrderLM(AOGPTConfig())
        medium = AOGPTForAnyOrderLM(AOGPTConfig(hidden_size=1024, num_hidden_layers=24, num_attention_heads=16))
    sizes = [sum(parameter.numel() for parameter in model.parameters()) for model in (small, medium)]
    assert [round(size / 1e6, 1) for size in sizes] == [170.6, 425.8]


def test_bfloat16_is_close_to_float64(ids: torch.LongTensor, orders: torch.LongTensor) -> None:
    model = random_model(initializer_range=0.1)
    expected = model(ids, orders).logits
    result = copy.deepcopy(model).bfloat16()(ids, orders).logits
    assert result.dtype == torch.bfloat16
    assert (result.double() - expected).abs().max() < 0.03 * expected.abs().max()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = model.float()(ids, orders, labels=ids).loss
    assert loss.dtype == torch.float32


def test_hidden_states_and_attentions_are_returned_on_request(ids: torch.LongTensor) -> None:
    model = random_model()
    model.set_attn_implementation("eager")
    output = model(ids, output_hidden_states=True, output_attentions=True)
    assert [tuple(states.shape) for states in output.hidden_states] == [(3, 12, 16)] * 3
    assert [tuple(weights.shape) for weights in output.attentions] == [(3, 2, 12, 12)] * 2
    assert model(ids, return_dict=False)[0].shape == (3, 12, 11)


def test_compiles_without_graph_breaks(ids: torch.LongTensor, orders: torch.LongTensor) -> None:
    model = random_model(position_encoding="rotary")
    compiled = torch.compile(model, backend="eager", fullgraph=True)
    torch.testing.assert_close(compiled(ids, orders).logits, model(ids, orders).logits)


# --------------------------------------------------------------------------------------------- saving and loading


@variants
def test_one_checkpoint_loads_as_every_class(variant: dict, tmp_path: Path, ids: torch.LongTensor) -> None:
    model = random_model(**variant)
    model.save_pretrained(tmp_path, max_shard_size="5KB")
    assert len(list(tmp_path.glob("*.safetensors"))) > 1
    for auto, expected in (
        (AutoModel, AOGPTForAnyOrderLM),
        (AutoModelForMaskedLM, AOGPTForMaskedLM),
        (AutoModelForCausalLM, AOGPTForCausalLM),
    ):
        loaded, info = auto.from_pretrained(tmp_path, output_loading_info=True)
        assert type(loaded) is expected
        assert not any(info.values()), info
        assert {tensor.dtype for tensor in loaded.state_dict().values()} == {torch.float64}
    loaded = AutoModel.from_pretrained(tmp_path)
    assert torch.equal(loaded(ids).logits, model(ids).logits)


@pytest.mark.skipif(
    Version(version("transformers")) < Version("5.19") or Version(version("accelerate")) < Version("1.15"),
    reason="older versions of either library lose offloaded weights",
)
@pytest.mark.parametrize("injection", ["adaln", "input", "shared", "per_layer"])
def test_weights_offloaded_to_disk_are_loaded_when_needed(
    injection: str, tmp_path: Path, ids: torch.LongTensor
) -> None:
    model = random_model(target_injection=injection).float()
    model.save_pretrained(tmp_path / "model")
    offloaded = AOGPTForAnyOrderLM.from_pretrained(
        tmp_path / "model", device_map={"": "disk"}, offload_folder=tmp_path / "offload"
    )
    assert offloaded.device.type == "meta"
    assert torch.equal(offloaded(ids).logits, model(ids).logits)
    losses = [each(ids, labels=ids, skip_logits=True).loss for each in (offloaded, model)]
    torch.testing.assert_close(*losses)
    prompt = ids[:, :5]
    arguments = {"max_length": 12, "do_sample": False, "order": "left_to_right"}
    assert torch.equal(offloaded.generate(prompt, **arguments), model.generate(prompt, **arguments))


def test_device_map_dtype_and_meta_device_work(tmp_path: Path, ids: torch.LongTensor) -> None:
    random_model().save_pretrained(tmp_path)
    loaded = AOGPTForAnyOrderLM.from_pretrained(tmp_path, device_map="cpu", dtype=torch.bfloat16)
    assert loaded(ids).logits.dtype == torch.bfloat16
    with torch.device("meta"):
        assert AOGPTForAnyOrderLM(loaded.config).lm_head.weight.is_meta


# ------------------------------------------------------------------------------------------------------------- errors


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            {"input_ids": torch.zeros(1, 13, dtype=torch.long)},
            "13 tokens per sequence .*, but this model takes 1 to 12",
        ),
        ({"input_ids": torch.zeros(1, 0, dtype=torch.long)}, "0 tokens per sequence"),
        ({"input_ids": torch.tensor([[0, 12]])}, "`input_ids` contains the id 12, but .* at least 0 and below 11"),
        ({"input_ids": torch.tensor([[0, -1]])}, "`input_ids` contains the id -1, but"),
        (
            {"input_ids": torch.tensor([[0, 11]])},
            r"This id is the mask\. generate\(\) and masked language models accept masked positions",
        ),
        (
            {"input_ids": torch.tensor([[0, 1]]), "orders": torch.tensor([[1, 1]])},
            r"`orders\[0\]` must contain each position from 0 to 1 exactly once, but is \[1, 1\]",
        ),
        (
            {"input_ids": torch.tensor([[0, 1]]), "orders": torch.tensor([[0, 1, 2]])},
            r"`orders` must have .*shape \(1, 2\)",
        ),
    ],
)
def test_inputs_that_are_not_allowed_are_errors(arguments: dict, message: str) -> None:
    for model in (random_model(), random_model().train()):
        with pytest.raises(ValueError, match=message):
            model(**arguments)


@pytest.mark.parametrize("label", [13, 14])
def test_labels_that_are_not_text_are_errors(label: int) -> None:
    """Ids that are not text have no probability mass, so the loss would be infinite."""
    config = random_model(vocab_size=16, num_valid_tokens=13).config
    decoders = [model_class(config) for model_class in (AOGPTForAnyOrderLM, AOGPTForMaskedLM, AOGPTForCausalLM)]
    for model in (*decoders, random_encoder(vocab_size=16, num_valid_tokens=13)):
        is_masked_lm = isinstance(model, AOGPTForMaskedLM | MDMEncoderForMaskedLM)
        ids = torch.tensor([[1, 13 if is_masked_lm else 2, 3]])
        assert model(ids, labels=torch.tensor([[1, 2, -100]])).loss.isfinite()
        with pytest.raises(ValueError, match=rf"`labels` contains the id {label}, but .* at"):
            model(ids, labels=torch.tensor([[1, label, -100]]))


@pytest.mark.parametrize(
    ("ids", "message"),
    [
        (torch.zeros(0, 5, dtype=torch.long), r"must have shape \(batch, n\) with batch >= 1, but has shape \(0, 5\)"),
        (torch.zeros(5, dtype=torch.long), r"has shape \(5,\)"),
        (torch.zeros(1, 5), r"must hold integers, but has dtype torch\.float32\. Use input.*\.long\(\)"),
    ],
)
def test_inputs_that_are_not_a_batch_of_ids_are_errors(ids: torch.Tensor, message: str) -> None:
    decoder, encoder = random_model(), random_encoder()
    calls = [model_class(decoder.config) for model_class in (AOGPTForMaskedLM, AOGPTForCausalLM)]
    for model in (decoder, encoder):
        calls += [model, model.log_likelihood, model.generate]
    for call in calls:
        with pytest.raises(ValueError, match=message):
            call(ids)


def vocabulary_sizes(model: AOGPTForAnyOrderLM) -> tuple[int, int, int]:
    assert model.lm_head.weight.shape[0] == model.get_input_embeddings().num_embeddings == model.config.vocab_size
    return model.config.vocab_size, model.config.num_valid_tokens, model.config.mask_token_id


def test_added_ids_below_the_mask_become_text() -> None:
    model = random_model()  # 11 ids of text; the mask is 11
    model.resize_token_embeddings(12)  # the size of a tokenizer that includes the mask
    assert vocabulary_sizes(model) == (12, 11, 11)
    with pytest.raises(ValueError, match=r"`new_num_tokens` \(14\) adds ids above the"):
        model.resize_token_embeddings(14)
    model.resize_token_embeddings(pad_to_multiple_of=8)
    assert vocabulary_sizes(model) == (16, 11, 11)
    model.config.mask_token_id = 18
    model.resize_token_embeddings(18)
    assert vocabulary_sizes(model) == (18, 18, 18)
    with torch.no_grad():
        model.lm_head.bias[17] += 100
    assert (model.generate(torch.tensor([[17, 18]])) == 17).all()
    assert model(torch.tensor([[17, 3]])).logits.isfinite().all()


def test_added_ids_become_text_if_the_table_had_unused_entries() -> None:
    """The tables of Qwen and GPT-2 are larger than their vocabularies."""
    for size in (14, 20):
        model = random_model(vocab_size=20, num_valid_tokens=11)
        model.config.mask_token_id = 13
        model.resize_token_embeddings(size)
        assert vocabulary_sizes(model) == (size, 13, 13)
        assert model(torch.tensor([[12, 3]])).logits.isfinite().all()


def test_resizing_keeps_the_rows_of_text_and_of_the_mask_of_an_encoder() -> None:
    sizes = {"vocab_size": 16, "num_valid_tokens": 11}
    for model, smallest, message in (
        (random_model(**sizes), 11, r"`num_valid_tokens` \(11\) exceeds `vocab_size` \(10\)\. Change one of them\."),
        (random_encoder(**sizes), 12, r"`mask_token_id` \(11\) must be in the token table of an encoder"),
    ):
        before = copy.deepcopy(model.state_dict())
        with pytest.raises(ValueError, match=message):
            model.resize_token_embeddings(smallest - 1)
        assert vocabulary_sizes(model) == (16, 11, 11)
        torch.testing.assert_close(model.state_dict(), before, rtol=0, atol=0)
        model.resize_token_embeddings(smallest)
        assert vocabulary_sizes(model) == (smallest, 11, 11)


@pytest.mark.parametrize("shape", [(5, 2), (10,), (1, 5), (2, 4)])
@pytest.mark.parametrize("padded", [False, True])
def test_labels_of_another_shape_or_dtype_are_errors(shape: tuple[int, ...], padded: bool) -> None:
    """The loss flattens labels, so transposed ones, or one row for several, would be scored without an error."""
    ids, labels = torch.zeros(2, 5, dtype=torch.long), torch.zeros(shape, dtype=torch.long)
    config = random_model().config
    for model in (AOGPTForAnyOrderLM(config), AOGPTForMaskedLM(config), AOGPTForCausalLM(config), random_encoder()):
        with pytest.raises(ValueError, match=f"`labels` must have .* but has shape {re.escape(str(shape))}"):
            model(ids, attention_mask=torch.ones_like(ids) if padded else None, labels=labels)
        with pytest.raises(ValueError, match=r"`labels` must hold integers, but has dtype"):
            model(ids, labels=ids.double() + 0.7)


@pytest.mark.parametrize("dtype", [torch.float32, torch.int64, torch.bool])
def test_attention_masks_are_0_and_1(dtype: torch.dtype) -> None:
    ids, config = torch.tensor([[9, 3, 7]]), random_model().config
    for model in (AOGPTForAnyOrderLM(config), AOGPTForMaskedLM(config), AOGPTForCausalLM(config), random_encoder()):
        given = model(ids, attention_mask=torch.tensor([[0, 1, 1]], dtype=dtype)).logits
        torch.testing.assert_close(given[:, 1:], model(ids[:, 1:]).logits, rtol=0, atol=1e-5)
        for wrong in (torch.finfo(torch.float32).min, -1, 2, 0.5, torch.nan):
            with pytest.raises(ValueError, match=r"`attention_mask` must be 0 .* and 1"):
                model(ids, attention_mask=torch.tensor([[wrong, 0, 1]]))


def test_num_kept_returns_the_last_rows_and_needs_an_attention_mask(ids: torch.LongTensor) -> None:
    model, rows = random_model(), branch_rows(ids, torch.arange(12).expand(3, 12), torch.zeros_like(ids))
    whole = model.model(**rows).last_hidden_state
    causal = torch.ones(12, 12, dtype=torch.bool).tril()[None, None]
    for implementation in ("eager", "sdpa"):
        model.set_attn_implementation(implementation)
        last = model.model(**rows, attention_mask=causal, num_kept=5).last_hidden_state
        torch.testing.assert_close(last, whole[:, 7:], rtol=0, atol=1e-12)
    with pytest.raises(ValueError, match="`num_kept=5` of 12 rows needs an `attention_mask`"):
        model.model(**rows, num_kept=5)
    with pytest.raises(ValueError, match=r"`num_kept` must be an integer from 1 to 12"):
        model.model(**rows, attention_mask=causal, num_kept=0)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int16, torch.int32])
def test_short_integers_give_the_same_result(
    ids: torch.LongTensor, orders: torch.LongTensor, dtype: torch.dtype
) -> None:
    model = random_model()
    assert torch.equal(model(ids.to(dtype), orders.to(dtype)).logits, model(ids, orders).logits)


@pytest.mark.parametrize("shape", [(2, 7), (2, 4), (3, 5), (1, 5), (5,)])
def test_an_attention_mask_of_another_shape_is_an_error(shape: tuple[int, ...]) -> None:
    ids, mask = torch.zeros(2, 5, dtype=torch.long), torch.ones(shape, dtype=torch.long)
    decoder = random_model(max_position_embeddings=8)
    masked, encoder = AOGPTForMaskedLM(decoder.config), random_encoder(max_position_embeddings=8)
    for call in (decoder, decoder.log_likelihood, masked, encoder, encoder.log_likelihood):
        with pytest.raises(ValueError, match=rf"`attention_mask` must have .* but has shape {re.escape(str(shape))}"):
            call(ids, attention_mask=mask)
