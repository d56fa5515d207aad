"""Accuracy by number of rounds: its table and its figure."""

from __future__ import annotations

import pytest
from made_runs import write_run

from fedsparsify.report import environments_of, load_runs
from fedsparsify.report.docs import filled
from fedsparsify.report.lengths import by_rounds, lengths_of
from fedsparsify.report.paper_figures import figures_of
from fedsparsify.report.sent_figures import by_length

GLOBAL = {"name": "fedsparsify-global", "sparsity": 0.9}


@pytest.fixture
def environments(tmp_path):
    for rounds in (12, 20, 100):
        for seed in (1, 2):
            write_run(tmp_path / f"{rounds}-{seed}", method=GLOBAL, rounds=rounds, seed=seed)
    write_run(tmp_path / "variant", method=GLOBAL | {"exponent": 6.0}, rounds=20)
    write_run(tmp_path / "dense", method="fedavg", rounds=20)
    write_run(tmp_path / "rival", method={"name": "random", "sparsity": 0.9}, rounds=20, wire=False)
    write_run(tmp_path / "other", method={"name": "random", "sparsity": 0.8}, rounds=20)
    write_run(tmp_path / "elsewhere", method=GLOBAL, rounds=20, clients=5)
    return environments_of(load_runs([tmp_path])[0])


def test_a_row_for_each_length(environments):
    (lengths,) = lengths_of(environments)
    (points,) = lengths.curves
    assert [(one.label, one.sparsity, one.first.rounds, len(one.runs)) for one in points] == [
        ("FedSparsify-Global", 0.9, rounds, 2) for rounds in (12, 20, 100)
    ]
    first, second, third = by_rounds(lengths).rows
    assert [str(cell) for cell in first[:4]] == ["FedSparsify-Global", "0.9", "12", "2"]
    assert first[4].value == pytest.approx(points[0].settled)
    assert first[5].value < second[5].value < third[5].value
    assert first[6].value == pytest.approx(4 * first[5].value)  # such runs count four bytes per value


def test_the_figure_has_curves_and_the_other_methods_as_points(environments):
    (lengths,) = lengths_of(environments)
    (panel,) = by_length(lengths).axes
    lines = {line.get_label(): line for line in panel.lines}
    assert {label: len(line.get_xdata()) for label, line in lines.items()} == {
        "FedSparsify-Global": 3,
        "FedAvg": 1,
        "Random": 1,
    }
    assert [text.get_text() for text in panel.texts] == ["12", "20", "100"]
    assert list(lines["FedSparsify-Global"].get_ydata()) == [one.settled for one in lengths.curves[0]]


def test_pages_and_reports_have_both(environments):
    (lengths,) = lengths_of(environments)
    name = f"lengths-{lengths.slug}"
    assert name in {made for made, _, _ in figures_of(environments)}
    text = filled(f"<!-- table: {name} -->\n<!-- end -->", environments)
    assert "| FedSparsify-Global | 0.9 | 100 | 2 |" in text


def test_one_length_has_neither(environments):
    alone = [one for one in environments if one.table["rounds"] == 20]
    assert lengths_of(alone) == []
