# Copyright 2026 The AO-GPT package authors. SPDX-License-Identifier: Apache-2.0
"""Queries of the key-value cache against full forward passes."""

import pytest
import torch

from modeling_aogpt import AnyOrderGenerationOutput, AOGPTForAnyOrderLM, decoding_state, modeling_aogpt
from modeling_aogpt.decoding_state import AnyOrderCache, CachedDecodingState
from tests.references import conditional, perturb_vectors, ragged_inputs, random_model, seeded

ARCHITECTURES = [
    {"target_injection": injection, "position_encoding": encoding}
    for injection in ("adaln", "input", "shared", "per_layer")
    for encoding in ("learned", "rotary")
] + [
    {"norm": "layernorm", "qk_norm": False, "tie_word_embeddings": True, "lm_head_bias": False},
]


def check_against_full_forwards(
    model: AOGPTForAnyOrderLM, output: AnyOrderGenerationOutput, inputs: torch.LongTensor
) -> None:
    """Check that each log-probability is that of a full forward pass given all tokens of earlier steps."""
    for ids, order, steps, logprobs, given in zip(
        output.sequences, output.orders, output.unmasking_steps, output.token_logprobs, inputs, strict=True
    ):
        is_masked = given == model.config.mask_token_id
        assert torch.equal(ids[~is_masked], given[~is_masked])
        for target in is_masked.nonzero().flatten().tolist():
            context = tuple((p, ids[p].item()) for p in order.tolist() if steps[p] < steps[target])
            reference = conditional(model, context, target, len(ids))[ids[target]].log()
            assert abs(logprobs[target] - reference) < 1e-10


@pytest.mark.parametrize("arguments", ARCHITECTURES, ids=lambda arguments: "-".join(map(str, arguments.values())))
@pytest.mark.parametrize("unmasking", ["bernoulli", "fixed_count"])
def test_cached_queries_equal_full_forwards(arguments: dict, unmasking: str) -> None:
    """With few steps, so that a step unmasks many positions."""
    model, inputs = random_model(**arguments), ragged_inputs()
    output = model.generate(inputs, num_steps=4, unmasking=unmasking, generator=seeded(1), return_dict_in_generate=True)
    assert output.num_forward_passes <= 4
    check_against_full_forwards(model, output, inputs)


@pytest.mark.parametrize("order", ["random", "left_to_right"])
def test_sequences_may_query_different_ranks_in_one_pass(order: str) -> None:
    model, inputs = random_model(), ragged_inputs()
    output = model.generate(inputs, order=order, generator=seeded(1), return_dict_in_generate=True)
    check_against_full_forwards(model, output, inputs)


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
@pytest.mark.parametrize("encoding", ["learned", "rotary"])
@pytest.mark.parametrize("injection", ["adaln", "input", "shared", "per_layer"])
def test_last_layer_skips_rows_that_only_enter_the_cache(injection: str, encoding: str, attention: str) -> None:
    """Four steps of 3 tokens each: a pass adds two tokens of the last step to the cache, and queries three ranks."""
    model = random_model(target_injection=injection, position_encoding=encoding)
    model.set_attn_implementation(attention)
    num_rows = []
    model.model.layers[-1].register_forward_hook(
        lambda module, arguments, output: num_rows.append((arguments[0].shape[1], output.shape[1]))
    )
    output = model.generate(num_return_sequences=2, num_steps=4, unmasking="fixed_count", return_dict_in_generate=True)
    assert num_rows == [(3, 3), (5, 3), (5, 3), (5, 3)]
    check_against_full_forwards(model, output, torch.full((2, 12), model.config.mask_token_id))


def test_padding_anywhere_does_not_change_the_result() -> None:
    model = random_model(position_encoding="rotary")
    mask = model.config.mask_token_id
    ids = torch.tensor([[3, mask, 5, mask, mask, 1]])
    padded = torch.tensor([[-1, 3, mask, 99, 5, mask, mask, 0, 1, mask]])
    attention_mask = torch.tensor([[0, 1, 1, 0, 1, 1, 1, 0, 1, 0]])
    order = torch.tensor([[4, 1, 3, 0, 5, 2]])
    columns = attention_mask[0].nonzero().flatten()
    padded_order = torch.cat((columns[order[0]], (attention_mask[0] == 0).nonzero().flatten()))[None]
    plain = model.generate(ids, order=order, do_sample=False, return_dict_in_generate=True)
    result = model.generate(
        padded, attention_mask=attention_mask, order=padded_order, do_sample=False, return_dict_in_generate=True
    )
    assert torch.equal(result.sequences[:, columns], plain.sequences)
    assert torch.equal(result.sequences[attention_mask == 0], padded[attention_mask == 0])
    torch.testing.assert_close(result.token_logprobs[:, columns], plain.token_logprobs, rtol=0, atol=1e-12)


def test_number_of_passes_and_rows() -> None:
    """T steps of the same size take about 2n - T + 1 rows: a pass adds all tokens of the last step but one."""
    output = random_model().generate(num_steps=3, unmasking="fixed_count", return_dict_in_generate=True)
    assert output.num_forward_passes == 3
    assert output.num_rows == 4 + (3 + 4) + (3 + 4)
    one_by_one = random_model().generate(return_dict_in_generate=True)
    assert (one_by_one.num_forward_passes, one_by_one.num_rows) == (12, 12)


def test_no_rows_are_computed_to_make_sequences_equally_long() -> None:
    """After the first step, a step of k tokens takes k rows, and one for each but the last token of the step before."""
    model = random_model()
    output = model.generate(num_return_sequences=5, num_steps=4, generator=seeded(), return_dict_in_generate=True)
    num_rows = 0
    for steps in output.unmasking_steps:
        counts = steps.unique(return_counts=True)[1]
        num_rows += int(counts.sum() + (counts[:-1] - 1).sum())
    assert output.num_rows == num_rows


def test_cache_has_the_dtype_of_attention() -> None:
    """So that no pass converts the cache."""
    model, zeros = random_model().float(), torch.zeros(1, 12, dtype=torch.long)
    arguments = model, zeros, torch.arange(12)[None], zeros, zeros == 0
    assert CachedDecodingState(*arguments).cache.layers[0][0].dtype == torch.float32
    with torch.autocast("cpu", torch.bfloat16):
        assert CachedDecodingState(*arguments).cache.layers[0][0].dtype == torch.bfloat16


@pytest.mark.parametrize("num_rows", [1, 3])
@pytest.mark.parametrize(
    "arguments", [{}, {"num_steps": 1}, {"num_steps": 2}, {"order": "confidence"}, {"strategy": "speculative"}]
)
def test_many_rows_take_several_passes(arguments: dict, num_rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    model, rows = random_model(), []
    inputs = torch.tensor([[3, 1, 4, 1, 5, 9, 2, 6, 5, 11, 11, 11], [11, 3, 11, 11, 1, 11, 4, 11, 11, 11, 11, 2]])
    arguments = {"order": "left_to_right", "return_dict_in_generate": True, **arguments}
    whole = model.generate(inputs, generator=seeded(), **arguments)
    monkeypatch.setattr(decoding_state, "MAX_ROWS_PER_PASS", num_rows)
    model.model.layers[0].register_forward_hook(lambda module, arguments, output: rows.append(len(arguments[0][0])))
    parts = model.generate(inputs, generator=seeded(), **arguments)
    assert num_rows <= max(rows) <= 2 * num_rows  # more if the rows of both sequences are packed into one line
    assert parts.num_forward_passes >= whole.num_forward_passes + 2
    assert torch.equal(parts.sequences, whole.sequences)
    torch.testing.assert_close(parts.token_logprobs, whole.token_logprobs, rtol=0, atol=1e-12)


def test_heads_that_are_divided_among_processes_are_an_error() -> None:
    config = random_model().config
    cache = AnyOrderCache(config, 3, 8, torch.float32, [torch.device("cpu")])
    cache.set_rows(slice(0, 2), 2)
    one_head = torch.zeros(3, 1, 2, config.head_dim)
    with pytest.raises(ValueError, match="1 key-value heads, but the cache has"):
        cache.update(one_head, one_head, 0)


@pytest.mark.parametrize("most_rows", [0, 12])
@pytest.mark.parametrize("has_hook", [False, True])
@pytest.mark.parametrize("sizes", [{}, {"norm": "layernorm"}, {"norm": "layernorm", "norm_weight": False}])
@torch.no_grad()
def test_tables_of_modulations_include_plain_norms(
    sizes: dict[str, object], has_hook: bool, most_rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With more rows, each layer reads its own part of the table."""
    monkeypatch.setitem(modeling_aogpt.MAX_JOINT_ROWS, "cpu", most_rows)
    model, ids = random_model(**sizes), torch.arange(12)[None] % 11
    perturb_vectors(model)
    if has_hook:
        model.model.norm.register_forward_hook(lambda module, inputs, output: 2 * output)
    rows = {"input_ids": ids, "positions": torch.arange(12)[None] - 1, "target_positions": torch.arange(12)[None]}
    expected = model.model(**rows).last_hidden_state
    precomputed = model.model.precompute(torch.device("cpu"), 12)
    assert (precomputed.table is None) == has_hook
    found = model.model(**rows, precomputed=precomputed).last_hidden_state
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)
