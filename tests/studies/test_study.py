# Copyright 2026 The AO-GPT package authors. SPDX-License-Identifier: Apache-2.0
"""Studies: all arms are trained with all seeds, and compared."""

import itertools
import json
import math
import os
import shutil
import signal
import statistics
import threading
from collections import Counter
from dataclasses import replace
from pathlib import Path
from subprocess import Popen
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import yaml
from matplotlib.figure import Figure

from common.data import load_data_of_run
from common.files import lock_folder
from common.results import ORDER_KINDS, ORDER_SEED
from eval.studies.runner import scores as study_scores
from eval.studies.runner import study
from eval.studies.runner.estimates import estimate
from eval.studies.runner.results import Question, TrainedModel, compare
from modeling_aogpt import DataCollatorForAnyOrderLM
from modeling_aogpt.loading import load_model
from tests.references import random_model
from tests.training_runs import RECIPE, STEPS, results, train, write_config
from training.arguments import TrainingArguments
from training.draws import OrderDraws

HALF = {"position_encoding": "rotary", "max_steps": STEPS // 2}
ARMS = {
    "random": {},
    "left-to-right": {"orders": "left_to_right"},
    "first-half": {**HALF, "orders": "left_to_right"},
    "second-half": {**HALF, "init_from": "first-half"},
}
QUESTION = {
    "title": "Orders",
    "baseline": "random",
    "left_to_right": "left-to-right",
    "arms": ["random", "left-to-right", "second-half"],
}


STUDIES = [
    path for path in (Path(__file__).parents[2] / "eval" / "studies").glob("*/*.yaml") if "arms:" in path.read_text()
]


def write_study(folder: Path, arms: dict[str, Any], seeds: tuple[int, ...] = (0,), **questions: dict[str, Any]) -> str:
    write_config(folder)
    content = {
        "settings": {
            "corpus": str(folder / "words.txt"),
            **yaml.safe_load(RECIPE),
            "num_samples": 0,
            "tracker": "none",
            "eval_sequences": 5,
        },
        "arms": arms,
        "seeds": list(seeds),
        "questions": questions,
    }
    (folder / "orders.yaml").write_text(yaml.safe_dump(content, sort_keys=False))
    return str(folder / "orders.yaml")


@pytest.fixture
def trained(monkeypatch: pytest.MonkeyPatch, datasets_cache: None) -> list[str]:
    """Train in this process, and return a list of the names of the runs that were trained."""
    names = []

    def train_here(run: study.Run, num_threads: int) -> SimpleNamespace:
        names.append(run.name)
        train(run.config, run.folder)
        return SimpleNamespace(poll=lambda: 0, returncode=0)

    monkeypatch.setattr(study.Run, "train", train_here)
    monkeypatch.setattr(study, "POLL_SECONDS", 0)
    return names


def test_all_arms_are_trained_with_all_seeds_and_compared(
    trained: list[str], tmp_path: Path, saved_figures: list[Figure], capsys: pytest.CaptureFixture
) -> None:
    path, runs = write_study(tmp_path, ARMS, (0, 1), orders=QUESTION), tmp_path / "runs"
    study.main([path, f"--runs_dir={runs}", "--jobs=1"])
    assert trained == [f"{arm} (seed {seed})" for seed in (0, 1) for arm in ARMS]
    assert results(runs / "seed-1" / "random")["arguments"]["seed"] == 1
    continued = results(runs / "seed-1" / "second-half")["arguments"]
    assert (continued["init_from"], continued["seed"]) == (str(runs / "seed-1" / "first-half" / "model"), 1001)

    found = json.loads((runs / "results" / "orders.json").read_text())
    assert found["seeds"] == [0, 1]
    assert found["held_out"]["sequences"] == 5
    report = (runs / "results" / "tables.md").read_text()
    tokens = {arm: entry["tokens"] for arm, entry in found["arms"].items()}
    assert tokens == dict.fromkeys(QUESTION["arms"], STEPS * 12 * 8)
    for arm, entry in found["arms"].items():
        last = [results(runs / f"seed-{seed}" / arm)["evaluations"][-1]["any_order"] for seed in (0, 1)]
        assert entry["scores"]["any_order"]["values"] == pytest.approx(last)
        assert f"{sum(last) / 2:.3f} ± {entry['scores']['any_order']['half_width']:.3f}" in report
        assert found["table"][arm]["random orders"] == entry["scores"]["any_order"]
    curve = found["arms"]["second-half"]["curves"]["any_order"]
    first = results(runs / "seed-0" / "first-half")["evaluations"][-1]["any_order"]
    assert (curve["tokens"], curve["values"][0][0]) == ([4 * 96, 8 * 96], first)
    [panel] = saved_figures[-1].axes
    rows = [label.get_text() for label in panel.get_yticklabels()]
    assert rows == ["random", "left-to-right", "second-half", "token frequencies"]

    # Finished runs are not repeated. The measured scores are kept, too.
    trained.clear()
    scores = runs / "seed-0" / "random" / "scores.json"
    scores.write_text(json.dumps(json.loads(scores.read_text()) | {"infilling": 100}))
    study.main([path, f"--runs_dir={runs}", "--output_dir", str(tmp_path / "again")])
    assert trained == []
    again = json.loads((tmp_path / "again" / "orders.json").read_text())["arms"]
    assert again["random"]["scores"]["infilling"]["values"][0] == 100
    assert again["left-to-right"] == found["arms"]["left-to-right"] | {
        "differences": again["left-to-right"]["differences"]
    }

    # If runs are gone, the results of their seed are kept. With other settings, they are not used, but not lost either.
    shutil.rmtree(runs / "seed-0" / "random")
    argv = [path, f"--runs_dir={runs}", "--collect", "--output_dir", str(tmp_path / "again")]
    study.main(argv)
    kept = json.loads((tmp_path / "again" / "orders.json").read_text())
    assert kept["seeds"] == [0, 1]
    assert kept["arms"] == again
    kept["settings"]["max_steps"] = "1"
    (tmp_path / "again" / "orders.json").write_text(json.dumps(kept))
    capsys.readouterr()
    study.main(argv)
    assert json.loads((tmp_path / "again" / "orders.json").read_text()) == kept
    assert "orders.json has results of seeds that would be lost. These runs are not" in capsys.readouterr().out


def test_context_comes_first_in_own_orders(tmp_path: Path, datasets_cache: None) -> None:
    config = write_config(tmp_path)
    words = (tmp_path / "words.txt").read_text().split("\n")
    (tmp_path / "words.txt").write_text("\n".join(f"{word[:1]}[{word[1:]}]" for word in words))
    settings = ("--context_marks=[]", "--orders=context_first", "--num_samples=0", "--max_steps=3")
    train(config, tmp_path / "run", *settings)
    rows = study_scores.held_out_rows(tmp_path / "run")
    orders = study_scores.draw_orders(rows, ORDER_SEED, orders="context_first")
    for order, labels in zip(orders, torch.tensor(rows["labels"]), strict=True):
        is_context = labels[order] == -100
        assert is_context.any()
        assert is_context.int().diff().max() <= 0  # none comes after a target


def test_results_of_an_arm_are_used_for_all_questions(
    trained: list[str], tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    runs, output_dir = tmp_path / "runs", tmp_path / "results"
    study.main([write_study(tmp_path, ARMS, orders=QUESTION), f"--runs_dir={runs}", f"--output_dir={output_dir}"])
    shutil.rmtree(runs / "seed-0" / "random")
    collect = [f"--runs_dir={runs}", f"--output_dir={output_dir}", "--collect"]
    halves = {"title": "T", "baseline": "random", "arms": ["random", "second-half"]}
    study.main([write_study(tmp_path, ARMS, orders=QUESTION, halves=halves), *collect])
    kept, found = (json.loads((output_dir / f"{name}.json").read_text()) for name in ("orders", "halves"))
    assert set(found["settings_of_arms"]) == {"random", "first-half", "second-half"}
    for arm, entry in found["arms"].items():
        assert entry["scores"] == kept["arms"][arm]["scores"]

    # The results of an arm are not used if the settings of a run that it continues are others.
    shutil.rmtree(runs)
    capsys.readouterr()
    changed = ARMS | {"first-half": ARMS["first-half"] | {"hidden_size": 32}}
    study.main([write_study(tmp_path, changed, orders=QUESTION, halves=halves), *collect])
    for line in capsys.readouterr().out.splitlines():
        assert line.endswith(
            "would be lost. These runs are not finished with the current settings: second-half (seed 0)."
        )


@pytest.mark.parametrize("seeds", [(0, 1), (1,)], ids=["all seeds", "only the new seed"])
def test_a_new_arm_does_not_remove_results_of_seeds_with_which_it_is_not_trained_yet(
    seeds: tuple[int, ...], trained: list[str], tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    runs, results = tmp_path / "runs", tmp_path / "results"
    pair = {"title": "T", "baseline": "random", "arms": ["random"]}
    study.main([write_study(tmp_path, {"random": {}}, (0, 1), pair=pair), f"--runs_dir={runs}"])
    (runs / "results").rename(results)
    shutil.rmtree(runs / "seed-0")
    arms, pair = {"random": {}, "new": {"position_encoding": "rotary"}}, pair | {"arms": ["random", "new"]}
    study.main([write_study(tmp_path, arms, (1,), pair=pair), f"--runs_dir={runs}"])
    written = (results / "pair.json").read_text()
    capsys.readouterr()
    study.main(
        [write_study(tmp_path, arms, seeds, pair=pair), f"--runs_dir={runs}", f"--output_dir={results}", "--collect"]
    )
    assert (
        "would be lost. These runs are not finished with the current settings: new (seed 0)" in capsys.readouterr().out
    )
    assert (results / "pair.json").read_text() == written


def test_seeds_can_be_trained_one_after_the_other(trained: list[str], tmp_path: Path) -> None:
    question = {"title": "T", "baseline": "random"}
    for seed in (1, 0):
        path = write_study(tmp_path, {"random": {}}, (seed,), one=question)
        study.main([path, f"--runs_dir={tmp_path / str(seed)}", f"--output_dir={tmp_path}"])
    assert json.loads((tmp_path / "one.json").read_text())["seeds"] == [0, 1]


def test_a_run_that_continues_an_earlier_state_is_an_error(trained: list[str], tmp_path: Path) -> None:
    arms = {"first-half": {**HALF, "orders": "left_to_right"}, "second-half": {**HALF, "init_from": "first-half"}}
    path = write_study(tmp_path, arms, halves={"title": "T", "baseline": "first-half", "arms": ["first-half"]})
    study.main([path, f"--runs_dir={tmp_path}"])
    shutil.copytree(tmp_path / "seed-0", tmp_path / "moved" / "seed-0")
    study.main([path, f"--runs_dir={tmp_path / 'moved'}"])
    assert trained == ["first-half (seed 0)", "second-half (seed 0)"]
    model = load_model(tmp_path / "moved" / "seed-0" / "first-half" / "model")
    model.lm_head.weight.data += 1
    model.save_pretrained(tmp_path / "moved" / "seed-0" / "first-half" / "model")
    with pytest.raises(SystemExit, match=r"second-half continues other weights than"):
        study.main([path, f"--runs_dir={tmp_path / 'moved'}"])


def test_scores_of_encoders_are_exact(trained: list[str], tmp_path: Path) -> None:
    arms = {"random": {}, "encoder": {"architecture": "encoder", "left_to_right_fraction": 0.25}}
    path = write_study(tmp_path, arms, sides={"title": "Sides", "baseline": "random"})
    study.main([path, f"--runs_dir={tmp_path}"])
    entry = json.loads((tmp_path / "results" / "sides.json").read_text())["arms"]["encoder"]
    assert set(entry["curves"]) == {"any_order"}
    folder = tmp_path / "seed-0" / "encoder"
    rows, model = study_scores.held_out_rows(folder), load_model(folder / "model")
    features = [dict(zip(rows, row, strict=True)) for row in zip(*rows.values(), strict=True)]
    random = DataCollatorForAnyOrderLM(left_to_right_fraction=0, seed=ORDER_SEED)(features)["orders"]
    expected = dict.fromkeys(ORDER_KINDS, 0.0)
    for ids, order in zip(torch.tensor(rows["input_ids"]), random, strict=True):
        for kind, positions in (("left_to_right", torch.arange(8)), ("any_order", order)):
            masked = torch.full_like(ids, model.config.mask_token_id)
            for position in positions:
                logits = model(masked[None]).logits[0, position, : model.config.num_valid_tokens]
                expected[kind] -= logits.double().log_softmax(-1)[ids[position]].item()
                masked[position] = ids[position]
    expected = {kind: nats / sum(rows["num_bytes"]) / math.log(2) for kind, nats in expected.items()}
    expected["own_orders"] = 0.25 * expected["left_to_right"] + 0.75 * expected["any_order"]
    for kind, value in expected.items():
        assert entry["scores"][kind]["values"][0] == pytest.approx(value, rel=1e-5)


def test_own_orders_are_those_of_the_training(trained: list[str], tmp_path: Path) -> None:
    arms = {
        "shared": {"orders": "shared"},
        "blocks": {"orders": "shared", "block_length": 4},
        "left-to-right": {"orders": "left_to_right"},
        "falling": {"left_to_right_fraction": 1, "final_left_to_right_fraction": 0.4},
    }
    path = write_study(tmp_path, arms, (1,), orders={"title": "T", "baseline": "shared", "measure": "own_orders"})
    study.main([path, f"--runs_dir={tmp_path}"])
    found = json.loads((tmp_path / "results" / "orders.json").read_text())
    difference = found["arms"]["blocks"]["differences"]["own_orders"]
    assert found["table"]["blocks"]["training orders, minus shared"] == difference
    scores = {arm: study_scores.load_scores(tmp_path / "seed-1" / arm) for arm in arms}
    for arm in ("shared", "blocks"):
        folder = tmp_path / "seed-1" / arm
        training = TrainingArguments.from_settings(results(folder)["arguments"])
        rows, model = study_scores.held_out_rows(folder), load_model(folder / "model")
        ids = torch.tensor(rows["input_ids"])
        order = OrderDraws(training)([{"input_ids": range(8), "order_seed": 0}])["orders"]
        nats = -model.log_likelihood(ids, orders=order.expand_as(ids)).log_likelihood.sum().item()
        assert scores[arm]["own_orders"] == pytest.approx(nats / sum(rows["num_bytes"]) / math.log(2))
    assert scores["left-to-right"]["own_orders"] == pytest.approx(scores["left-to-right"]["left_to_right"])
    falling = scores["falling"]
    assert falling["own_orders"] == pytest.approx(0.4 * falling["left_to_right"] + 0.6 * falling["any_order"])


def test_token_frequencies_are_a_baseline(trained: list[str], tmp_path: Path) -> None:
    path = write_study(tmp_path, {"one": {}}, first={"title": "T", "baseline": "one"})
    study.main([path, f"--runs_dir={tmp_path}"])
    folder = tmp_path / "seed-0" / "one"
    rows = study_scores.held_out_rows(folder)
    data = load_data_of_run(folder)
    counts = Counter(itertools.chain.from_iterable(data.train["input_ids"]))
    total, size = counts.total(), len(data.tokenizer)
    bits = -sum(math.log2((counts[id] + 1) / (total + size)) for ids in rows["input_ids"] for id in ids)
    found = json.loads((tmp_path / "results" / "first.json").read_text())
    assert found["unigram"] == pytest.approx(bits / sum(rows["num_bytes"]))
    assert found["table"]["token frequencies"]["random orders"]["mean"] == found["unigram"]


def test_results_are_those_of_the_seeds_with_all_arms(
    trained: list[str], tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    arms = {"one": {}, "two": {"learning_rate": 0.01}}
    questions = {name: {"title": "T", "baseline": name} for name in arms}
    path = write_study(tmp_path, arms, (0, 1), **questions)
    argv = [path, f"--runs_dir={tmp_path}", "--collect"]
    study.main(argv)
    assert trained == []
    assert (
        "one: no results yet. These runs are not finished with the current settings: one (seed 0)"
        in capsys.readouterr().out
    )
    assert not (tmp_path / "results").exists()

    runs = study.list_runs(study.read_study(Path(path)), tmp_path)
    for run in runs[:3]:
        run.train(1)
    study.main(argv)
    assert json.loads((tmp_path / "results" / "one.json").read_text())["seeds"] == [0]
    assert "0.000" not in (tmp_path / "results" / "tables.md").read_text()  # half-width of a single seed


def test_a_run_with_other_settings_is_an_error(trained: list[str], tmp_path: Path) -> None:
    question = {"title": "T", "baseline": "one"}
    path = write_study(tmp_path, {"one": {}}, first=question)
    study.main([path, f"--runs_dir={tmp_path}"])
    write_study(tmp_path, {"one": {"learning_rate": 0.01}}, first=question)
    with pytest.raises(SystemExit, match=r"seed-0/one belongs to a run with other"):
        study.main([path, f"--runs_dir={tmp_path}"])


@pytest.fixture
def stub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Replace training/pretrain.py by a script that prints the number of threads, and fails in arms named `bad`."""
    path = tmp_path / "stub.py"
    path.write_text("import os, sys\nprint(os.environ['OMP_NUM_THREADS'])\nsys.exit(3 * ('/bad' in sys.argv[1]))\n")
    monkeypatch.setattr(study, "PRETRAIN", path)
    monkeypatch.setattr(study, "POLL_SECONDS", 0.01)
    monkeypatch.setattr(study, "num_cores", lambda: 6)
    monkeypatch.delenv("OMP_NUM_THREADS")
    return path


def test_the_number_of_threads_that_the_user_set_is_kept(
    stub: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "5")
    path = write_study(tmp_path, {"one": {}}, first={"title": "T", "baseline": "one"})
    study.main([path, f"--runs_dir={tmp_path}"])
    assert (tmp_path / "seed-0" / "one.log").read_text() == "5\n"


def test_failed_runs_are_reported_and_do_not_stop_the_others(
    stub: Path, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    arms = {"bad": {}, "good": {}, "next": {"init_from": "bad"}}
    path = write_study(tmp_path, arms, (0, 1), first={"title": "T", "baseline": "good", "arms": ["bad", "good"]})
    with pytest.raises(SystemExit) as error:
        study.main([path, f"--runs_dir={tmp_path / 'runs'}", "--jobs=3"])
    for seed in (0, 1):
        assert f"bad (seed {seed}), {tmp_path}/runs/seed-{seed}/bad.log" in str(error.value)
        assert f"next (seed {seed})" not in str(error.value)  # it has no log
        assert (tmp_path / "runs" / f"seed-{seed}" / "good.log").read_text() == "2\n"  # of six cores
        assert not (tmp_path / "runs" / f"seed-{seed}" / "next.log").exists()
    assert "next (seed 0) was not trained, because bad (seed 0) failed" in capsys.readouterr().err


def test_a_study_is_trained_by_one_command_at_a_time(stub: Path, tmp_path: Path) -> None:
    question = {"title": "T", "baseline": "one"}
    path, runs_dir = write_study(tmp_path, {"one": {}}, first=question), tmp_path / "runs"
    runs_dir.mkdir()
    with lock_folder(runs_dir):
        with pytest.raises(SystemExit, match="runs is in use by another process"):
            study.main([path, f"--runs_dir={runs_dir}"])
        study.main([path, f"--runs_dir={runs_dir}", "--collect"])  # it trains nothing
        changed = write_study(tmp_path, {"one": {"max_steps": 7}}, first=question)
        with pytest.raises(SystemExit, match=r"settings of one \(seed 0\) differ from"):
            study.main([changed, f"--runs_dir={runs_dir}", "--collect"])
    assert not list(runs_dir.glob("*/*.log"))


def test_runs_are_stopped_with_the_command(stub: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stub.write_text("import time\nprint('started', flush=True)\ntime.sleep(60)")
    processes, start = [], study.Run.train
    monkeypatch.setattr(study.Run, "train", lambda *arguments: processes.append(start(*arguments)) or processes[-1])
    path = write_study(tmp_path, {"one": {}, "two": {}}, first={"title": "T", "baseline": "one"})

    ended = threading.Event()

    def stop() -> None:
        while not ended.wait(0.01):
            if [log.read_text() for log in tmp_path.glob("runs/seed-0/*.log")] == ["started\n"] * 2:
                return os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=stop, daemon=True).start()
    with pytest.raises(SystemExit, match=r"^Stopped. The same command continues"):
        study.main([path, f"--runs_dir={tmp_path / 'runs'}", "--jobs=2"])
    ended.set()
    assert [process.returncode for process in processes] == [-signal.SIGTERM] * 2
    assert all(isinstance(process, Popen) for process in processes)


@pytest.mark.parametrize("path", STUDIES, ids=lambda path: path.stem)
def test_arms_of_the_studies_are_valid(path: Path, tmp_path: Path) -> None:
    one_seed = replace(study.read_study(path), seeds=[0])
    runs = study.list_runs(one_seed, tmp_path)
    study.write_configs(runs)
    study.check_tokens(one_seed, runs)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"seeds": "3"}, "must contain the mappings `settings`, `arms` and `questions`"),
        ({"steps": []}, "must contain the mappings"),
        ({"settings": {"seed": "1"}}, "sets seed of training/pretrain.py"),
        ({"arms": {"one": {"output_dir": "x"}}}, "sets output_dir of training/pretrain.py"),
        (
            {"questions": {"first": {"title": "T", "baseline": "one", "arm": "one"}}},
            "'first' is {'arm': 'one',",
        ),
        ({"questions": {"first": {"title": "T"}}}, "must have the keys `title` and `baseline`"),
        ({"questions": {"first": {"title": "T", "baseline": "one", "measure": "x"}}}, "`measure` must be one of"),
        ({"questions": {"first": {"title": "T", "baseline": "none"}}}, "cannot use the arm 'none'"),
        ({"questions": {"first": {"title": "T", "baseline": "one", "arms": ["two"]}}}, "cannot use the arm 'one'"),
        ({"seeds": ["1", "1"]}, r"`seeds` in .* must be different integers, but is \[1, 1\]"),
        ({"seeds": ["a"]}, r"must be different integers, but is \[a\]"),
        ({"seeds": [["1"]]}, r"must be different integers, but is \[\['1'\]\]"),
        ({"arms": {"one": "orders"}}, "The arm 'one' in .* is 'orders'. It must be a mapping"),
        ({"arms": {"one": ["orders"]}}, "The arm 'one' in .* must be a mapping"),
        ({"questions": {"first": ["one"]}}, r"The question 'first' is \['one'\]"),
        ({"questions": {"first": None}}, "The question 'first' is 'null'"),
        (
            {"arms": {"one": {}, "two": {"init_from": "one"}}},
            rf"must be trained on the same number of tokens, but are not \(one: {STEPS * 96}, two: {STEPS * 192}\)",
        ),
        ({"settings": {"learning_rat": "1"}}, "Did you mean `learning_rate`"),
        ({"arms": {"one": {}, "two": {"init_from": "one", "learning_rat": "1"}}}, "Did you mean `learning_rate`"),
    ],
)
def test_mistakes_in_the_file_are_errors(change: dict[str, Any], message: str, tmp_path: Path) -> None:
    path = write_study(tmp_path, {"one": {}, "two": {}}, first={"title": "T", "baseline": "one"})
    Path(path).write_text(yaml.safe_dump(yaml.safe_load(Path(path).read_text()) | change))
    with pytest.raises(SystemExit, match=message):
        study.main([path, f"--runs_dir={tmp_path / 'runs'}", "--collect"])


# ------------------------------------------------------------------------------------------------------- comparison


def test_intervals_are_those_of_students_t() -> None:
    found = estimate([1.0, 2.0, 3.0])
    assert found == {"mean": 2.0, "half_width": pytest.approx(4.303 / 3**0.5), "values": [1.0, 2.0, 3.0]}
    assert estimate([5.0]) == {"mean": 5.0, "half_width": None, "values": [5.0]}
    generator = torch.Generator().manual_seed(0)
    samples = torch.randn(2000, 4, generator=generator).tolist()
    covered = sum(abs(found["mean"]) < found["half_width"] for found in map(estimate, samples))
    assert 0.93 < covered / 2000 < 0.97


def make_models(any_order: list[float], left_to_right: list[float], tokens: int = 100) -> list[TrainedModel]:
    facts = {"corpus": {"sources": []}, "held_out": {"bytes": 10}}
    return [
        TrainedModel(10, tokens, 2.0, {"left_to_right": one, "any_order": other}, {}, facts)
        for one, other in zip(left_to_right, any_order, strict=True)
    ]


MODELS = {
    "paper": make_models([3.0, 4.0], [2.5, 3.5]),
    "better": make_models([2.5, 3.25], [2.0, 2.5]),
    "reference": make_models([9.0, 9.0], [1.0, 2.0]),
}


def test_arms_are_compared_with_the_baseline_seed_by_seed() -> None:
    arms = compare(Question("T", "paper", list(MODELS), "reference"), MODELS)
    assert arms["better"]["differences"]["any_order"]["values"] == [-0.5, -0.75]
    assert arms["better"]["gap"]["values"] == [1.5, 1.25]
    assert arms["better"]["gap_closed"]["values"] == [0.25, 0.375]
    assert arms["paper"]["gap"]["mean"] == 2.0
    assert not {"gap_closed", "differences"} & {key for key, value in arms["paper"].items() if value}
    assert "gap" not in arms["reference"]
    assert "gap" not in compare(Question("T", "paper", list(MODELS)), MODELS)["better"]


def test_learning_curves_have_the_points_of_all_seeds() -> None:
    curves = [{"any_order": ([1, 2, 4], [9.0, 8.0, 7.0])}, {"any_order": ([2, 3, 4], [6.0, 5.0, 4.0])}]
    models = [replace(model, curves=curve) for model, curve in zip(MODELS["paper"], curves, strict=True)]
    found = compare(Question("T", "paper", ["paper"]), {"paper": models})["paper"]["curves"]["any_order"]
    assert found == {"tokens": [2, 4], "values": [[8.0, 7.0], [6.0, 4.0]]}


def test_arms_with_other_numbers_of_tokens_or_other_text_are_errors() -> None:
    longer = MODELS | {"better": make_models([2.5, 3.25], [2.0, 2.5], tokens=200)}
    with pytest.raises(ValueError, match=r"the same number of tokens, .*better: 200"):
        compare(Question("T", "paper"), longer)
    other_text = [replace(model, facts=model.facts | {"held_out": {"bytes": 11}}) for model in MODELS["better"]]
    with pytest.raises(ValueError, match=r"one of better was evaluated on .*11"):
        compare(Question("T", "paper"), MODELS | {"better": other_text})


def test_scores_are_measured_again_after_a_new_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kinds = (*study_scores.MEASURES, "unigram")
    values = iter([dict.fromkeys(kinds, 1.0), dict.fromkeys(kinds, 2.0)])
    monkeypatch.setattr(study_scores, "measure_scores", lambda folder: next(values))
    (tmp_path / "results.json").write_text("{}")
    assert study_scores.load_scores(tmp_path) == study_scores.load_scores(tmp_path) == dict.fromkeys(kinds, 1.0)
    os.utime(tmp_path / "scores.json", (0, 0))
    assert study_scores.load_scores(tmp_path) == dict.fromkeys(kinds, 2.0)


def test_infilling_predicts_each_half_given_the_other_half() -> None:
    model, ids = random_model(), torch.randint(11, (3, 12), generator=torch.Generator().manual_seed(0))
    calls, score = [], model.log_likelihood
    model.log_likelihood = lambda ids, targets, **options: (
        calls.append(targets) or score(ids, targets=targets, **options)
    )
    nats = study_scores.infilling_nats(model, ids)
    assert torch.equal(calls[0], ~calls[1])
    assert calls[0].sum(dim=-1).tolist() == [6, 6, 6]
    assert not torch.equal(calls[0][0], calls[0][1])
    assert math.isfinite(nats)
    torch.nn.init.zeros_(model.lm_head.weight)
    torch.nn.init.zeros_(model.lm_head.bias)
    assert study_scores.infilling_nats(model, ids) == pytest.approx(36 * math.log(model.config.num_valid_tokens))


def test_halves_are_drawn_for_a_fixed_number_of_sequences(
    trained: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_study(tmp_path, {"one": {}}, first={"title": "T", "baseline": "one"})
    study.main([path, f"--runs_dir={tmp_path}"])
    folder = tmp_path / "seed-0" / "one"
    rows, model = study_scores.held_out_rows(folder), load_model(folder / "model")
    monkeypatch.setattr(study_scores, "INFILLING_SEQUENCES", 2)
    ids = torch.tensor(rows["input_ids"])
    nats = sum(study_scores.infilling_nats(model, ids[first : first + 2]) for first in (0, 2, 4))
    found = study_scores.measure_scores(folder)["infilling"]
    assert found == pytest.approx(nats / sum(rows["num_bytes"]) / math.log(2))


def test_intervals_of_many_seeds() -> None:
    for count, quantile in ((10, 2.262), (12, 2.228), (40, 2.228)):
        values = [0.0, 1.0] * (count // 2)
        assert estimate(values)["half_width"] == pytest.approx(quantile * statistics.stdev(values) / count**0.5)
