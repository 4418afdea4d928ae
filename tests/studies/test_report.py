# Copyright 2026 The AO-GPT package authors. SPDX-License-Identifier: Apache-2.0
import json
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from eval.studies.runner.estimates import estimate
from eval.studies.runner.recipes import summarize_fractions
from eval.studies.runner.report import main


def test_a_report_is_a_table_and_a_panel_for_each_file(tmp_path: Path, saved_figures: list[Figure]) -> None:
    bits, solved = estimate([1.0, 2.0, 3.0]), summarize_fractions([0.5, 0.75], 10)
    one: dict[str, Any] = {"first": {"bits": bits, "size": 1234}, "second": {"bits": estimate([2.0]), "name": "x"}}
    two = {"title": "Two", "table": {"third": {"solved": solved, "passes": 1.5}}, "plotted": ["solved"]}
    (tmp_path / "one.json").write_text(json.dumps({"title": "One", "table": one, "plotted": ["bits"]}))
    (tmp_path / "two.json").write_text(json.dumps(two))
    (tmp_path / "other.json").write_text("{}")
    main([str(tmp_path)])
    report = (tmp_path / "tables.md").read_text()
    assert "## One" in report
    for line in (
        "|  | bits | size | name |",
        "| first | 2.000 ± 2.484 | 1,234 |  |",
        "| second | 2.000 |  | x |",
        "| third | 62.5% (33.3% to 84.8%) | 1.50 |",
    ):
        assert line in report
    first, second = saved_figures[-1].axes
    assert [label.get_text() for label in first.get_yticklabels()] == ["first", "second"]
    assert [line.get_xdata().tolist() for line in second.lines[:1]] == [[0.625]]
