"""Accuracy of the last rounds against bytes, with what other methods' authors report."""

from __future__ import annotations

import pytest
from made_runs import write_run

from fedsparsify.report import environments_of, load_runs
from fedsparsify.report.authors import reported
from fedsparsify.report.docs import filled
from fedsparsify.report.figures import fitting_columns
from fedsparsify.report.sent_figures import against_bytes
from fedsparsify.report.traded import COLUMNS, last_rounds, lines_of

PLACE = {"data": "cifar10", "network": "resnet18", "split": "dirichlet-equal:1", "clients": 100, "participation": 0.04}


@pytest.fixture
def environment(tmp_path):
    for seed in (1990, 1991):
        at = PLACE | {"rounds": 700, "seed": seed}
        write_run(tmp_path / f"dense-{seed}", method="fedavg", **at)
        for name, sparsity in (("sparsyfed", 0.95), ("sparsyfed", 0.99), ("topk", 0.95)):
            write_run(tmp_path / f"{name}-{sparsity}-{seed}", method={"name": name, "sparsity": sparsity}, **at)
    write_run(tmp_path / "uncounted", method={"name": "ssfl", "sparsity": 0.95}, wire=False, **PLACE | {"rounds": 700})
    (found,) = environments_of(load_runs([tmp_path])[0])
    return found


def test_cells(environment):
    table = last_rounds(environment)
    assert table.columns == COLUMNS
    dense, topk, first, second = table.rows
    # Accuracy falls by 0.2 per sparsity and rises by 0.4 over the rounds; the last ten end 4.5/700 of that below.
    assert dense[3].value == pytest.approx(0.9 + 0.005 - 0.4 * 4.5 / 700)
    assert first[3].value == pytest.approx(dense[3].value - 0.19)
    assert [str(cell) for cell in (first[0], first[1], first[2], first[4])] == ["SparsyFed", "0.95", "2", "0.950"]
    # 400 values each way for four clients, and 20 in each round after the first.
    assert dense[5].value == pytest.approx(700 * 4 * 400 * 8 / 1e6)
    assert first[5].value == pytest.approx((400 + 699 * 20) * 4 * 8 / 1e6)
    assert first[5].factor == pytest.approx(dense[5].value / first[5].value)
    assert [row[6].value for row in (dense, topk, first, second)] == [0.837, 0.7471, 0.826, 0.7771]


def test_runs_that_count_no_bytes_are_left_out(environment):
    assert "SSFL" not in lines_of(environment)
    assert [one.sparsity for one in lines_of(environment)["SparsyFed"]] == [0.95, 0.99]


def test_a_page_and_a_figure(environment):
    text = filled("<!-- table: last-rounds-cifar10-100-dirichlet-equal-1 -->\n<!-- end -->", [environment])
    assert "| SparsyFed | 0.95 | 2 |" in text
    figure = against_bytes(environment)
    labels = figure.axes[0].get_legend_handles_labels()[1]
    assert {"FedAvg", "SparsyFed", "Top-K", "the authors'"} == {*labels}
    assert labels.count("the authors'") == 4


def test_other_environments_have_no_such_figures(tmp_path):
    write_run(tmp_path / "one", method={"name": "sparsyfed", "sparsity": 0.95}, **PLACE | {"rounds": 6})
    (environment,) = environments_of(load_runs([tmp_path])[0])
    assert reported(environment) == {}
    table = last_rounds(environment)
    assert table.columns == COLUMNS[:-1] and {len(row) for row in table.rows} == {len(table.columns)}
    assert against_bytes(environment) is None


def test_what_is_far_below_is_an_arrow_at_the_edge(environment):
    panel = against_bytes(environment).axes[0]
    assert panel.get_ylim()[0] < 0.7 and not panel.texts
    worst = next(one for one in environment.series if one.label == "SparsyFed" and one.sparsity == 0.99)
    for run in worst.runs:
        run.accuracy[-10:] = [0.1] * 10
    (again,) = environments_of(environment.runs)
    panel = against_bytes(again).axes[0]
    assert panel.get_ylim()[0] == pytest.approx(max(line.get_ydata().max() for line in panel.get_lines()) - 0.4)
    assert [text.get_text() for text in panel.texts] == ["0.10 ↓"]


def test_a_legend_has_as_many_columns_as_fit():
    short = ["FedAvg", "SSFL", "Top-K", "FedDST", "FedRTS"]
    assert fitting_columns(short, 4, 7.0) == 4
    assert fitting_columns([*short, "FedSparsify+ (batch_size 16, end 0.1, initial 0.5, lr 0.1)"], 4, 5.5) == 3
    assert fitting_columns(["a" * 70] * 6, 4, 7.0) == fitting_columns([], 4, 7.0) == 1
