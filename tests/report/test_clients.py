from __future__ import annotations

from fedsparsify.report.clients import client_rows


def line(cosines, norms, samples=(10, 10, 10), **more):
    return {
        "updates": {
            "client": [0, 1, 2],
            "samples": [*samples],
            "loss": [0.5, None, 0.7],
            "norm": norms,
            "cosine": cosines,
        },
        **more,
    }


def test_who_stands_out_comes_first():
    lines = [
        line([0.9, -0.8, 0.8], [1.0, 9.0, 1.0], bounded={"client 1": "too long"}, refused={"client 3": "NaN"}),
        line([0.9, -0.6, 0.8], [2.0, 9.0, 2.0], refused={"client 3": "NaN", "client 1, round 1": "late"}),
    ]
    first, second, *others = client_rows(lines)
    assert first.name == "client 1"
    assert first.notes == [
        "beyond a bound in 1 of 2 rounds",
        "updates 6.75 times as long as the median",
        "pulls away from the others",
    ]
    assert (first.rounds, first.cosine, first.loss) == (2, -0.7, None)
    assert (second.name, second.notes, second.rounds) == ("client 3", ["left out in 2 of 2 rounds"], 0)
    assert [row.notes for row in others] == [[], []]
    assert (others[0].norm, others[0].samples, others[1].loss) == (1.0, 10, 0.7)


def test_a_claim_of_samples_stands_out():
    rows = client_rows([line([0.9, 0.9, 0.9], [1, 1, 1], samples=(10, 10**12, 10))])
    assert rows[0].notes == ["holds 100% of all samples"]


def test_damaged_facts_are_passed_over():
    wrong = [{"updates": {"client": [0]}}, {"updates": 3}, {}, {"updates": {}}, line([0.9], [1.0])]
    assert client_rows(wrong) == []
    rows = client_rows([*wrong, {"refused": 7, **line([float("nan"), 0.5, 0.5], [1, 1, 1])}])
    assert [row.name for row in rows] == ["client 1", "client 2"]
