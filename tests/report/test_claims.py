"""The paper's claims on runs that are made to fit them, and on runs that are not."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedsparsify.report import environments_of, load_runs
from fedsparsify.report.claims import CLAIMS, claims_table
from fedsparsify.report.docs import fill_page, filled
from fedsparsify.report.runs import Run

ROOT = Path(__file__).resolve().parents[2]


def made(
    method: str, sparsity: float | None, accuracy: float, split: str = "classes:2", seed: int = 1990, **settings
) -> Run:
    table = {"data": "fashion-mnist", "split": split, "clients": 10, "participation": 1.0, "rounds": 200, "epochs": 4}
    own = {"name": method} | ({} if sparsity is None else {"sparsity": sparsity}) | settings
    return Run(
        name=f"{method} {sparsity} {settings}",
        table=table | {"seed": 1990, "method": own},
        round=[9, 10, 200],
        accuracy=[0.5, 0.5 - 0.01 * settings.get("every", 1), accuracy],
        nonzero=[900, 800 if settings.get("aggregate") != "average" else 850, 100],
        paper_params=[10, 20, 100 if sparsity else 1000],
        sent_params=[10, 20, 100],
        total=1000,
    )


def verdicts(runs: list[Run]) -> dict[str, str]:
    table = claims_table(environments_of(runs))
    assert len(table.rows) == len(CLAIMS)
    return {rule.__name__: str(row[1]) for (_, rule), row in zip(CLAIMS, table.rows, strict=True)}


def test_runs_of_other_lengths_are_left_out():
    shorter = made("fedsparsify-global", 0.95, 0.1)
    assert verdicts([shorter])["tables_are_met"] == "does not hold"
    shorter.table["rounds"] = 100
    assert verdicts([shorter])["tables_are_met"] == "no runs"


def test_nothing_is_said_without_runs():
    assert set(verdicts([]).values()) == {"no runs"}


def test_claims_that_hold_and_do_not():
    runs = [
        *(made("fedavg", None, 0.75), made("fedavg", None, 0.88, "iid"), made("prunefl", None, 0.74)),
        *(made("fedsparsify-global", 0.8, 0.74), made("fedsparsify-local", 0.8, 0.73)),
        *(made("fedsparsify-global", 0.95, 0.73), made("fedsparsify-local", 0.95, 0.735)),
        *(made("oneshot", 0.95, 0.25), made("oneshot-ft", 0.95, 0.67), made("snip", 0.95, 0.8)),
        *(made("random", 0.8, 0.73), made("fedsparsify-global", 0.9, 0.7), made("fedsparsify-local", 0.9, 0.6)),
        *(made("fedsparsify-global", 0.95, 0.72, every=2), made("fedsparsify-global", 0.95, 0.6, every=10)),
        *(made("fedsparsify-global", 0.95, 0.6, exponent=6.0), made("fedsparsify-global", 0.95, 0.8, exponent=1.0)),
        made("fedsparsify-local", 0.9, 0.6, aggregate="average"),
    ]
    for run in runs:  # as resolved configs have them
        if run.method.startswith("fedsparsify"):
            usual = {"every": 1, "exponent": 3.0, "initial": 0.0, "start": 1}
            usual |= {"aggregate": "majority"} if run.method.endswith("local") else {}
            run.table["method"].update({name: run.table["method"].get(name, value) for name, value in usual.items()})
    found = verdicts(runs)
    assert found["harder_when_non_iid"] == "holds"
    assert found["tuning_saves_oneshot"] == "holds"
    assert found["global_above_local"] == "in part (2 of 3)"
    assert found["prunefl_below_dense"] == "does not hold"
    assert found["others_fall_at_the_extreme"] == "in part (2 of 3)"
    assert found["small_f_alike"] == "holds"
    assert found["large_f_drops"] == "holds"
    assert found["three_is_a_good_exponent"] == "in part (1 of 2)"
    assert found["average_prunes_less"] == "holds"
    assert found["more_for_the_same_bits"] == "holds"
    assert found["above_dense_with_many_clients"] == "no runs"


def test_marked_tables_are_filled_and_the_rest_is_left(tmp_path):
    page = tmp_path / "page.md"
    page.write_text(
        "Mine.\n<!-- table: accuracy-fashion-mnist-10-classes-2 -->\nold\n<!-- end -->\n"
        "<!-- table: none -->\n<!-- end -->\n![a](figures/rounds.png) ![b](figures/none.png)\n"
    )
    (tmp_path / "made").mkdir()
    (tmp_path / "made" / "rounds.png").write_bytes(b"png")
    environments = environments_of([made("fedavg", None, 0.75)])
    notes = fill_page(page, environments, tmp_path / "made")
    text = page.read_text()
    assert text.startswith("Mine.\n<!-- table: accuracy-fashion-mnist-10-classes-2 -->\n| Method | no target |")
    assert "| FedAvg | 0.750 |" in text
    assert "old" not in text
    assert (tmp_path / "figures" / "rounds.png").read_bytes() == b"png"
    assert len(notes) == 2
    assert filled(text, environments) == text


@pytest.mark.parametrize("name", ["reproduction", "plus", "rivals"])
def test_the_pages_tables_are_those_of_the_shipped_results(name):
    page = ROOT / "docs" / f"{name}.md"
    runs, _ = load_runs([ROOT / "results"])
    assert filled(page.read_text(), environments_of(runs)) == page.read_text(), "run `make docs`"
