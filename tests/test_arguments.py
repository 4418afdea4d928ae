# Copyright 2026 The AO-GPT package authors. SPDX-License-Identifier: Apache-2.0
import math
import re
from pathlib import Path

import pytest

from common.data_arguments import DataArguments
from common.results import WITHOUT_EFFECT
from modeling_aogpt import AOGPTConfig, MDMEncoderConfig
from modeling_aogpt.convert_reference_checkpoint import AOGPT, RADD, SEDD, SIGMA_GPT, ReleasedArchitecture
from training.architecture import DEFAULTS, Architecture, build_config
from training.arguments import TrainingArguments, accumulation_steps
from training.command_line import parse_arguments
from training.resuming import SCHEDULE, check_same_run, to_settings

CONFIGS = sorted((Path(__file__).parents[1] / "training" / "configs").glob("*.yaml"))
ENCODER = "architecture: encoder"
MASKED_DIFFUSION = f"{ENCODER}\nobjective: masked_diffusion"


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "my_run.yaml"
    path.write_text("corpus: [a.txt, b.txt]\nsequence_length: 32\nlearning_rate: 1e-3\nqk_norm: false\nseed: null\n")
    return path


def add_lines(config: Path, *lines: str) -> list[str]:
    """Add lines to a YAML file, where they replace lines with the same keys. Return the arguments of the command."""
    keys = {line.split(":")[0] for line in lines}
    others = [line for line in config.read_text().splitlines() if line.split(":")[0] not in keys]
    config.write_text("\n".join([*others, *lines]))
    return [str(config)]


def test_the_command_line_overrides_yaml(config: Path) -> None:
    options = ["--seed=2", "--seed", "3", "--learning-rate=1e-4", "--corpus", "c.txt", "--no_mlp_bias", "--gated_mlp"]
    model, data, training = parse_arguments([str(config), *options, "--norm_eps", "1e-6", "--head_dim=32"])
    assert (data.corpus, data.sequence_length) == (["c.txt"], 32)
    given = {"qk_norm": False, "mlp_bias": False, "gated_mlp": True, "norm_eps": 1e-6, "head_dim": 32}
    assert model == DEFAULTS | given | {"max_position_embeddings": 32}
    assert (training.seed, training.learning_rate) == (3, 1e-4)  # YAML itself reads 1e-3 as a string
    assert parse_arguments([str(config)])[1].corpus == ["a.txt", "b.txt"]
    assert parse_arguments([str(config)])[2].learning_rate == 1e-3


def test_keys_determine_the_types_of_values_in_yaml(config: Path) -> None:
    """YAML itself reads `no` as False, and 1.10 as 1.1."""
    lines = [
        "mixed_precision: no",
        "dynamo_backend: no",
        "corpus_revision: 1.10",
        "max_grad_norm: inf",
        "tokenizer: ~",
    ]
    _, data, training = parse_arguments(add_lines(config, *lines))
    assert (training.mixed_precision, training.dynamo_backend, training.max_grad_norm) == ("no", "no", math.inf)
    assert (data.corpus_revision, data.tokenizer) == ("1.10", None)


def test_dependent_defaults(config: Path) -> None:
    model, _, training = parse_arguments([str(config)])
    assert model["max_position_embeddings"] == 32
    assert training.final_learning_rate == pytest.approx(1e-4)
    assert training.output_dir == Path("runs/my_run")
    assert training.decay_steps is None
    assert training.left_to_right_steps is None
    assert parse_arguments([str(config), "--final_left_to_right_fraction=0"])[2].left_to_right_steps == 300
    assert parse_arguments([str(config), "--learning_rate_schedule=warmup_stable_decay"])[2].decay_steps == 100
    model, _, training = parse_arguments(
        [str(config), "--max_position_embeddings=64", "--final_learning_rate=0", "--output_dir=here"]
    )
    assert (model["max_position_embeddings"], training.final_learning_rate, training.output_dir) == (
        64,
        0,
        Path("here"),
    )


@pytest.mark.parametrize(
    ("key", "nearest"),
    [
        ("learnin_rate", "learning_rate"),
        ("num_layers", "num_hidden_layers"),
        ("warmup-step", "warmup_steps"),
        ("lr", "learning_rate"),
        ("device", "accelerate launch"),
    ],
)
def test_errors_of_unknown_keys_suggest_the_nearest_key(config: Path, key: str, nearest: str) -> None:
    with pytest.raises(ValueError, match=f"'--{key}=1' on the command line.*`{nearest}"):
        parse_arguments([str(config), f"--{key}=1"])
    with pytest.raises(ValueError, match=f"'{key}' in .*my_run.yaml.*`{nearest}"):
        parse_arguments(add_lines(config, f"{key}: 1"))


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("max_position_embeddings: 16", r"`sequence_length` .*\(16\), but is 32"),
        ("num_attention_heads: 7", "`hidden_size` .*multiple"),
        ("max_steps: 50", r"`warmup_steps` .*\(50\), but is 100"),
        ("orders: context_first\nmax_context: 32", r"`max_context` .*\(32\), but is 32"),
        ("batch_size: 0", "`batch_size` .*at least 1"),
        ("decay_steps: 5", "`decay_steps` has no effect"),
        ("learning_rate_schedule: warmup_stable_decay\ndecay_steps: 901", r"\(100\) and .* \(901\)"),
        ("final_learning_rate: 0.5", r"`final_learning_rate` .*\(0.001\), but is 0.5"),
        ("left_to_right_fraction: 1.5", "`left_to_right_fraction` .*but is 1.5"),
        ("final_left_to_right_fraction: -1", "`final_left_to_right_fraction` .*but is -1"),
        ("left_to_right_steps: 9", "`left_to_right_steps` has no effect"),
        (
            "final_left_to_right_fraction: 0\nleft_to_right_steps: 1001",
            r"`left_to_right_steps` .*\(1000\), but is 1001",
        ),
        ("block_length: 2\nstride: 3", r"`block_length` \(2\) and `stride` \(3\)"),
        ("objective: masked_diffusion", "`objective=masked_diffusion` needs"),
        (f"{ENCODER}\nobjective: score_entropy", "`target_injection` must be sigma"),
        (f"{MASKED_DIFFUSION}\norders: shared", "orders have no effect"),
        (f"{MASKED_DIFFUSION}\nblock_length: 4", "orders have no effect"),
        (f"{MASKED_DIFFUSION}\nleft_to_right_fraction: 0.1", "orders have no effect"),
        ("target_injection: sigma", "`target_injection` must be one of"),
        ("position_encoding: rotatory", "`position_encoding` must be one of"),
        ("position_encoding: rotary\nrope_parameters:\n  theta: 100", "rope_parameters` .*'theta'"),
        ("rope_parameters:\n  rope_theta: 9", "`rope_parameters` has no effect"),
        ("ema_decay: 1", "`ema_decay` .*below 1"),
        ("adam_epsilon: nan", "`adam_epsilon` .*nan"),
        ("learning_rate: inf", "`learning_rate` .*inf"),
        ("seed: -1", "`seed` .*at least 0"),
        ("output_dir: .", "`output_dir` is empty"),
        ("tokenizer: runs/my_run/tokenizer", "`tokenizer` .*where the run writes"),
        ("prepare_only: true\nstreaming: true", "`prepare_only` has no effect"),
        ("max_steps: [200, 300]", r"`max_steps` .*single value.*\['200', '300'\]"),
        ("validation_files: {a: b}", "`validation_files` .*single value"),
    ],
)
def test_wrong_values_and_contradictions_are_errors(config: Path, line: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        parse_arguments(add_lines(config, line))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "does not exist"),
        ("a: [", "cannot be read as YAML"),
        ("just words", "must contain lines"),
        ("", "must contain lines"),
    ],
)
def test_errors_name_an_invalid_file(tmp_path: Path, content: str | None, message: str) -> None:
    path = tmp_path / "bad.yaml"
    if content is not None:
        path.write_text(content)
    with pytest.raises(ValueError, match=rf"bad.yaml {message}"):
        parse_arguments([str(path)])


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("rope_parameters: linear", "argument --rope_parameters.*mapping.*'linear'"),
        ("rope_parameters: '{rope_theta'", "argument --rope_parameters.*mapping"),
        ("max_steps: 1.5", "argument --max_steps.*invalid int value: '1.5'"),
        ("corpus: []", "argument --corpus: expected at least one argument"),
    ],
)
def test_the_parser_checks_types_and_choices(
    config: Path, line: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        parse_arguments(add_lines(config, line))
    assert re.search(message, capsys.readouterr().err)


def test_the_yaml_file_must_be_the_first_argument(config: Path) -> None:
    for argv in ([], ["--seed", "1", str(config)]):
        with pytest.raises((ValueError, SystemExit)):
            parse_arguments(argv)


def test_model_defaults_are_those_of_the_configuration() -> None:
    model = DEFAULTS | {"max_position_embeddings": 1024}
    assert build_config(model).to_dict() == AOGPTConfig().to_dict()
    assert build_config(model | {"architecture": "encoder"}).to_dict() == MDMEncoderConfig().to_dict()


def test_help_is_printed(capsys: pytest.CaptureFixture) -> None:
    with pytest.raises(SystemExit, match="0"):
        parse_arguments(["--help"])
    shown = " ".join(capsys.readouterr().out.split())
    assert "Defaults to 30 % of max_steps" in shown
    assert all(f"--{name} " in shown for name in DEFAULTS)


def test_a_repeated_key_is_an_error(config: Path) -> None:
    config.write_text("seed: 1\nseed: 2\n")
    with pytest.raises(ValueError, match="'seed' twice"):
        parse_arguments([str(config)])
    with pytest.raises(ValueError, match="'a' twice"):
        parse_arguments(add_lines(config, "seed: [{a: 1, a: 2}]"))
    with pytest.raises(ValueError, match="`corpus` is given twice"):
        parse_arguments([*add_lines(config, "seed: 1"), "--corpus", "a.txt", "--corpus=b.txt"])


@pytest.mark.parametrize(
    "text", ["{rope_theta: 500}", "{rope_theta: '500'}", "{rope_theta: 5e2}", """'{"rope_theta": 500}'"""]
)
def test_rotary_frequencies_are_a_mapping_or_json(config: Path, text: str) -> None:
    model, _, _ = parse_arguments(add_lines(config, "position_encoding: rotary", f"rope_parameters: {text}"))
    assert build_config(model).rope_parameters == {"rope_theta": 500, "rope_type": "default"}


def test_architecture_is_that_of_the_initial_model(config: Path, tmp_path: Path) -> None:
    """A key that contradicts the model is an error even if its value is the default."""
    sizes = {"hidden_size": 12, "num_hidden_layers": 3, "num_attention_heads": 2, "max_position_embeddings": 64}
    AOGPTConfig(**sizes, qk_norm=False).save_pretrained(tmp_path / "model")
    start = [str(config), f"--init_from={tmp_path / 'model'}"]
    model, data, _ = parse_arguments([*start, "--num_hidden_layers=3"])
    assert sizes.items() <= model.items()
    assert data.tokenizer == str(tmp_path / "model")
    for option, actual in (
        ("--hidden_size=768", 12),
        ("--num-hidden-layers=12", 3),
        ("--qk_norm=true", False),
        ("--no_mlp_bias", True),
        ("--architecture=encoder", "decoder"),
    ):
        with pytest.raises(ValueError, match=f"but is {actual} in the model"):
            parse_arguments([*start, option])
    with pytest.raises(ValueError, match=r"`sequence_length` .*\(64\), but is 65"):
        parse_arguments([*start, "--sequence_length=65"])
    with pytest.raises(ValueError, match="`hidden_size` is 768, but"):
        parse_arguments([*add_lines(config, "hidden_size: 768"), start[1]])


@pytest.mark.parametrize(
    "given", ["{factor: 2.0, rope_theta: 500.0, rope_type: linear}", "{rope_type: linear, factor: 2}"]
)
def test_rope_parameters_of_the_initial_model_may_be_given_in_part(given: str, tmp_path: Path, config: Path) -> None:
    rope = {"rope_type": "linear", "factor": 2.0, "rope_theta": 500.0 if "500" in given else 1e4}
    AOGPTConfig(position_encoding="rotary", rope_parameters=rope).save_pretrained(tmp_path / "model")
    start = [*add_lines(config, "qk_norm: true"), f"--init_from={tmp_path / 'model'}"]
    model, _, _ = parse_arguments([*start, f"--rope_parameters={given}"])
    assert build_config(model).rope_parameters == rope
    with pytest.raises(ValueError, match=r"`rope_parameters` is .*Remove"):
        parse_arguments([*start, "--rope_parameters={rope_type: linear, factor: 3.0}"])


def test_numbers_of_rope_parameters_may_have_exponents(config: Path) -> None:
    lines = "position_encoding: rotary\nrope_parameters: {rope_theta: 1e6, rope_type: linear, factor: 2}"
    model, _, _ = parse_arguments(add_lines(config, lines))
    assert build_config(model).rope_parameters == {"rope_theta": 1e6, "rope_type": "linear", "factor": 2}


def test_arguments_after_the_configuration_are_options(config: Path) -> None:
    with pytest.raises(ValueError, match=r"Only options .*'more\.txt'"):
        parse_arguments([str(config), "more.txt"])


@pytest.mark.parametrize("source", ["init_from", "start_token_id"])
def test_start_tokens_of_large_vocabularies_are_allowed(source: str, tmp_path: Path) -> None:
    """The id of the start token of a Llama 3 or Qwen is higher than all ids of GPT-2."""
    settings = {"target_injection": "none", "position_encoding": "rotary", "start_token_id": 151643}
    AOGPTConfig(vocab_size=151936, num_valid_tokens=151665, **settings).save_pretrained(tmp_path)
    options = {
        "init_from": ["from_causal_trial.yaml", f"--init_from={tmp_path}"],
        "start_token_id": ["quickstart.yaml", *(f"--{name}={value}" for name, value in settings.items())],
    }
    file, *keys = options[source]
    model, _, _ = parse_arguments([str(CONFIGS[0].parent / file), *keys])
    assert model["start_token_id"] == 151643


def test_the_initial_model_may_be_a_finished_run_and_gives_the_length(tmp_path: Path) -> None:
    config, run = tmp_path / "minimal.yaml", tmp_path / "run"
    config.write_text("corpus: a.txt")
    (run / "tokenizer").mkdir(parents=True)
    with pytest.raises(ValueError, match=r"not finished, .*export_checkpoint.py .*run"):
        parse_arguments([str(config), f"--init_from={run}"])
    AOGPTConfig(max_position_embeddings=16).save_pretrained(run / "model")
    _, data, training = parse_arguments([str(config), f"--init_from={run}"])
    assert (training.init_from, data.tokenizer) == (str(run / "model"), str(run / "model"))
    assert data.sequence_length == 16
    assert parse_arguments([str(config), f"--init_from={run}", "--sequence_length=8"])[1].sequence_length == 8
    with pytest.raises(ValueError, match=r"but is 32\. Decrease `sequence_length`"):
        parse_arguments([str(config), f"--init_from={run}", "--sequence_length=32"])


@pytest.mark.parametrize(
    ("options", "fraction"),
    [((), 0.1), (("--orders=shared",), 0), (("--block_length=4",), 0), (("--architecture=encoder",), 0)],
)
def test_default_fraction_of_left_to_right_sequences(config: Path, options: tuple[str, ...], fraction: float) -> None:
    assert parse_arguments([str(config), *options])[2].left_to_right_fraction == fraction


def test_ends_of_gaps_need_sequences_with_gaps(config: Path) -> None:
    options = [str(config), "--orders=gaps_last", "--max_gap_length=3", "--left_to_right_fraction=1"]
    with pytest.raises(ValueError, match="`left_to_right_fraction` must be below 1 with `max_gap_length`"):
        parse_arguments(options)
    parse_arguments([*options, "--final_left_to_right_fraction=0.5"])


def test_the_token_table_of_an_encoder_contains_its_mask(config: Path) -> None:
    model, _, _ = parse_arguments([str(config), "--architecture=encoder"])
    tokenizer = {"vocab_size": 300, "num_valid_tokens": 300, "mask_token_id": 300}
    assert build_config(model, **tokenizer).vocab_size == 301
    gpt2 = {"vocab_size": 50304, "num_valid_tokens": 50257, "mask_token_id": 50257}
    assert build_config(model, **gpt2).vocab_size == 50304


@pytest.mark.parametrize(
    ("batch_size", "per_device", "processes", "expected"),
    [(12, None, 1, 1), (12, None, 4, 1), (12, 2, 1, 6), (12, 2, 3, 2)],
)
def test_accumulation_steps_make_up_the_batch(
    batch_size: int, per_device: int | None, processes: int, expected: int
) -> None:
    training = TrainingArguments(batch_size=batch_size, per_device_batch_size=per_device)
    assert accumulation_steps(training, processes) == expected


@pytest.mark.parametrize(
    ("batch_size", "per_device", "processes"), [(12, 5, 1), (12, None, 5), (12, 4, 2), (2, None, 4)]
)
def test_a_batch_that_cannot_be_divided_is_an_error(batch_size: int, per_device: int | None, processes: int) -> None:
    training = TrainingArguments(batch_size=batch_size, per_device_batch_size=per_device)
    with pytest.raises(ValueError, match=rf"`batch_size` .*\({processes}\).* but is"):
        accumulation_steps(training, processes)


def test_settings_that_an_earlier_version_did_not_have_are_compared_with_their_defaults(config: Path) -> None:
    settings = to_settings(*parse_arguments([str(config)]))
    saved = {key: value for key, value in settings.items() if key not in ("stride", "gated_mlp", "validation_files")}
    check_same_run(saved, settings, Path("run"))
    with pytest.raises(ValueError, match="gated_mlp: previously False, now True"):
        check_same_run(saved, settings | {"gated_mlp": True}, Path("run"))


def test_settings_that_affect_the_result_may_not_change(config: Path) -> None:
    saved = to_settings(*parse_arguments([str(config)]))
    check_same_run(saved, dict(saved), Path("run"))
    for key in saved:
        changed = saved | {key: 123}
        if key in WITHOUT_EFFECT - {"eval_sequences"} | SCHEDULE:  # other sequences have other bits per byte
            check_same_run(saved, changed, Path("run"))
        else:
            with pytest.raises(ValueError, match=rf"\({key}: previously .*, now 123\)"):
                check_same_run(saved, changed, Path("run"))
    assert saved.keys() >= WITHOUT_EFFECT | SCHEDULE


def test_a_changed_learning_rate_needs_a_new_run(config: Path) -> None:
    saved, lower = (to_settings(*parse_arguments([str(config), f"--learning_rate={rate}"])) for rate in (1e-3, 1e-4))
    with pytest.raises(ValueError, match=r"; learning_rate: previously 0.001, now"):
        check_same_run(saved, lower, Path("run"))


def parse_recipe(path: Path, folder: Path) -> tuple[Architecture, DataArguments, TrainingArguments]:
    """Parse a recipe. If it continues a model, this is a model in `folder`, of which only the configuration exists."""
    if path.stem not in ("finetune", "from_causal", "from_causal_trial", "gaps_last"):
        return parse_arguments([str(path)])
    missing = pytest.raises(ValueError, match=r"There is no model '(models/any-order|runs/book)'")
    with pytest.MonkeyPatch.context() as patch, missing:
        patch.chdir(folder)  # the working folder may contain this model
        parse_arguments([str(path)])
    AOGPTConfig(max_position_embeddings=1024).save_pretrained(folder)
    return parse_arguments([str(path), f"--init_from={folder}"])


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_shipped_configurations_are_valid(path: Path, tmp_path: Path) -> None:
    model, data, training = parse_recipe(path, tmp_path)
    for num_processes in (1, 2, 8):
        accumulation_steps(training, num_processes)
    assert isinstance(data, DataArguments)
    sizes = {"small": (12, 768, 12, 6e-4), "medium": (24, 1024, 16, 3e-4)}
    if path.stem in sizes:
        shape = [model[key] for key in ("num_hidden_layers", "hidden_size", "num_attention_heads")]
        assert (*shape, training.learning_rate) == sizes[path.stem]
        assert training.batch_size * data.sequence_length == 2**19


def test_a_file_replaces_values_of_its_base(tmp_path: Path, config: Path) -> None:
    (tmp_path / "base.yaml").write_text("corpus: c.txt\nbase: my_run.yaml\nseed: 3\nwarmup_steps: 7\n")
    (tmp_path / "top.yaml").write_text("base: base.yaml\nwarmup_steps: null\nseed: 4\n")
    _, data, training = parse_arguments([str(tmp_path / "top.yaml"), "--adam_beta1=0.5"])
    assert (data.corpus, data.sequence_length) == (["c.txt"], 32)
    assert (training.seed, training.warmup_steps, training.adam_beta1) == (4, 100, 0.5)
    assert training.output_dir == Path("runs/top")


def test_null_on_the_command_line_removes_a_key_of_the_file(config: Path) -> None:
    argv = add_lines(config, "left_to_right_fraction: 1", "final_left_to_right_fraction: 0.1", "warmup_steps: 7")
    encoder = [*argv, "--architecture=encoder", "--objective", "masked_diffusion"]
    with pytest.raises(ValueError, match="orders have no effect"):
        parse_arguments(encoder)
    nulls = ["--left-to-right-fraction", "null", "--final_left_to_right_fraction=null"]
    training = parse_arguments([*encoder, *nulls, "--seed", "3"])[2]
    assert (training.left_to_right_fraction, training.final_left_to_right_fraction) == (0, None)
    assert (training.warmup_steps, training.seed) == (7, 3)
    assert parse_arguments([*argv, "--no_qk_norm", "--qk-norm=null"])[0]["qk_norm"]
    with pytest.raises(ValueError, match="Unknown key '--warmup'"):
        parse_arguments([*argv, "--warmup", "null"])


def test_a_removed_key_may_be_that_of_another_initial_model(config: Path, tmp_path: Path) -> None:
    AOGPTConfig(max_position_embeddings=64, qk_norm=False).save_pretrained(tmp_path / "model")
    argv = [*add_lines(config, "sequence_length: 32"), f"--init_from={tmp_path / 'model'}"]
    assert parse_arguments(argv)[1].sequence_length == 32
    assert parse_arguments([*argv, "--sequence_length", "null"])[1].sequence_length == 64


@pytest.mark.parametrize("null", ["null", "~", ""])
def test_a_base_may_be_null(config: Path, null: str) -> None:
    assert parse_arguments(add_lines(config, f"base: {null}"))[1].sequence_length == 32


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("base: none.yaml", "none.yaml does not exist"),
        ("base: top.yaml", "top.yaml -> .*top.yaml: .*`base`"),
        ("base: ../recipes/top.yaml", "top.yaml -> .*top.yaml: .*`base`"),
        ("base: [my_run.yaml]", "`base` must have a single value"),
        ("base: typo.yaml", "'learnin_rate' in .*typo.yaml.*`learning_rate`"),
    ],
)
def test_a_wrong_base_is_an_error(tmp_path: Path, line: str, message: str) -> None:
    folder = tmp_path / "recipes"
    folder.mkdir()
    (folder / "typo.yaml").write_text("learnin_rate: 1")
    (folder / "top.yaml").write_text(line)
    with pytest.raises(ValueError, match=message):
        parse_arguments([str(folder / "top.yaml")])


@pytest.mark.parametrize(
    ("name", "released"),
    [("small", AOGPT), ("small_sigma_gpt", SIGMA_GPT), ("small_radd", RADD), ("small_sedd", SEDD)],
)
def test_recipes_have_the_released_architectures(name: str, released: ReleasedArchitecture) -> None:
    model, _, training = parse_arguments([str(CONFIGS[0].parent / f"{name}.yaml")])
    assert released.settings.items() <= build_config(model).to_dict().items()
    assert (training.objective == "score_entropy") == (released is SEDD)
