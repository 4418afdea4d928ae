# Copyright 2026 The AO-GPT package authors.
# SPDX-License-Identifier: Apache-2.0
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import GenerationConfig, SuppressTokensLogitsProcessor

from modeling_aogpt import AOGPTForAnyOrderLM
from modeling_aogpt.cached_decoder import CachedDecoder
from modeling_aogpt.generation_aogpt import AnyOrderGenerationOutput
from modeling_aogpt.generation_settings import NEUTRAL
from tests.references import Enumeration, chi_square, conditional, cut, random_model

pytestmark = pytest.mark.usefixtures("large_chunks")

ARCHITECTURES = [
    {"target_injection": injection, "position_encoding": encoding}
    for injection in ("adaln", "input", "shared", "per_layer")
    for encoding in ("learned", "rotary")
] + [{"norm": "layernorm", "qk_norm": False, "tie_word_embeddings": True, "lm_head_bias": False}]


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


# ------------------------------------------------------------------------------ the joint distribution of samples


@pytest.fixture(scope="module")
def tiny() -> Enumeration:
    """Three positions, three tokens, predictions strong enough that every rule gives a distribution of its own."""
    model = random_model(vocab_size=3, max_position_embeddings=3, position_encoding="rotary", initializer_range=0.3)
    with torch.no_grad():
        model.lm_head.weight *= 0.5  # so that no sequence is too rare to be counted
    return Enumeration(model, length=3)


def draw(tiny: Enumeration, num_samples: int = 30_000, **arguments: object) -> torch.Tensor:
    samples = tiny.model.generate(num_return_sequences=num_samples, generator=seeded(), **arguments)
    return tiny.counts_of(samples)


@pytest.mark.parametrize("num_steps", [1, 2, 3, 5])
def test_bernoulli_samples_the_reverse_process(tiny: Enumeration, num_steps: int) -> None:
    expected = tiny.of_bernoulli([1 / num_steps] * num_steps)
    assert chi_square(draw(tiny, num_steps=num_steps, reveal="bernoulli"), expected) < 1


def test_cosine_bernoulli_samples_the_reverse_process(tiny: Enumeration) -> None:
    expected = tiny.of_bernoulli([1 - 0.75**0.5, 0.75**0.5 - 0.5, 0.5])
    assert chi_square(draw(tiny, num_steps=3, reveal="bernoulli", schedule="cosine"), expected) < 1


@pytest.mark.parametrize(("num_steps", "counts"), [(1, [3]), (2, [1, 2]), (3, [1, 1, 1]), (4, [1, 1, 1])])
def test_fixed_counts_sample_random_groups(tiny: Enumeration, num_steps: int, counts: list[int]) -> None:
    assert chi_square(draw(tiny, num_steps=num_steps, reveal="fixed"), tiny.of_fixed(counts)) < 1


def test_without_steps_each_order_is_sampled_exactly(tiny: Enumeration) -> None:
    assert chi_square(draw(tiny), tiny.of_fixed([1, 1, 1])) < 1
    assert chi_square(draw(tiny, order="left_to_right"), tiny.of_groups(((0,), (1,), (2,)))) < 1


def test_given_orders_are_followed(tiny: Enumeration) -> None:
    order = (2, 0, 1)
    given = torch.tensor([order]).expand(30_000, -1)
    counts = draw(tiny, order=given, num_steps=2, reveal="fixed")
    assert chi_square(counts, tiny.of_groups(cut(order, [1, 2]))) < 1


def test_bernoulli_along_a_given_order_reveals_multinomial_counts(tiny: Enumeration) -> None:
    """With two steps of probability 1/2 the first reveals 0 ... 3 of three positions with 1/8, 3/8, 3/8, 1/8."""
    expected = sum(
        weight / 8 * tiny.of_groups(cut((0, 1, 2), counts)) for weight, counts in ((2, [3]), (3, [1, 2]), (3, [2, 1]))
    )
    assert chi_square(draw(tiny, order="left_to_right", num_steps=2, reveal="bernoulli"), expected) < 1


def test_the_test_tells_the_rules_apart(tiny: Enumeration) -> None:
    counts = draw(tiny, num_steps=2, reveal="bernoulli")
    others = [tiny.of_fixed([1, 2]), tiny.of_fixed([1, 1, 1]), tiny.of_fixed([3]), tiny.of_bernoulli([1 / 3] * 3)]
    assert all(chi_square(counts, other) > 2 for other in others)


def test_infilling_samples_the_conditional(tiny: Enumeration) -> None:
    """The masked positions given the observed one, the joint of which is renormalised over matching sequences."""
    mask = tiny.model.config.mask_token_id
    inputs = torch.tensor([[mask, 2, mask]])
    samples = tiny.model.generate(inputs, num_return_sequences=20_000, generator=seeded())
    assert (samples[:, 1] == 2).all()
    matching = torch.tensor([sequence[1] == 2 for sequence in tiny.sequences])
    expected = (tiny.of_groups(((1,), (0,), (2,))) + tiny.of_groups(((1,), (2,), (0,))))[matching]
    assert chi_square(tiny.counts_of(samples)[matching], expected / expected.sum()) < 1


# -------------------------------------------------------------------------- the cache against forwards of whole orders


def check_against_full_forwards(
    model: AOGPTForAnyOrderLM, output: AnyOrderGenerationOutput, inputs: torch.LongTensor
) -> None:
    """Each generated token's log-probability is that of a full forward with the context revealed before its step."""
    for ids, order, steps, logprobs, given in zip(
        output.sequences, output.orders, output.reveal_steps, output.token_logprobs, inputs, strict=True
    ):
        hidden = given == model.config.mask_token_id
        assert torch.equal(ids[~hidden], given[~hidden])
        for target in hidden.nonzero().flatten().tolist():
            context = tuple((p, ids[p].item()) for p in order.tolist() if steps[p] < steps[target])
            reference = conditional(model, context, target, len(ids))[ids[target]].log()
            assert abs(logprobs[target] - reference) < 1e-10


@pytest.mark.parametrize("arguments", ARCHITECTURES, ids=lambda arguments: "-".join(map(str, arguments.values())))
@pytest.mark.parametrize("reveal", ["bernoulli", "fixed"])
def test_cached_queries_equal_full_forwards(arguments: dict, reveal: str) -> None:
    """In a ragged batch: nothing given, all but one given, some given; few steps, so that groups are large."""
    model, inputs = random_model(**arguments), ragged_inputs()
    output = model.generate(inputs, num_steps=4, reveal=reveal, generator=seeded(1), return_dict_in_generate=True)
    assert output.num_forward_passes <= 4
    check_against_full_forwards(model, output, inputs)


def ragged_inputs() -> torch.LongTensor:
    """Nothing given, all but one given, some given."""
    inputs = torch.randint(0, 11, (3, 12), generator=seeded())
    inputs[0] = 11
    inputs[1, 5] = 11
    inputs[2, [0, 3, 4, 8, 11]] = 11
    return inputs


@pytest.mark.parametrize("order", ["random", "left_to_right"])
def test_one_row_for_each_sequence_wherever_it_stands(order: str) -> None:
    model, inputs = random_model(), ragged_inputs()
    output = model.generate(inputs, order=order, generator=seeded(1), return_dict_in_generate=True)
    check_against_full_forwards(model, output, inputs)


@pytest.mark.parametrize("implementation", ["eager", "sdpa"])
def test_both_attentions_generate_alike(implementation: str) -> None:
    model = random_model()
    model.set_attn_implementation(implementation)
    inputs = torch.full((2, 12), model.config.mask_token_id)
    output = model.generate(inputs, num_steps=5, generator=seeded(), return_dict_in_generate=True)
    check_against_full_forwards(model, output, inputs)


def test_padding_anywhere_changes_nothing() -> None:
    model = random_model(position_encoding="rotary")
    mask = model.config.mask_token_id
    ids = torch.tensor([[3, mask, 5, mask, mask, 1]])
    padded = torch.tensor([[-1, 3, mask, 99, 5, mask, mask, 0, 1, mask]])
    keep = torch.tensor([[0, 1, 1, 0, 1, 1, 1, 0, 1, 0]])
    order = torch.tensor([[4, 1, 3, 0, 5, 2]])
    columns = keep[0].nonzero().flatten()
    padded_order = torch.cat((columns[order[0]], (keep[0] == 0).nonzero().flatten()))[None]
    plain = model.generate(ids, order=order, do_sample=False, return_dict_in_generate=True)
    result = model.generate(
        padded, attention_mask=keep, order=padded_order, do_sample=False, return_dict_in_generate=True
    )
    assert torch.equal(result.sequences[:, columns], plain.sequences)
    assert torch.equal(result.sequences[keep == 0], padded[keep == 0])
    torch.testing.assert_close(result.token_logprobs[:, columns], plain.token_logprobs, rtol=0, atol=1e-12)


def test_blocks_do_not_count_padding() -> None:
    inputs = torch.full((8, 5), 11)
    keep = torch.tensor([[0, 1, 1, 1, 1]]).expand(8, -1)
    steps = (
        random_model()
        .generate(inputs, attention_mask=keep, block_length=2, generator=seeded(), return_dict_in_generate=True)
        .reveal_steps
    )
    assert (steps[:, 1:].view(8, 2, 2).sort().values == torch.tensor([[0, 1], [2, 3]])).all()
    assert len(steps[:, 1].unique()) == len(steps[:, 3].unique()) == 2  # in random order within


# ------------------------------------------------------------------------------------------------- the interface


def test_a_generator_makes_it_reproducible() -> None:
    model = random_model()
    first, second = (model.generate(num_return_sequences=4, num_steps=6, generator=seeded(3)) for _ in range(2))
    assert torch.equal(first, second)
    assert not torch.equal(first, model.generate(num_return_sequences=4, num_steps=6, generator=seeded(4)))


def test_lengths() -> None:
    model, mask = random_model(), 11
    assert model.generate().shape == (1, 12)
    assert model.generate(max_length=5, num_return_sequences=3).shape == (3, 5)
    prompt = torch.tensor([[1, 2], [3, 4]])
    assert model.generate(prompt, max_new_tokens=3).shape == (2, 5)
    longer = model.generate(prompt, max_length=7, num_return_sequences=2)
    assert longer[:, :2].tolist() == [[1, 2], [1, 2], [3, 4], [3, 4]]
    assert longer.shape == (4, 7)
    assert (longer != mask).all()
    assert model.generate(input_ids=prompt, attention_mask=torch.ones_like(prompt), max_new_tokens=1).shape == (2, 3)
    assert model.generate(torch.empty(2, 0, dtype=torch.long), max_new_tokens=1).shape == (2, 1)


def test_counts_passes_and_rows() -> None:
    """For T fixed groups about 2n - T + 1 rows: here each of 3 passes enters the 3 tokens but one revealed last."""
    output = random_model().generate(num_steps=3, reveal="fixed", return_dict_in_generate=True)
    assert output.num_forward_passes == 3
    assert output.num_rows == 4 + (3 + 4) + (3 + 4)
    one_by_one = random_model().generate(return_dict_in_generate=True)
    assert (one_by_one.num_forward_passes, one_by_one.num_rows) == (12, 12)


def test_output_describes_what_happened() -> None:
    model = random_model()
    inputs = torch.tensor([[1, 11, 2, 11, 11, 3]])
    output = model.generate(inputs, num_steps=2, reveal="fixed", generator=seeded(), return_dict_in_generate=True)
    hidden = inputs == 11
    assert (output.reveal_steps[~hidden] == -1).all()
    assert sorted(output.reveal_steps[hidden].tolist()) == [0, 1, 1]
    assert (output.token_logprobs[~hidden] == 0).all()
    assert set(output.orders[0, :3].tolist()) == {0, 2, 5}
    assert output.orders.sort().values.tolist() == [list(range(6))]


def test_greedy_takes_the_likeliest() -> None:
    model = random_model()
    output = model.generate(do_sample=False, order="left_to_right", return_dict_in_generate=True)
    ids, context = output.sequences[0].tolist(), ()
    for position in range(12):
        assert ids[position] == conditional(model, context, position, 12).argmax()
        context += ((position, ids[position]),)


def test_padding_of_the_table_is_never_sampled() -> None:
    model = random_model(num_valid_tokens=2)
    samples = model.generate(num_return_sequences=200, num_steps=3, temperature=5.0, generator=seeded())
    assert samples.max() == 1


def test_truncation_reaches_the_sampler() -> None:
    model = random_model()
    greedy = model.generate(do_sample=False, order="left_to_right")
    for truncation in ({"top_k": 1}, {"top_p": 1e-6}, {"temperature": 1e-4}):
        assert torch.equal(model.generate(order="left_to_right", **truncation), greedy)


def test_generation_config_gives_defaults() -> None:
    model = random_model()
    model.generation_config = GenerationConfig(
        max_length=4, num_steps=2, reveal="fixed", order="left_to_right", do_sample=False
    )
    output = model.generate(return_dict_in_generate=True)
    assert output.sequences.shape == (1, 4)
    assert output.num_forward_passes == 2
    assert output.orders.tolist() == [[0, 1, 2, 3]]
    assert model.generate(max_new_tokens=6).shape == (1, 6)
    assert model.generate(generation_config=GenerationConfig(max_length=3)).shape == (1, 3)
    # None in a call takes the config's value back.
    assert model.generate(num_steps=None, reveal=None, return_dict_in_generate=True).num_forward_passes == 4
    assert model.generate(max_length=None).shape == (1, model.config.max_position_embeddings)


def test_a_generation_config_survives_saving(tmp_path: Path) -> None:
    model = random_model()
    model.generation_config = GenerationConfig(
        num_steps=3,
        reveal="fixed",
        schedule="cosine",
        do_sample=True,
        top_p=0.9,
        top_p_rule="exclusive",
        draft_length=3,
        entropy_bound=0.5,
        output_history=True,
    )
    model.save_pretrained(tmp_path)
    loaded = AOGPTForAnyOrderLM.from_pretrained(tmp_path, dtype=torch.float64)
    output = loaded.generate(generator=seeded(), return_dict_in_generate=True)
    assert output.num_forward_passes == 3
    assert torch.equal(output.sequences, model.generate(generator=seeded()))
    # What a config holds may have nothing to say; a call that takes back what it speaks of need not name it.
    without_use = loaded.generate(num_steps=None, top_p=1.0, generator=seeded())
    assert torch.equal(without_use, random_model().generate(generator=seeded()))
    assert loaded.generate(reveal="bernoulli", top_p_rule="inclusive", schedule="linear").shape == (1, 12)


def test_a_default_that_was_set_alone_survives_saving(tmp_path: Path) -> None:
    """transformers reads back of a configuration that it made itself only what it knows."""
    model = random_model()
    model.generation_config.num_steps = 2
    for _ in range(2):
        model.save_pretrained(tmp_path)
        model = AOGPTForAnyOrderLM.from_pretrained(tmp_path)
    assert model.generate(return_dict_in_generate=True).num_forward_passes <= 2


def test_processors_may_come_in_a_plain_list() -> None:
    assert (random_model().generate(logits_processor=[SuppressTokensLogitsProcessor([*range(10)])]) == 10).all()


def test_training_mode_and_gradients_are_left_alone() -> None:
    model = random_model().train()
    model.gradient_checkpointing_enable()
    model.model.layers[1].eval()  # as one does with a frozen part
    modes = [module.training for module in model.modules()]
    result = model.generate(num_steps=6, generator=seeded())
    assert not result.requires_grad
    assert [module.training for module in model.modules()] == modes
    assert torch.equal(result, random_model().generate(num_steps=6, generator=seeded()))


def test_each_returned_sequence_keeps_its_padding() -> None:
    model, mask = random_model(), 11
    inputs, keep = torch.tensor([[1, mask, 9], [2, 9, mask]]), torch.tensor([[1, 1, 0], [1, 0, 1]])
    samples = model.generate(inputs, attention_mask=keep, num_return_sequences=2)
    for row, given, kept in zip(samples, inputs.repeat_interleave(2, 0), keep.repeat_interleave(2, 0), strict=True):
        assert torch.equal(row[kept == 0], given[kept == 0])
        assert row[0] == given[0]
        assert (row != mask).all()


@pytest.mark.parametrize(("autocast", "encoding"), [(False, "learned"), (True, "learned"), (True, "rotary")])
def test_bfloat16_generates_near_what_it_scores(autocast: bool, encoding: str) -> None:
    model = random_model(initializer_range=0.1, position_encoding=encoding)
    model = model.float() if autocast else model.bfloat16()
    with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        output = model.generate(num_return_sequences=3, generator=seeded(), return_dict_in_generate=True)
        scores = model.log_likelihood(output.sequences, output.orders).log_likelihood
        ragged = model.generate(ragged_inputs(), generator=seeded(), return_dict_in_generate=True)
        of_ragged = model.log_likelihood(ragged.sequences, ragged.orders).token_log_likelihood
    torch.testing.assert_close(output.token_logprobs.sum(1), scores, rtol=0, atol=0.2)
    of_ragged = of_ragged.masked_fill(ragged.reveal_steps < 0, 0.0)
    torch.testing.assert_close(ragged.token_logprobs.sum(1), of_ragged.sum(1), rtol=0, atol=0.2)


def test_the_cache_holds_what_attention_computes_with() -> None:
    """So that no pass converts it."""
    model, zeros = random_model().float(), torch.zeros(1, 12, dtype=torch.long)
    arguments = model, zeros, torch.arange(12)[None], zeros, zeros.bool()
    assert next(CachedDecoder(*arguments).cache.stores()).dtype == torch.float32
    with torch.autocast("cpu", torch.bfloat16):
        assert next(CachedDecoder(*arguments).cache.stores()).dtype == torch.bfloat16


def test_integers_of_any_kind_will_do() -> None:
    inputs = torch.tensor([[1, 11, 11]], dtype=torch.int32)
    assert random_model().generate(inputs, num_steps=np.int64(2)).dtype == torch.long


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"num_steps": 0}, "num_steps=0 must be an integer of at least 1"),
        ({"num_steps": 2.5}, r"num_steps=2\.5 must be an integer"),
        ({"num_steps": True}, "num_steps=True must be an integer"),
        ({"temperature": True}, "temperature=True must be above 0"),
        ({"temperature": 0}, "temperature=0 must be above 0 and finite; .* do_sample=False"),
        ({"temperature": -1.0}, r"temperature=-1\.0 must be above 0"),
        ({"temperature": float("nan")}, "temperature=nan must be above 0"),
        ({"temperature": "1"}, "temperature='1' must be above 0"),
        ({"top_p": "a"}, "top_p='a' must be above 0"),
        ({"inputs": torch.tensor([[1.5, 11.0]])}, r"dtype torch\.float32, but ids are integers: use inputs\.long"),
        ({"top_p": 0.0}, r"top_p=0\.0 must be above 0 and at most 1"),
        ({"top_p": 1.1}, r"top_p=1\.1 must be above 0 and at most 1"),
        ({"top_k": -1}, "top_k=-1 must be an integer of at least 0"),
        ({"schedule": "square"}, "schedule='square' is not one of 'linear', 'cosine'"),
        ({"reveal": "all"}, "reveal='all' is not one of 'bernoulli', 'fixed'"),
        (
            {"order": "upwards"},
            "order='upwards' is not one of 'random', 'left_to_right', 'confidence', .* or a .batch, n. tensor",
        ),
        ({"order": torch.tensor([[0, 0, 1]]), "max_length": 3}, r"order\[0\] is not a permutation"),
        ({"order": torch.tensor([[0, 1]]), "max_length": 3}, r"order has shape \(1, 2\), .*: \(1, 3\)"),
        (
            {"inputs": torch.tensor([[1, 11]]), "order": torch.tensor([[0, 1]]), "num_return_sequences": 3},
            r"order has shape \(1, 2\), .* \(num_return_sequences=3 for each input\): \(3, 2\)",
        ),
        ({"use_cache": False}, r"use_cache=False: .* alone\. Leave it out"),
        ({"eos_token_id": 3}, "eos_token_id=3 says something with stop_at_eos=True only"),
        ({"pad_token_id": -1}, "pad_token_id=-1 must be an integer of at least 0"),
        (
            {"eos_token_id": [3, 11], "stop_at_eos": True, "order": "left_to_right"},
            r"eos_token_id=\[3, 11\] is never generated: give one or several integers from 0 to 10",
        ),
        ({"eos_token_id": 2.5, "stop_at_eos": True, "order": "left_to_right"}, r"eos_token_id=2\.5 is never generated"),
        ({"eos_token_id": [], "stop_at_eos": True, "order": "left_to_right"}, r"eos_token_id=\[\] is never generated"),
        (
            {"pad_token_id": 11, "eos_token_id": 3, "stop_at_eos": True, "order": "left_to_right"},
            "pad_token_id=11 has no row in the token table: give an id from 0 to 10",
        ),
        ({"max_length": 13}, "13 tokens, 13 of them new, but this model takes 1 to 12"),
        (
            {"inputs": torch.tensor([[1, 2]]), "max_new_tokens": 20},
            "would have 22 tokens, .*: ask for 10 new ones at most",
        ),
        ({"inputs": torch.full((1, 13), 11), "max_new_tokens": 1}, "14 tokens per sequence, .*: cut or split the text"),
        ({"max_length": 4, "max_new_tokens": 4}, "both given; give one"),
        ({"num_return_sequences": 0}, "num_return_sequences=0 must be"),
        ({"num_beam": 4}, "does not take num_beam"),
        ({"stop_strings": "a"}, r"does not take stop_strings\. .* take AutoModelForCausalLM"),
        ({"stopping_criteria": []}, r"does not take stopping_criteria\. Leave it out"),
        ({"generation_config": GenerationConfig(num_beams=4)}, "generation config sets num_beams"),
        ({"draft": "ngram"}, "draft='ngram' says something with strategy='speculative' only"),
        ({"draft_length": 8, "strategy": "parallel"}, "draft_length=8 says something with strategy='speculative' only"),
        ({"entropy_bound": 0.5}, "entropy_bound=0.5 says something with reveal='entropy_bounded' only"),
        ({"schedule": "cosine"}, "schedule='cosine' says something with num_steps only"),
        ({"schedule": "linear", "reveal": "entropy_bounded"}, "schedule='linear' says something with num_steps only"),
        ({"reveal": "fixed"}, "reveal='fixed' says something with num_steps only"),
        ({"reveal": "bernoulli", "order": "entropy"}, "reveal='bernoulli' says something with num_steps only"),
        ({"reveal": "fixed", "strategy": "speculative"}, "reveal='fixed' says something with num_steps only"),
        ({"top_p_rule": "exclusive"}, "top_p_rule='exclusive' says something with a top_p below 1 only"),
        ({"output_history": True}, "output_history=True says something with return_dict_in_generate=True only"),
        ({"do_sample": "false"}, "do_sample='false' must be True or False"),
        ({"stop_at_eos": 1}, "stop_at_eos=1 must be True or False"),
        ({"output_history": "no"}, "output_history='no' must be True or False"),
        ({"return_dict_in_generate": 1}, "return_dict_in_generate=1 must be True or False"),
        ({"use_cache": "no"}, r"use_cache='no': .* alone\. Leave it out"),
        ({"temperature": float("inf")}, "temperature=inf must be above 0 and finite"),
        ({"order": np.zeros((1, 12))}, "is not one of 'random', 'left_to_right'"),
        ({"temprature": 0.5}, "does not take temprature. Is temperature meant?"),
        ({"inputs": torch.tensor([[1, 2]])}, r"Nothing to generate: inputs holds no mask \(id 11\)"),
        (
            {"inputs": torch.tensor([[1, 11]]), "attention_mask": torch.tensor([[1, 0]])},
            r"Nothing to generate: inputs holds no mask \(id 11\)",
        ),
        (
            {"inputs": torch.tensor([[1, 12]]), "max_new_tokens": 1},
            "input_ids holds 12, but ids of text go from 0 to 10",
        ),
        ({"inputs": torch.tensor([[1, 2, 11]]), "max_length": 2}, "max_length=2 is shorter than the inputs"),
        ({"inputs": torch.tensor([1, 11])}, r"shape \(2,\), but must be \(batch, length\)"),
        ({"inputs": torch.tensor([[1, 11]]), "input_ids": torch.tensor([[1, 11]])}, "two names of one argument"),
        ({"inputs": torch.tensor([[1, 11]]), "attention_mask": torch.ones(1, 3)}, r"attention_mask has shape \(1, 3\)"),
        ({"attention_mask": torch.ones(1, 3)}, "without inputs"),
        ({"inputs": torch.zeros(2, 0).long()}, r"shape \(2, 0\)\. Give max_new_tokens or max_length"),
    ],
)
def test_refuses(arguments: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        random_model().generate(**arguments)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"inputs": [[1, 11]]}, r"inputs is a list, but must be a torch\.Tensor"),
        ({"inputs": np.array([[1, 11]])}, r"inputs is a ndarray, but must be a torch\.Tensor"),
        ({"inputs": torch.tensor([[1, 11]]), "attention_mask": [[1, 1]]}, "attention_mask is a list, but must be"),
        ({"generator": 42}, r"generator=42 is no torch\.Generator"),
        ({"generation_config": {"max_new_tokens": 4}}, "generation_config is a dict, but must be a GenerationConfig"),
        (
            {"logits_processor": SuppressTokensLogitsProcessor([1])},
            "logits_processor is a SuppressTokensLogitsProcessor, but must be a list of processors",
        ),
    ],
)
def test_refuses_what_is_of_another_type(arguments: dict, message: str) -> None:
    with pytest.raises(TypeError, match=message):
        random_model().generate(**arguments)


@pytest.mark.parametrize(
    ("arguments", "default"),
    [
        ({"strategy": "speculative"}, {"draft_length": 4, "draft": "model"}),
        ({"num_steps": 4}, {"schedule": "linear", "reveal": "bernoulli", "order": "random", "do_sample": True}),
        ({"num_steps": 4, "top_p": 0.5}, {"top_p_rule": "inclusive", "top_k": 0, "temperature": 1.0}),
    ],
)
def test_what_is_not_given_is_as_documented(arguments: dict, default: dict) -> None:
    model = random_model()
    first, second = (
        model.generate(generator=seeded(), return_dict_in_generate=True, **given)
        for given in (arguments, arguments | default)
    )
    assert torch.equal(first.sequences, second.sequences)
    assert (first.num_forward_passes, first.num_rows) == (second.num_forward_passes, second.num_rows)


def test_flags_that_are_off_ask_for_nothing() -> None:
    assert random_model().generate(output_history=False, stop_at_eos=False).shape == (1, 12)


def test_an_empty_prompt_is_extended() -> None:
    assert random_model().generate(torch.zeros(2, 0).long(), max_new_tokens=3).shape == (2, 3)


@pytest.mark.parametrize("arguments", [{}, {"strategy": "speculative"}, {"reveal": "entropy_bounded"}])
def test_a_processor_that_leaves_no_token_is_named(arguments: dict) -> None:
    with pytest.raises(ValueError, match=r"not finite .* whether a logits_processor, .*, forbids every token"):
        random_model().generate(logits_processor=[SuppressTokensLogitsProcessor([*range(11)])], **arguments)


def test_non_finite_logits_are_reported() -> None:
    model = random_model()
    with torch.no_grad():
        model.lm_head.weight[3] = float("nan")
    with pytest.raises(ValueError, match="logits are not finite"):
        model.generate(num_steps=2)


def test_generate_takes_what_code_written_for_transformers_gives() -> None:
    model = random_model()
    plain = model.generate(generator=seeded())
    assert torch.equal(model.generate(generator=seeded(), pad_token_id=9, eos_token_id=None, use_cache=True), plain)
    with torch.no_grad():
        model.lm_head.bias[[3, 4]] += 100
    left_to_right = {"order": "left_to_right", "stop_at_eos": True}
    assert model.generate(eos_token_id=[3, 4], pad_token_id=9, **left_to_right)[0, 1:].tolist() == [9] * 11
    model.generation_config.eos_token_id = 0
    model.generation_config.pad_token_id = 8
    assert model.generate(eos_token_id=[3, 4], **left_to_right)[0, 1:].tolist() == [8] * 11


def test_what_asks_for_nothing_is_taken() -> None:
    """Neutral values of transformers' arguments; others are refused, in a call and in a configuration."""
    model = random_model()
    plain = model.generate(generator=seeded())
    for name, value in NEUTRAL.items():
        assert torch.equal(model.generate(generator=seeded(), **{name: value}), plain)
        assert torch.equal(model.generate(generator=seeded(), **{name: None}), plain)
        with pytest.raises(ValueError, match=rf"{name}=77: generate\(\) knows {name}={value} alone\. Leave it out"):
            model.generate(**{name: 77})
    config = GenerationConfig(num_beams=1, repetition_penalty=1.0, use_cache=False)
    assert torch.equal(model.generate(generator=seeded(), generation_config=config, stopping_criteria=None), plain)


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_orders_of_any_integers_will_do(dtype: torch.dtype) -> None:
    output = random_model().generate(order=torch.arange(11, -1, -1, dtype=dtype)[None], return_dict_in_generate=True)
    assert output.orders.tolist() == [[*range(11, -1, -1)]]


def test_generate_takes_all_that_a_tokenizer_returns() -> None:
    model, ids = random_model(), torch.tensor([[1, 2, 11, 3]])
    encoded = {"input_ids": ids, "attention_mask": torch.ones_like(ids), "token_type_ids": torch.zeros_like(ids)}
    filled = model.generate(**encoded, generator=torch.Generator().manual_seed(0))
    assert filled.equal(model.generate(ids, generator=torch.Generator().manual_seed(0)))
