# Copyright 2026 The AO-GPT package authors. SPDX-License-Identifier: Apache-2.0
"""The lm-evaluation-harness with local tasks. These tests are skipped unless the extra `harness` is installed."""

import json
import re
import warnings
from functools import partial
from itertools import accumulate, chain
from pathlib import Path
from typing import Any

import pytest
import torch

from modeling_aogpt import AOGPTForAnyOrderLM

lm_eval = pytest.importorskip("lm_eval")

from lm_eval.api.instance import Instance  # noqa: E402
from lm_eval.tasks import TaskManager  # noqa: E402
from tokenizers import decoders  # noqa: E402
from transformers import PreTrainedTokenizerFast  # noqa: E402

from eval.harness import AnyOrderLM, main  # noqa: E402
from eval.journal import make_generator  # noqa: E402
from modeling_aogpt.tokenization import add_mask_token  # noqa: E402
from tests.references import make_run, random_encoder, remove_weight  # noqa: E402
from tests.several_processes import run_in_two_processes  # noqa: E402
from tests.tokenizers_of_all_kinds import KINDS  # noqa: E402

pytestmark = pytest.mark.usefixtures("datasets_cache")

END_OF_TEXT = 13


def score(lm: AnyOrderLM, *pairs: tuple[str, str]) -> list[tuple[float, bool]]:
    requests = [Instance("loglikelihood", {}, pair, number) for number, pair in enumerate(pairs)]
    return lm.loglikelihood(requests, disable_tqdm=True)


def encode(text: str) -> torch.LongTensor:
    return torch.tensor([[ord(letter) - ord("a") for letter in text]])


def reference(model: AOGPTForAnyOrderLM, text: str, start: int, stop: int, **options: Any) -> float:
    targets = torch.zeros(1, len(text), dtype=torch.bool)
    targets[0, start:stop] = True
    return model.log_likelihood(encode(text), targets=targets, **options).log_likelihood.item()


def test_completions_after_and_inside_a_context(folder: str, tiny_model: AOGPTForAnyOrderLM) -> None:
    lm = AnyOrderLM(str(Path(folder).parent), batch_size=2, device=None if torch.cuda.is_available() else "cuda")
    pairs = [("abc", "de"), ("ab<mask>fg", "cde"), ("", "kl"), ("<mask>k", "b"), ("h<mask>", "ab")]
    expected = [
        reference(tiny_model, "abcde", 3, 5),
        reference(tiny_model, "abcdefg", 2, 5),
        reference(tiny_model, "kl", 0, 2),
        reference(tiny_model, "bk", 0, 1),
        reference(tiny_model, "hab", 1, 3),
    ]
    scores = score(lm, *pairs)
    assert [value for value, _ in scores] == pytest.approx(expected, rel=1e-5)
    assert not any(is_greedy for _, is_greedy in scores)


def test_a_tokenizer_with_other_ids_is_an_error(
    tiny_model: AOGPTForAnyOrderLM, tiny_tokenizer: PreTrainedTokenizerFast, tmp_path: Path
) -> None:
    tiny_model.save_pretrained(tmp_path / "model")
    tiny_tokenizer.add_special_tokens({"mask_token": "<another>"})
    tiny_tokenizer.save_pretrained(tmp_path / "other")
    with pytest.raises(ValueError, match="its mask has the id 17, but the mask of the model has the id 16"):
        AnyOrderLM(str(tmp_path / "model"), tokenizer=str(tmp_path / "other"))


def test_unknown_characters_give_a_warning(folder: str, caplog: pytest.LogCaptureFixture) -> None:
    lm = AnyOrderLM(folder)
    score(lm, ("ab", "c"))
    assert not caplog.text
    score(lm, ("ab", "Z"))
    assert "1 or more tokens are <unk>" in caplog.text


def test_completion_of_likeliest_tokens_is_greedy(folder: str, tiny_model: AOGPTForAnyOrderLM) -> None:
    ids = [0, 1]
    for _ in range(2):  # given the tokens before and the context on both sides
        masked = torch.tensor([[*ids, *[16] * (4 - len(ids)), 5]])
        order = torch.tensor([[0, 1, 4, 2, 3]])
        filled = masked.masked_fill(masked == 16, 0)
        ids.append(int(tiny_model(filled, orders=order).logits[0, len(ids)].argmax()))
    letters = "".join(chr(ord("a") + id) for id in ids[2:])
    assert all(id < 13 for id in ids)
    other = "a" if letters[1] != "a" else "b"
    answers = score(AnyOrderLM(folder), ("ab<mask>f", letters), ("ab<mask>f", letters[0] + other))
    assert [is_greedy for _, is_greedy in answers] == [True, False]


@pytest.mark.parametrize("random", ["context_order", "completion_order"])
def test_random_orders(folder: str, tiny_model: AOGPTForAnyOrderLM, random: str) -> None:
    lms = [AnyOrderLM(folder, **{random: "random"}, num_orders=300, seed=seed) for seed in (0, 0, 1)]
    value, again, other = (score(lm, ("ab<mask>", "fg"))[0][0] for lm in lms)
    option = {"context_order": "context_orders", "completion_order": "orders"}[random]
    swapped = {"context_orders": torch.tensor([[1, 0, 2, 3]]), "orders": torch.tensor([[0, 1, 3, 2]])}[option]
    one, two = (reference(tiny_model, "abfg", 2, 4, **{option: order}) for order in (torch.arange(4)[None], swapped))
    assert value == again != other
    assert abs(value - (one + two) / 2) < 4 * abs(one - two) / 2 / 300**0.5
    assert abs(one - two) > 0.1


def test_long_contexts_are_cut_at_their_outer_ends(folder: str, tiny_model: AOGPTForAnyOrderLM) -> None:
    lm = AnyOrderLM(folder, max_length=6)
    expected = [
        reference(tiny_model, "efghij", 4, 6),
        reference(tiny_model, "cdefgh", 2, 4),
        reference(tiny_model, "dabcde", 1, 3),
    ]
    scores = score(lm, ("abcdefgh", "ij"), ("abcd<mask>ghij", "ef"), ("d<mask>cdefgh", "ab"))
    assert [value for value, _ in scores] == pytest.approx(expected, rel=1e-5)


def test_a_context_that_is_cut_gives_a_warning(folder: str) -> None:
    lm = AnyOrderLM(folder, max_length=6)
    calls = [
        lambda long: score(lm, (f"ab{long}", "cd")),
        lambda long: score(lm, (f"a<mask>b{long}", "cd")),
        lambda long: generate(lm, (f"ab{long}", {"max_gen_toks": 2})),
        lambda long: generate(lm, (f"a<mask>b{long}", {"max_gen_toks": 2})),
    ]
    for call in calls:
        for long, count in (("", 0), ("cde", 1)):
            with warnings.catch_warnings(record=True) as found:
                warnings.simplefilter("always")
                call(long)
            assert sum("It is truncated." in str(warning.message) for warning in found) == count


def test_default_length_is_that_of_the_run(folder: str) -> None:
    assert AnyOrderLM(folder).max_length == 12
    make_run(folder, 6)
    assert [AnyOrderLM(folder, max_length=given).max_length for given in (None, 9)] == [6, 9]


def test_rolling_scores_every_token(folder: str, tiny_model: AOGPTForAnyOrderLM) -> None:
    lm = AnyOrderLM(folder, max_length=5)
    texts = ["abcdefg", "hi"]
    requests = [Instance("loglikelihood_rolling", {}, (text,), number) for number, text in enumerate(texts)]
    parts = {part: tiny_model.log_likelihood(encode(part)).log_likelihood.item() for part in ("abcde", "fg", "hi")}
    expected = [parts["abcde"] + parts["fg"], parts["hi"]]
    assert lm.loglikelihood_rolling(requests, disable_tqdm=True) == pytest.approx(expected, rel=1e-5)


def test_rolling_scores_start_tokens_inside_a_text(folder: str, tiny_model: AOGPTForAnyOrderLM) -> None:
    lm = AnyOrderLM(folder, max_length=5)
    lm.model.config.start_token_id = tiny_model.config.start_token_id = 5
    parts = (tiny_model.log_likelihood(encode(part)).log_likelihood.item() for part in ("fabcd", "ffg"))
    request = Instance("loglikelihood_rolling", {}, ("fabcdfg",), 0)
    assert lm.loglikelihood_rolling([request], disable_tqdm=True) == [pytest.approx(sum(parts), rel=1e-5)]


def test_special_tokens_in_until_end_a_text(folder: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Decoded texts do not contain the names of special tokens, so stop strings cannot be found there."""
    lm, ids, settings = AnyOrderLM(folder), [2, 3, 14, 4], {"until": ["<pad>"], "max_gen_toks": 4}
    monkeypatch.setattr(lm, "_generate", lambda *_: [ids])
    monkeypatch.setattr(lm.filler, "with_unknown_length", lambda *_, **__: ids)
    assert generate(lm, ("ab", settings), ("ab<mask>f", settings)) == [" c d", " c d"]
    monkeypatch.setattr(lm, "_write", None)  # the error comes before other texts are generated
    with pytest.raises(ValueError, match=r"stop string.*special"):
        generate(lm, ("ab", settings), ("ab", settings | {"until": ["d<pad>"]}))


def test_min_new_tokens_counts_the_tokens_of_all_calls(folder: str, monkeypatch: pytest.MonkeyPatch) -> None:
    lm, settings = AnyOrderLM(folder), {"max_gen_toks": 6, "min_new_tokens": 2}
    lm.model.generation_config.eos_token_id = END_OF_TEXT
    lm.model.lm_head.bias.data[END_OF_TEXT] += 100
    whole = generate(lm, ("a", settings))
    monkeypatch.setattr("eval.harness.TOKENS_PER_CALL", 2)
    assert generate(lm, ("a", settings)) == whole


def test_settings_of_end_of_text_are_those_of_generate(folder: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The padding after an end is no end, so the text must not go on after it."""
    monkeypatch.setattr("eval.harness.TOKENS_PER_CALL", 2)
    lm, settings = AnyOrderLM(folder), {"max_gen_toks": 6, "suppress_tokens": [13, 14, 15]}
    lm.tokenizer.backend_tokenizer.decoder = decoders.Fuse()
    (whole,) = generate(lm, ("a", settings))
    end = encode(whole)[0, 1].item()
    expected = whole[: whole.index(chr(ord("a") + end))]
    assert expected
    ends = {"eos_token_id": end, "pad_token_id": encode("m").item()}
    assert generate(lm, ("a", settings | ends)) == [expected]
    lm.model.generation_config.eos_token_id = end
    assert generate(lm, ("a", settings), ("a", settings | {"stop_at_eos": False})) == [expected, whole]


@pytest.mark.parametrize(
    ("settings", "sizes"),
    [({"num_steps": 3}, [6]), ({"refine_rounds": 1, "refine_length": 2}, [6]), ({"top_k": 3}, [2, 2, 2])],
)
def test_steps_and_refinement_are_those_of_the_whole_text(
    folder: str, settings: dict[str, int], sizes: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("eval.harness.TOKENS_PER_CALL", 2)
    lm, calls = AnyOrderLM(folder), []
    lm.tokenizer.eos_token = lm.model.generation_config.eos_token_id = None
    whole = lm.model.generate
    monkeypatch.setattr(
        lm.model, "generate", lambda *ids, **one: calls.append(one["max_new_tokens"]) or whole(*ids, **one)
    )
    generate(lm, ("a", {"max_gen_toks": 6, **settings}))
    assert calls == sizes


def test_the_number_of_new_tokens_is_given_as_max_gen_toks_only(folder: str) -> None:
    with pytest.raises(TypeError, match="max_new_tokens"):
        generate(AnyOrderLM(folder), ("ab", {"max_gen_toks": 4, "max_new_tokens": 2}))


def run_task(folder: str, tmp_path: Path, model: str, model_args: dict[str, Any], context: str) -> tuple[list, dict]:
    """Run a multiple-choice task with "c", "d" and "e" as continuations or infills of a context."""
    lines = [{"question": context.format(letter), "label": 0} for letter in "ab"]
    (tmp_path / "data.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    task = {
        "task": "letters",
        "dataset_path": "json",
        "dataset_kwargs": {"data_files": {"test": str(tmp_path / "data.jsonl")}},
        "test_split": "test",
        "output_type": "multiple_choice",
        "doc_to_text": "{{question}}",
        "doc_to_target": "{{label}}",
        "doc_to_choice": ["c", "d", "e"],
        "target_delimiter": "",
        "metric_list": [{"metric": "acc"}],
    }
    results = lm_eval.simple_evaluate(
        model,
        model_args={"pretrained": folder} | model_args,
        tasks=[task],
        task_manager=TaskManager(include_defaults=False),
        log_samples=True,
        bootstrap_iters=0,
        verbosity="ERROR",
    )
    scores = [[float(score) for score, _ in sample["filtered_resps"]] for sample in results["samples"]["letters"]]
    return scores, results["results"]["letters"]


def test_local_task_left_to_right_with_aogpt_and_hf(
    folder: str, tiny_model: AOGPTForAnyOrderLM, tmp_path: Path
) -> None:
    mine, accuracy = run_task(folder, tmp_path, "aogpt", {}, "{}kl")
    stock, same = run_task(folder, tmp_path, "hf", {"device": "cpu", "dtype": "float32"}, "{}kl")
    assert mine == [pytest.approx(scores, abs=1e-4) for scores in stock]
    expected = [[reference(tiny_model, f"{letter}kl{choice}", 3, 4) for choice in "cde"] for letter in "ab"]
    assert mine == [pytest.approx(scores, rel=1e-5) for scores in expected]
    assert accuracy["acc,none"] == same["acc,none"] == sum(scores[0] == max(scores) for scores in expected) / 2


def test_local_infilling_task(folder: str, tiny_model: AOGPTForAnyOrderLM, tmp_path: Path) -> None:
    found, _ = run_task(folder, tmp_path, "aogpt", {}, "{}k<mask>lm")
    expected = [[reference(tiny_model, f"{letter}k{choice}lm", 2, 3) for choice in "cde"] for letter in "ab"]
    assert found == [pytest.approx(scores, rel=1e-5) for scores in expected]


@pytest.mark.parametrize("completion", ["cat", " cat"])  # the harness adds a space by default
@pytest.mark.parametrize("kind", KINDS)
def test_completions_at_a_mask_are_parts_of_the_text(folder: str, kind: str, completion: str) -> None:
    lm = AnyOrderLM(folder)
    lm.tokenizer, lm.max_length = add_mask_token(KINDS[kind]()), 99
    mask = lm.tokenizer.mask_token
    cases = {
        f"I saw a {mask}.": ("I saw a", " cat", "."),
        f"a ({mask}), the": ("a (", "cat", "), the"),
        f"{mask} sat": ("", "cat", " sat"),
        f"un{mask}ly": ("un", "cat", "ly"),
        f"I saw a c{mask}": ("I saw a c", "cat", ""),
        f"the\n{mask}": ("the\n", "cat", ""),
    }
    for context, parts in cases.items():
        query = lm._make_query(context, completion)
        ids = query.ids[: query.start], query.removed, query.ids[query.start + query.length :]
        texts = [lm.tokenizer.decode([*chain(*ids[: number + 1])]) for number in range(3)]
        whole = [*accumulate(parts)]
        assert texts == [lm.tokenizer.decode(lm._encode(text)) for text in whole]
        assert texts == whole or kind == "WordPiece"  # whose tokens do not contain spaces


def test_completions_whose_first_token_would_be_in_the_context(folder: str) -> None:
    lm = AnyOrderLM(folder)
    lm.tokenizer, lm.max_length = add_mask_token(KINDS["Llama"]()), 99
    tokens = [lm.tokenizer.convert_ids_to_tokens(lm._make_query(*pair).ids) for pair in (("a c", "at"), ("a ", "cat"))]
    assert tokens == [["▁a", "▁c", "a", "t"], ["▁a", "▁cat"]]


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("num_order", "unknown name `num_order`. Remove or correct it. Did you mean `num_orders`?"),
        ("context_orders", "unknown name `context_orders`. Remove or correct it. Did you mean `context_order`?"),
        ("foo", "unknown name `foo`. Remove or correct it. Known names are pretrained, tokenizer, context_order, "),
    ],
)
def test_unknown_model_args_are_an_error(folder: str, tmp_path: Path, name: str, message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        run_task(folder, tmp_path, "aogpt", {name: 1}, "{}kl")


def test_arguments_for_every_model_are_ignored(folder: str) -> None:
    lm = AnyOrderLM.create_from_arg_string(
        f"pretrained={folder},trust_remote_code=True", {"batch_size": 2, "max_batch_size": 8, "device": "cpu"}
    )
    assert lm.batch_size == 2


@pytest.mark.parametrize(("given", "size"), [("auto", 16), ("auto:4", 16), ("3", 3)])
def test_batch_size(folder: str, given: str, size: int) -> None:
    assert AnyOrderLM(folder, batch_size=given).batch_size == size


@pytest.mark.parametrize(
    ("options", "pair", "message"),
    [
        (
            {"context_order": "sorted"},
            ("a", "b"),
            "`context_order` must be one of 'left_to_right', 'random', but is 'sorted'",
        ),
        ({"dtype": "nn"}, ("a", "b"), "`dtype` must be a data type of torch .*, but is 'nn'"),
        ({"max_length": 13}, ("a", "b"), r"`max_length` must be an integer from 1 to 12, but is 13"),
        ({"max_length": 0}, ("a", "b"), r"`max_length` must be an integer from 1 to 12, but is 0"),
        ({"num_orders": 2}, ("a", "b"), r"`num_orders` \(2\) has no effect if neither"),
        ({"batch_size": 0}, ("a", "b"), "`batch_size` must be an integer of at least 1, but is 0"),
        ({}, ("a<mask>b<mask>", "c"), r"at most one mask, but 'a<mask>b<mask>' contains 2\."),
        ({}, ("a", ""), "A completion must have 1 to 12 tokens, but one has 0"),
        ({}, ("a", "b" * 13), "A completion must have 1 to 12 tokens, but one has 13"),
    ],
)
def test_bad_input(folder: str, options: dict[str, Any], pair: tuple[str, str], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        score(AnyOrderLM(folder, **options), pair)


def test_missing_model_is_an_error_in_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("eval.harness.cli_evaluate", lambda: AnyOrderLM(str(tmp_path)))
    with pytest.raises(SystemExit, match=rf"^error: The configuration of '{tmp_path}' cannot be used"):
        main()


def test_missing_weights_are_an_error(folder: str) -> None:
    remove_weight(Path(folder), "lm_head.bias")
    with pytest.raises(ValueError, match=r"do not match its configuration:"):
        AnyOrderLM(folder)


def test_other_models_are_refused(tmp_path: Path) -> None:
    random_encoder().save_pretrained(tmp_path)
    with pytest.raises(ValueError, match=r"scores decoders .* is of type 'mdm_encoder'"):
        AnyOrderLM(str(tmp_path))


def generate(lm: AnyOrderLM, *pairs: tuple[str, dict[str, Any]]) -> list[str]:
    return lm.generate_until([Instance("generate_until", {}, pair, number) for number, pair in enumerate(pairs)])


@pytest.mark.parametrize("tokens_per_call", [2, 32])
def test_text_is_generated_from_left_to_right(
    folder: str, tiny_model: AOGPTForAnyOrderLM, tokens_per_call: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("eval.harness.TOKENS_PER_CALL", tokens_per_call)
    lm = AnyOrderLM(folder, batch_size=2)
    lm.tokenizer.backend_tokenizer.decoder = decoders.Fuse()
    contexts, settings = ["ab", "", "abcdefghijklm", "c"], {"max_gen_toks": 5, "suppress_tokens": [13, 14, 15]}
    texts = generate(lm, *((context, settings) for context in contexts))
    for context, text in zip(contexts, texts, strict=True):
        given = encode(context[-7:]) if context else None  # 12 positions, without the 5 new ones
        arguments = {"order": "left_to_right", "do_sample": False, "suppress_tokens": [13, 14, 15]}
        expected = tiny_model.generate(given, max_new_tokens=5, **arguments)[0, -5:]
        assert [ord(letter) - ord("a") for letter in text] == expected.tolist()
    end = texts[0][2:4]
    cut, sampled, again = generate(
        lm,
        ("ab", settings | {"until": ["zz", end, ""]}),
        *[("ab", settings | {"temperature": 0.9})] * 2,
    )
    assert cut == texts[0][: texts[0].index(end)]
    assert len(sampled) == 5
    assert sampled != again


def test_a_text_ends_at_end_of_text_even_if_the_model_does_not_know_it(folder: str) -> None:
    lm = AnyOrderLM(folder)
    lm.model.generation_config.eos_token_id = lm.model.config.eos_token_id = 2
    lm._generate = lambda *_: [[1, END_OF_TEXT, 3, 1, 3]]
    assert generate(lm, ("a", {"max_gen_toks": 5})) == [" b"]


def test_tasks_that_generate(folder: str, tmp_path: Path) -> None:
    (tmp_path / "data.jsonl").write_text(json.dumps({"question": "ab", "answer": "c"}) + "\n")
    task = {
        "task": "continuation",
        "dataset_path": "json",
        "dataset_kwargs": {"data_files": {"test": str(tmp_path / "data.jsonl")}},
        "test_split": "test",
        "output_type": "generate_until",
        "doc_to_text": "{{question}}",
        "doc_to_target": "{{answer}}",
        "generation_kwargs": {"until": ["\n"], "max_gen_toks": 4, "do_sample": False, "temperature": 0.0},
        "metric_list": [{"metric": "exact_match"}],
    }
    results = lm_eval.simple_evaluate(
        "aogpt",
        model_args={"pretrained": folder},
        tasks=[task],
        task_manager=TaskManager(include_defaults=False),
        log_samples=True,
        bootstrap_iters=0,
        verbosity="ERROR",
    )
    (sample,) = results["samples"]["continuation"]
    assert sample["filtered_resps"] == generate(AnyOrderLM(folder), ("ab", {"max_gen_toks": 4}))


def test_only_ids_of_text_can_be_the_likeliest(folder: str, tiny_model: AOGPTForAnyOrderLM) -> None:
    with torch.no_grad():
        tiny_model.lm_head.bias[[3, 15]] = torch.tensor([100.0, 200.0])
    tiny_model.config.num_valid_tokens = 15
    tiny_model.save_pretrained(folder)
    lm = AnyOrderLM(folder, batch_size="auto")
    assert lm.batch_size == 16
    assert score(lm, ("ab", "dd"))[0][1]


def test_long_contexts_keep_half_of_the_positions(folder: str) -> None:
    lm = AnyOrderLM(folder)
    settings = {"max_gen_toks": 99, "suppress_tokens": [13, 14, 15], "until": None}
    with pytest.warns(UserWarning, match="99 tokens"):
        long, cut, short = generate(lm, *((context, settings) for context in ("abcdefghijkl", "ghijkl", "ab")))
    assert long == cut
    assert [len(text.split()) for text in (cut, short)] == [6, 10]


@pytest.mark.parametrize("settings", [{}, {"temperature": 0.7}])
def test_text_at_a_mask_is_filled_in(folder: str, tiny_model: AOGPTForAnyOrderLM, settings: dict[str, Any]) -> None:
    lm = AnyOrderLM(folder, max_gap=3)
    lm.tokenizer.backend_tokenizer.decoder = decoders.Fuse()
    stock = Instance("generate_until", {"prompt": "ab", "suffix": "fg"}, ("fg\n\nab", settings), 0)
    text, again = lm.generate_until([stock])[0], generate(lm, ("ab<mask>fg", settings))[0]
    options = {"order": "confidence", "do_sample": bool(settings), "generator": make_generator(0, 0), **settings}
    masked = torch.tensor([0, 1, 16, 5, 6])
    (filled,) = tiny_model.infill(masked, range(1, 4), **options).sequences.tolist()
    assert text == again == lm.tokenizer.decode(filled[2:-2], skip_special_tokens=True)
    one, end = generate(lm, ("ab<mask>fg", {"max_gen_toks": 1}), ("abcdefghijkl<mask>", {}))
    assert len(one) <= 1
    assert end == generate(lm, ("defghijkl<mask><eos>", {}))[0]
    with pytest.raises(ValueError, match="at most one mask"):
        generate(lm, ("a<mask>b<mask>", {}))


def test_chat_template(folder: str) -> None:
    lm = AnyOrderLM(folder)
    lm.tokenizer.chat_template = (
        "{% for m in messages %}{{ m.role[0] }}{{ m.content }}.{% endfor %}{% if add_generation_prompt %}a{% endif %}"
    )
    chat = [{"role": "user", "content": "b"}]
    assert lm.apply_chat_template(chat) == "ub.a"
    assert lm.apply_chat_template([*chat, {"role": "assistant", "content": "c"}], False) == "ub.ac"
    assert lm.chat_template(True) == lm.tokenizer.chat_template  # the results of the harness contain it


def test_named_chat_template(folder: str) -> None:
    """The harness passes the name that `--apply_chat_template` has."""
    lm = AnyOrderLM(folder)
    lm.tokenizer.chat_template = {"default": "a", "rag": "{{ messages[0].content }}c"}
    with pytest.raises(ValueError, match="'rga' is not available"):
        lm.chat_template("rga")
    assert lm.chat_template("rag") == "{{ messages[0].content }}c"
    assert lm.apply_chat_template([{"role": "user", "content": "b"}]) == "bc"


def run_tasks(folder: str, data: Path, output: Path, use_cache: str | None = None, **model_args: Any) -> None:
    """Run a task that scores and a task that fills in, and write the results."""
    shared = {"dataset_path": "json", "dataset_kwargs": {"data_files": {"test": str(data)}}, "test_split": "test"}
    scored = {"output_type": "multiple_choice", "doc_to_text": "{{prompt}}<mask>k", "doc_to_target": 0}
    scored |= {"doc_to_choice": ["c", "dd", "e"], "metric_list": [{"metric": "acc"}]}
    written = {"output_type": "generate_until", "doc_to_text": "{{suffix}}\n\n{{prompt}}", "doc_to_target": "c"}
    written |= {"metric_list": [{"metric": "exact_match"}], "generation_kwargs": {"max_gen_toks": 3}}
    results = lm_eval.simple_evaluate(
        "aogpt",
        model_args={"pretrained": folder, "batch_size": 2} | model_args,
        tasks=[{"task": "scored"} | shared | scored, {"task": "written"} | shared | written],
        task_manager=TaskManager(include_defaults=False),
        log_samples=True,
        bootstrap_iters=0,
        use_cache=use_cache,
        verbosity="ERROR",
    )
    output.write_text(json.dumps([results["results"], results["samples"]], default=str))


@pytest.fixture
def data(tmp_path: Path) -> Path:
    lines = [{"prompt": first, "suffix": f"c{second}"} for first in "abc" for second in "de"]
    (tmp_path / "data.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return tmp_path / "data.jsonl"


def test_two_processes_give_the_results_of_one(folder: str, data: Path, tmp_path: Path) -> None:
    options = {"context_order": "random", "num_orders": 2}
    run_tasks(folder, data, tmp_path / "one.json", **options)
    code = "import os\nfrom pathlib import Path\nfrom tests.test_harness import run_tasks\n"
    output = f"Path({str(tmp_path)!r}, 'process-' + os.environ['RANK'])"
    (tmp_path / "script.py").write_text(f"{code}run_tasks({folder!r}, {str(data)!r}, {output}, **{options})\n")
    run_in_two_processes(str(tmp_path / "script.py"), cache=tmp_path / "cache")
    assert (tmp_path / "process-0").read_text() == (tmp_path / "one.json").read_text()
    assert not (tmp_path / "process-1").exists()


def test_a_stopped_run_continues(folder: str, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The cache of the harness keeps the results of finished batches."""
    write, calls = AnyOrderLM._write, []

    def stop(self: AnyOrderLM, *given: Any) -> list[str]:
        calls.append(given)
        if len(calls) == 3 + 3:
            raise KeyboardInterrupt
        return write(self, *given)

    monkeypatch.setattr(AnyOrderLM, "_write", stop)
    run_tasks(folder, data, tmp_path / "one.json")
    with pytest.raises(KeyboardInterrupt):
        run_tasks(folder, data, tmp_path / "two.json", str(tmp_path / "answers"))
    monkeypatch.setattr(AnyOrderLM, "_score", None)  # nothing is left to score
    run_tasks(folder, data, tmp_path / "two.json", str(tmp_path / "answers"))
    assert len(calls) == 3 + 3 + 1
    assert (tmp_path / "one.json").read_text() == (tmp_path / "two.json").read_text()
    (Path(folder) / "generation_config.json").write_text('{"top_k": 1}')
    for options in ({}, {"context_order": "random"}):
        with pytest.raises(ValueError, match="use_cache"):
            run_tasks(folder, data, tmp_path / "two.json", str(tmp_path / "answers"), **options)


def test_cached_requests_have_the_same_settings(
    folder: str, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lm_eval.caching.cache.PATH", str(tmp_path / "requests"))
    evaluate, output = lm_eval.simple_evaluate, tmp_path / "results.json"
    for length, text, num_files in ((3, "a", 1), (5, "a", 2), (5, "a", 2), (5, "b", 3)):
        if text == "b":
            data.write_text(json.dumps({"prompt": "b", "suffix": "cd"}))
        options = {"cache_requests": True, "gen_kwargs": {"max_gen_toks": length}}
        monkeypatch.setattr(lm_eval, "simple_evaluate", partial(evaluate, **options))
        run_tasks(folder, data, output)
        (context, settings), *_ = json.loads(output.read_text())[1]["written"][0]["arguments"]
        assert (context, settings["max_gen_toks"]) == (f"cd\n\n{text}", length)
        assert len([*tmp_path.glob("requests/requests-written*")]) == num_files
