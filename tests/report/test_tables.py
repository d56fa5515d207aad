"""The paper's tables, cell by cell, and in three formats."""

from __future__ import annotations

import csv
import io

import pytest
from made_runs import write_run

from fedsparsify import GradualSchedule, communication_cost
from fedsparsify.report import environments_of, load_runs
from fedsparsify.report.paper import printed_rows
from fedsparsify.report.render import as_csv, latex, markdown
from fedsparsify.report.runs import Run, Timing
from fedsparsify.report.tables import COMPARISON, Cell, Table, accuracies, comparison, every_run

SIZES = {"fashion-mnist": (118_282, 118_282), "cifar10": (1_610_314, 1_609_930), "cifar100": (14_782_884, 14_774_436)}
SPLITS = {"fashion-mnist": "classes:2", "cifar10": "classes:5", "cifar100": "classes:50"}


def papers_run(data: str, sparsity: float, seed: int = 1990, accuracy: float = 0.7) -> Run:
    """A run whose costs are those of the schedule, to the parameter."""
    total, trainable = SIZES[data]
    rounds = 100 if data == "cifar100" else 200
    cost = communication_cost(total, trainable, GradualSchedule(sparsity, rounds), rounds, 10)
    method = {"name": "fedsparsify-global", "sparsity": sparsity} if sparsity else {"name": "fedavg-mfl"}
    table = {"data": data, "split": SPLITS[data], "clients": 10, "participation": 1.0, "rounds": rounds, "epochs": 4}
    return Run(
        name=f"{data} {sparsity} {seed}",
        table=table | {"seed": seed, "method": method},
        round=[rounds],
        accuracy=[accuracy],
        nonzero=[cost.final_params],
        paper_params=[cost.paper],
        sent_params=[cost.honest],
        total=total,
        model_bytes=int(4e3 / (1 - sparsity)) if not sparsity else 1000,
        timing=Timing(10 * (1 - sparsity), 600, 600.0 / (1 - sparsity), 1, 2, 60.0),
    )


@pytest.mark.parametrize("data", SIZES)
def test_every_cell_of_params_and_cost_is_the_papers(data):
    """The paper's own convention gives the paper's own cells, so the rows can be compared."""
    probe = environments_of([papers_run(data, 0.9)])[0]
    printed = printed_rows(probe)
    (environment,) = environments_of([papers_run(data, row.sparsity) for row in printed])
    rows = comparison(environment).rows
    assert len(rows) == 2 * len(printed)
    for ours, theirs in zip(rows[::2], rows[1::2], strict=True):
        assert str(theirs[0]) == "the paper"
        assert ours[1].value == theirs[1].value
        cost, said = ours[6].value, theirs[6].value
        assert said is not None
        assert cost is not None
        assert cost == pytest.approx(said, abs=1)
        if ours[1].value:  # the dense cell of CIFAR-10 leaves out the statistics
            assert ours[4].value == theirs[4].value
            assert ours[6].factor == pytest.approx(theirs[6].factor, abs=0.03)


def test_ours_and_the_papers_beside_each_other():
    runs = [papers_run("fashion-mnist", s, 1990 + i, 0.7 + 0.01 * i) for s in (0.0, 0.9) for i in (0, 2)]
    (environment,) = environments_of(runs)
    table = comparison(environment)
    assert table.beside == {1, 3}
    assert [str(cell) for cell in table.rows[2]] == [
        *("FedSparsify-Global", "0.9", "2", "0.710 [0.700–0.720]", "11,829", "0.001 (x4.00)"),
        *("155.4 (x3.05)", "156.4 (x3.02)", "–", "1 (x10.00)", "600 (x10.00)", "6,000 (x10.00)"),
    ]
    assert [str(cell) for cell in table.rows[3]][:7] == [
        *("the paper", "0.9", "1", "0.749", "11,829", "0.056 (x7.75)", "155 (x3.05)"),
    ]
    assert "batch 1, threads: 2" in table.footnotes[1]


def test_methods_against_sparsity(tmp_path):
    for seed in (1990, 1991):
        write_run(tmp_path / f"d{seed}", method="fedavg", seed=seed)
        write_run(tmp_path / f"r{seed}", method="random", sparsity=0.8, seed=seed)
    write_run(tmp_path / "stopped", method="random", sparsity=0.9, played=3)
    (environment,) = environments_of(load_runs([tmp_path])[0])
    table = accuracies(environment)
    assert table.columns == ("Method", "no target", "0.8")
    assert [[str(cell) for cell in row] for row in table.rows] == [
        ["FedAvg", "0.905 [0.900–0.910]", "–"],
        ["Random", "–", "0.745 [0.740–0.750]"],
    ]
    lines = list(csv.reader(io.StringIO(as_csv(every_run([environment])))))
    assert len(lines) == 6
    assert lines[-1][-1].endswith("/stopped")


def test_three_formats():
    rows = ((Cell(text="a & b|c"), Cell(0.5, ".2f", 2.0, (0.25, 1.0))), (Cell(text="theirs"), Cell()))
    table = Table("title", ("Method", "Size (50 %)"), rows, frozenset({1}), ("A note.",))
    assert markdown(table) == (
        "| Method | Size (50 %) |\n|---|---:|\n| a & b\\|c | 0.50 [0.25–1.00] (x2.00) |\n| *theirs* | – |\n\nA note.\n"
    )
    assert latex(table) == (
        "% title\n% A note.\n\\begin{tabular}{@{}lr@{}}\n\\toprule\nMethod & Size (50 \\%) \\\\\n\\midrule\n"
        "a \\& b\\textbar{}c & 0.50 [0.25--1.00] ($\\times$2.00) \\\\\n\\textit{theirs} & \\textit{--} \\\\\n"
        "\\bottomrule\n\\end{tabular}\n"
    )
    assert as_csv(table) == (
        "Method,Size (50 %),Size (50 %) lowest,Size (50 %) highest,Size (50 %) factor\n"
        '"a & b|c",0.5,0.25,1,2\ntheirs,,,,\n'
    )


def test_without_fedsparsify_every_method_takes_part(tmp_path):
    write_run(tmp_path / "a", method="random", sparsity=0.8)
    write_run(tmp_path / "b", method="oneshot", sparsity=0.8)
    (environment,) = environments_of(load_runs([tmp_path])[0])
    table = comparison(environment)
    assert [str(row[0]) for row in table.rows] == ["OneShot", "Random"]
    assert len(table.rows[0]) == len(COMPARISON)
