"""Rows of a program and their encoding, by hand."""

from __future__ import annotations

from math import inf

import pytest

from fedsparsify.inference.kernels.program_table import ROW_RECORD, Kind
from fedsparsify.inference.lowering.convolution_rows import ConvolutionRow
from fedsparsify.inference.lowering.encoding import columns_of, encode
from fedsparsify.inference.lowering.rows import AddRow, BarrierRow, Clamp, HaloRow, Row, View


def kinds_of(base: type[Row]) -> list[type[Row]]:
    """All classes of rows that are a kind of operation."""
    found = [base] if "kind" in vars(base) else []
    return found + [kind for child in base.__subclasses__() for kind in kinds_of(child)]


KINDS = sorted({*kinds_of(Row), *kinds_of(ConvolutionRow)}, key=lambda kind: kind.kind)


def test_rows_are_encoded_by_name() -> None:
    clamp = Clamp(0, 6)
    views = View(10, 100, 20), View(11, 101, 21), View(12, 102, 22)
    rows = [
        AddRow(source=views[0], second=views[1], target=views[2], channels=3, block=(4, 5), clamp=clamp),
        HaloRow(target=views[0], channels=3, block=(4, 5), halo=7, outside_count=8, frame_rows=4, fill=-inf),
        BarrierRow(arrivals=2),
    ]
    added, halo, barrier = encode(rows)
    assert [Kind(row["kind"]) for row in (added, halo, barrier)] == [Kind.ADD, Kind.HALO, Kind.BARRIER]
    assert [int(added[name]) for name in ("source", "second", "target")] == [10, 11, 12]
    assert [int(added[name]) for name in ("source_channel", "second_row", "rows", "columns")] == [100, 21, 4, 5]
    assert (added["low"], added["high"]) == (0, 6)
    assert [int(halo[name]) for name in ("halo", "outside_count", "frame_rows")] == [7, 8, 4]
    assert halo["fill"] == -inf
    assert barrier["arrivals"] == 2


def test_every_kind_of_operation_has_one_kind_of_row() -> None:
    assert sorted(kind.kind for kind in KINDS) == sorted(Kind)


@pytest.mark.parametrize("kind", KINDS)
def test_no_two_fields_of_a_row_share_a_word(kind: type[Row]) -> None:
    columns = ["kind", *(column for columns in columns_of(kind).values() for column in columns)]
    fields = ROW_RECORD.fields
    assert fields is not None
    words = [fields[column][1] for column in columns]
    assert len(set(words)) == len(words)


def test_a_share_of_a_row_begins_at_its_channel() -> None:
    row = AddRow(source=View(0, 10), second=View(5, 20), target=View(7, 30), channels=8, block=(1, 1), clamp=Clamp())
    share = row.share(2, 5, {"source": 1000, "second": 0, "target": 2000})
    assert (share.channels, share.source.origin, share.second.origin, share.target.origin) == (3, 1020, 45, 2067)
