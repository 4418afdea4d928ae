# Copyright 2026 The AO-GPT package authors. SPDX-License-Identifier: Apache-2.0

from contextlib import nullcontext

import pytest
import torch
from transformers import PreTrainedTokenizerFast, StaticCache, pipeline

from modeling_aogpt import AOGPTForAnyOrderLM, AOGPTForCausalLM
from modeling_aogpt.causal import CACHE_NAME
from tests.references import random_model, with_class


@pytest.fixture(params=["learned", "rotary"])
def any_order(request: pytest.FixtureRequest) -> AOGPTForAnyOrderLM:
    return random_model(position_encoding=request.param)


def test_logits_and_loss_are_those_of_the_left_to_right_order_shifted(
    any_order: AOGPTForAnyOrderLM, causal: AOGPTForCausalLM, ids: torch.LongTensor
) -> None:
    expected = any_order(ids).logits
    output = causal(ids, labels=ids)
    torch.testing.assert_close(output.logits[:, :-1], expected[:, 1:], rtol=0, atol=1e-12)
    loss = torch.nn.functional.cross_entropy(expected[:, 1:].flatten(0, 1), ids[:, 1:].flatten())
    torch.testing.assert_close(output.loss, loss)
    for kept, columns in ((2, [10, 11]), (torch.tensor([3, 7]), [3, 7])):
        kept_logits = causal(ids, logits_to_keep=kept).logits
        torch.testing.assert_close(kept_logits, output.logits[:, columns], equal_nan=True)
    states = causal(ids, output_hidden_states=True).hidden_states
    assert [tuple(state.shape) for state in states] == [(3, 12, 16)] * 3
    torch.testing.assert_close(causal.lm_head(states[-1])[:, :-1], output.logits[:, :-1])


def test_ids_that_are_not_text_are_never_generated() -> None:
    model = AOGPTForCausalLM(random_model(vocab_size=16, num_valid_tokens=3).config).eval()
    prompt = torch.tensor([[1]]).expand(50, 1)
    samples = model.generate(
        prompt, attention_mask=torch.ones_like(prompt), max_length=12, do_sample=True, pad_token_id=0
    )
    assert samples.max() <= 2


def test_the_text_may_start_at_a_later_position(causal: AOGPTForCausalLM, ids: torch.LongTensor) -> None:
    positions = torch.tensor([[-1, 3, 4, 5, 6]]).expand(3, 5)  # with the start row
    rows = {"input_ids": torch.nn.functional.pad(ids[:, :4], (1, 0)), "positions": positions}
    states = causal.model(**rows, target_positions=positions + 1).last_hidden_state[:, 1:]
    logits = causal(ids[:, :4], position_ids=3 + torch.arange(4)[None]).logits
    torch.testing.assert_close(logits, causal.lm_head(states), rtol=0, atol=1e-12)


def test_the_decoder_reads_texts_from_left_to_right(causal: AOGPTForCausalLM, ids: torch.LongTensor) -> None:
    """Libraries such as TRL call it with texts, and apply the head themselves."""
    mask = (torch.arange(12) < torch.tensor([[12], [7], [3]])).long()
    states = causal.base_model(ids, attention_mask=mask, use_cache=False).last_hidden_state
    is_read = (mask == 1) & (torch.arange(12) < 11)  # after the last position, the model predicts nothing
    expected = causal(ids, attention_mask=mask).logits
    torch.testing.assert_close(causal.lm_head(states)[is_read], expected[is_read], rtol=0, atol=1e-12)
    options = {"position_ids": torch.arange(3, 7), "output_hidden_states": True}
    states, layers = causal.base_model(ids[:, :4], **options).values()
    assert [tuple(state.shape) for state in layers] == [(3, 5, 16)] * 2 + [(3, 4, 16)]
    expected = causal(ids[:, :4], position_ids=torch.arange(3, 7)).logits
    torch.testing.assert_close(causal.lm_head(states), expected, rtol=0, atol=1e-12)
    with pytest.raises(ValueError, match=r"no `orders`"):
        causal.base_model(ids, orders=ids)


def test_libraries_that_apply_the_head_are_told_to_remove_ids_that_are_not_text(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    warnings: list[str] = []
    monkeypatch.setattr("modeling_aogpt.modeling_aogpt.logger.warning_once", warnings.append)
    ids = torch.tensor([[1, 2, 3]])
    model = with_class(random_model(vocab_size=14, num_valid_tokens=11), AOGPTForCausalLM)
    expected = model(ids).logits.log_softmax(dim=-1)[..., :11]
    assert not warnings
    model.base_model(ids)
    assert ["model.resize_token_embeddings(" in warning for warning in warnings] == [True]
    model.resize_token_embeddings(model.config.num_valid_tokens)
    log_probs = model.lm_head(model.base_model(ids).last_hidden_state).log_softmax(dim=-1)
    torch.testing.assert_close(log_probs, expected)
    assert len(warnings) == 1


@pytest.mark.parametrize("name", ["cache", "past_key_values"])
@pytest.mark.parametrize("implementation", ["eager", "sdpa"])
def test_several_passes_with_a_cache_equal_one_pass(
    causal: AOGPTForCausalLM, ids: torch.LongTensor, implementation: str, name: str
) -> None:
    causal.set_attn_implementation(implementation)
    whole = causal(ids).logits
    cache, parts = None, []
    for start, end in ((0, 5), (5, 6), (6, 9), (9, 12)):
        is_deprecated = start > 0 and (name, CACHE_NAME) == ("past_key_values", "cache")
        with pytest.warns(FutureWarning, match="Use `cache`") if is_deprecated else nullcontext():
            output = causal(ids[:, start:end], **{name: cache}, use_cache=True)
        cache = output[CACHE_NAME]
        parts.append(output.logits)
    assert cache.get_seq_length() == 12
    torch.testing.assert_close(torch.cat(parts, dim=1), whole, rtol=0, atol=1e-12, equal_nan=True)


def test_padding_anywhere_changes_no_logits(causal: AOGPTForCausalLM) -> None:
    plain = causal(torch.tensor([[3, 7, 5, 1]])).logits
    keep = torch.tensor([[0, 1, 0, 1, 1, 0, 1]])
    padded = causal(torch.tensor([[9, 3, -1, 7, 5, 11, 1]]), attention_mask=keep).logits
    torch.testing.assert_close(padded[keep == 1][None], plain, rtol=0, atol=1e-12)


def test_a_4d_attention_mask_may_be_boolean_or_additive(causal: AOGPTForCausalLM, ids: torch.LongTensor) -> None:
    is_visible = torch.ones(1, 1, 12, 12, dtype=torch.bool).tril()
    is_visible[..., 6:, 2] = False
    additive = torch.zeros(is_visible.shape).masked_fill(~is_visible, torch.finfo(torch.float32).min)
    logits = causal(ids, attention_mask=is_visible).logits
    logits_of_additive = causal(ids, attention_mask=additive).logits
    torch.testing.assert_close(logits_of_additive, logits, rtol=0, atol=1e-12, equal_nan=True)
    differs = (logits - causal(ids).logits).abs().amax(dim=(0, 2)) > 1e-6
    assert differs[:-1].tolist() == [False] * 6 + [True] * 5


@pytest.mark.parametrize("shape", [(1, 1, 12, 12), (1, 12, 12)])
def test_an_attention_mask_that_could_be_misread_is_an_error(
    causal: AOGPTForCausalLM, ids: torch.LongTensor, shape: tuple[int, ...]
) -> None:
    """An integer mask of 4 dimensions could be boolean (0 is masked) or additive (0 is not masked)."""
    message = r"floating-point dtype, but has shape \(1, .*12, 12\) and dtype torch\.int64\. Use attention_mask\.bool"
    with pytest.raises(ValueError, match=message):
        causal(ids, attention_mask=torch.ones(shape, dtype=torch.long).tril())


@pytest.mark.parametrize("cache", ["dynamic", "static"])
def test_greedy_generation_of_transformers_equals_left_to_right_any_order_generation(
    any_order: AOGPTForAnyOrderLM, causal: AOGPTForCausalLM, ids: torch.LongTensor, cache: str
) -> None:
    prompt = ids[:, :4]
    expected = any_order.generate(prompt, max_length=12, order="left_to_right", do_sample=False)
    result = causal.generate(
        prompt,
        attention_mask=torch.ones_like(prompt),
        max_length=12,
        do_sample=False,
        cache_implementation=cache,
        disable_compile=True,
        pad_token_id=0,
    )
    assert torch.equal(result, expected)


def test_left_padding_does_not_change_generation(causal: AOGPTForCausalLM, ids: torch.LongTensor) -> None:
    prompt, keep = ids[:2, :5].clone(), torch.ones(2, 5, dtype=torch.long)
    keep[1, :3] = 0
    arguments = {"max_new_tokens": 5, "do_sample": False, "pad_token_id": 0}
    together = causal.generate(prompt, attention_mask=keep, **arguments)
    alone = causal.generate(prompt[1:, 3:], attention_mask=keep[1:, 3:], **arguments)
    assert torch.equal(together[1:, 3:], alone)


def test_padding_after_a_prompt_is_an_error(causal: AOGPTForCausalLM, ids: torch.LongTensor) -> None:
    """Transformers warns only if it knows the padding token, and continues from the padding."""
    mask = torch.ones_like(ids)
    mask[0, -2:] = 0
    with pytest.raises(ValueError, match="padding_side"):
        causal.generate(ids, attention_mask=mask, max_new_tokens=2)


def test_beam_search_finds_the_likeliest_sequence(causal: AOGPTForCausalLM, any_order: AOGPTForAnyOrderLM) -> None:
    """With as many beams as there are prefixes, nothing is pruned."""
    prompt = torch.tensor([[4]])
    best = causal.generate(prompt, max_new_tokens=2, num_beams=121, do_sample=False, pad_token_id=0)
    all_sequences = torch.cartesian_prod(torch.tensor([4]), torch.arange(11), torch.arange(11))
    scores = any_order.log_likelihood(all_sequences).token_log_likelihood[:, 1:].sum(1)
    assert best.tolist() == [all_sequences[scores.argmax()].tolist()]


def test_the_text_generation_pipeline_continues_a_text(
    folder: str, tiny_model: AOGPTForAnyOrderLM, tiny_tokenizer: PreTrainedTokenizerFast
) -> None:
    generate = pipeline("text-generation", model=folder)
    text = generate("abc", max_new_tokens=4, do_sample=False, return_full_text=False)[0]["generated_text"]
    ids = tiny_model.generate(torch.tensor([[0, 1, 2]]), max_new_tokens=4, order="left_to_right", do_sample=False)
    assert text == tiny_tokenizer.decode(ids[0, 3:], skip_special_tokens=True)


def test_generate_accepts_a_tokenizer(causal: AOGPTForCausalLM, tiny_tokenizer: PreTrainedTokenizerFast) -> None:
    """`stop_strings` need it. Transformers passes it on to the forward of the model."""
    prompt = torch.tensor([[0]])
    settings = {"attention_mask": torch.ones_like(prompt), "max_length": 4, "do_sample": False}
    assert torch.equal(
        causal.generate(prompt, **settings, tokenizer=tiny_tokenizer), causal.generate(prompt, **settings)
    )


def test_generating_more_tokens_than_there_are_positions_is_an_error(causal: AOGPTForCausalLM) -> None:
    prompt = torch.tensor([[1, 2, 3]])
    mask = torch.ones_like(prompt)
    assert causal.generate(prompt, attention_mask=mask, max_length=12).shape == (1, 12)
    message = r"at position 12, but the last position of this model is 11 \(config\.max_position_embeddings is 12\)"
    with pytest.raises(ValueError, match=message):
        causal.generate(prompt, attention_mask=mask, max_length=13)
    mask[0, 0] = 0  # padding has no position
    assert causal.generate(prompt, attention_mask=mask, max_length=13).shape == (1, 13)


@pytest.mark.parametrize(
    "prefill", ["whole", "without cache", "beams", "chunks", "filled cache", "new tokens after a filled cache"]
)
def test_a_prompt_that_fills_all_positions_is_an_error(causal: AOGPTForCausalLM, prefill: str) -> None:
    """However the prompt is run: in chunks, or after a cache that already holds its first tokens."""
    prompt = torch.arange(12)[None] % 8
    for length in (11, 12):
        ids, mask = prompt[:, :length], torch.ones(1, length, dtype=torch.long)
        settings = {
            "without cache": {"use_cache": False},
            "beams": {"num_beams": 2},
            "chunks": {"prefill_chunk_size": 5},
        }
        settings = dict(settings.get(prefill, {}))
        if "filled" in prefill:
            settings[CACHE_NAME] = causal(ids[:, :8], use_cache=True)[CACHE_NAME]
        if prefill.startswith("new"):
            ids = ids[:, 8:]
        if length == 11:
            expected = causal(prompt[:, :length]).logits[:, -1].argmax(dim=-1)
            assert (
                causal.generate(ids, attention_mask=mask, max_new_tokens=1, do_sample=False, **settings)[0, -1]
                == expected
            )
            continue
        with pytest.raises(ValueError, match="at position 12, but the last position of this"):
            causal.generate(ids, attention_mask=mask, max_new_tokens=1, do_sample=False, **settings)


def test_an_assistant_needs_a_position_after_the_prompt(causal: AOGPTForCausalLM) -> None:
    longer = with_class(random_model(max_position_embeddings=24), AOGPTForCausalLM)
    prompt = torch.arange(12)[None] % 8
    settings = {"attention_mask": torch.ones_like(prompt), "max_new_tokens": 4, "do_sample": False}
    assert longer.generate(prompt, **settings).shape == (1, 16)
    with pytest.raises(ValueError, match="at position 12, but the last position of this"):
        longer.generate(prompt, **settings, assistant_model=causal)


def test_inputs_that_are_not_allowed_are_errors(causal: AOGPTForCausalLM) -> None:
    with pytest.raises(ValueError, match="13 tokens per sequence"):
        causal(torch.zeros(1, 13, dtype=torch.long))
    with pytest.raises(ValueError, match="`input_ids` contains the id 11"):
        causal(torch.tensor([[11]]))
    for mask in (None, torch.ones(1, 6)):
        with pytest.raises(ValueError, match=r"`position_ids` must increase by one.* packed"):
            causal(torch.zeros(1, 6, dtype=torch.long), mask, position_ids=torch.tensor([[0, 1, 2, 0, 1, 2]]))
    ids, mask = torch.zeros(2, 3, dtype=torch.long), torch.ones(2, 3)
    for position_ids, message in [
        (torch.arange(2)[None], r"must have shape \(2, 3\), or \(1, 3\) or \(3,\) for all .* have shape \(1, 2\)"),
        (torch.arange(3).expand(3, 3), r"but have shape \(3, 3\)"),
        (torch.arange(3.0)[None], r"must hold integers, but has dtype torch.float32\. Use position_ids.long\(\)"),
        (torch.arange(3)[None] - 2, r"must be at least -1 \(for padding\), but contain -2"),
    ]:
        with pytest.raises(ValueError, match=f"`position_ids` .*{message}"):
            causal(ids, attention_mask=mask, position_ids=position_ids)
    for shape, message in [
        ((2, 1, 2, 3), r"must have shape \(2 or 1, 1, 3, keys\), with one row for each new token"),
        ((3, 1, 3, 3), r"must have shape \(2 or 1, 1, 3, keys\)"),
        ((2, 1, 3, 4), r"must have 3 keys \(the last dimension\), .* but has 4"),
    ]:
        with pytest.raises(ValueError, match=f"A 4-D `attention_mask` {message}"):
            causal(ids, attention_mask=torch.zeros(shape))
    for value in (1.0, -0.5, torch.nan):
        with pytest.raises(ValueError, match="floating-point `attention_mask`"):
            causal(ids, attention_mask=torch.full((1, 1, 3, 3), value))
    with pytest.raises(ValueError, match="`labels` need the logits of all positions"):
        causal(torch.tensor([[1, 2]]), labels=torch.tensor([[1, 2]]), logits_to_keep=1)
    with pytest.raises(ValueError, match=r"AOGPTForCausalLM\.forward got the unknown argument"):
        causal(torch.tensor([[1, 2]]), orders=torch.tensor([[0, 1]]))
    cache = causal(torch.zeros(1, 4, dtype=torch.long), use_cache=True)[CACHE_NAME]
    with pytest.raises(ValueError, match="`cache` and `past_key_values` are two names"):
        causal(torch.tensor([[1, 2]]), cache=cache, past_key_values=cache)
    for wrong in (torch.tensor([1, 2]), torch.zeros(0, 2, dtype=torch.long)):
        with pytest.raises(ValueError, match=r"`input_ids` must have shape \(batch, n\)"):
            causal(wrong, attention_mask=torch.ones(1, 2))
    with pytest.raises(ValueError, match="must have 6 columns, for 4 cached and 2 new"):
        causal(torch.tensor([[1, 2]]), cache=cache, attention_mask=torch.ones(1, 3))
    with pytest.raises(ValueError, match="must have 5 columns, for 0 cached and 5 new"):
        causal(torch.zeros(1, 5, dtype=torch.long), attention_mask=torch.ones(1, 8))
    static = StaticCache(config=causal.config, max_cache_len=12)
    with pytest.raises(ValueError, match="must have 4 columns, for 0 cached and 4 new"):
        causal(torch.zeros(1, 4, dtype=torch.long), cache=static, attention_mask=torch.ones(1, 12))
    cache = causal(torch.zeros(1, 12, dtype=torch.long), use_cache=True)[CACHE_NAME]
    with pytest.raises(ValueError, match="at position 12, but the last position of this"):
        causal(torch.tensor([[1]]), cache=cache)
