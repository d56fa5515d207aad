"""Every figure of the paper, from runs; what cannot be drawn is left out, and nothing covers anything."""

from __future__ import annotations

import pytest
from made_runs import write_grid, write_run

from fedsparsify.report import environments_of, load_runs
from fedsparsify.report import paper_figures as figures
from fedsparsify.report.figures import write
from fedsparsify.report.runs import Timing
from fedsparsify.report.style import LOOKS, look_of


@pytest.fixture(scope="module")
def environments(tmp_path_factory):
    runs, _ = load_runs([write_grid(tmp_path_factory.mktemp("grid"))])
    for run in runs:
        object.__setattr__(run, "timing", Timing(1.0, 60, 1e3 / run.nonzero[-1], 8, 1, 1.0))
    return environments_of(runs)


@pytest.fixture(scope="module")
def drawn(environments):
    """Every figure by its name; test_command.py has them written."""
    return {name: figure for name, _, figure in figures.figures_of(environments)}


def test_every_figure_as_svg_and_png(drawn, tmp_path):
    assert drawn.keys() == {
        *("accuracy-sparsity-digits-4", "rounds-digits-4", "cost-digits-4", "data-digits-4", "vote-digits-4"),
        *("frequency-digits-4-classes-2", "exponent-digits-4-classes-2", "theorem-digits-4-classes-2", "inference"),
        *("layers-digits-4-iid", "layers-digits-4-classes-2", "bytes-digits-4-iid", "bytes-digits-4-classes-2"),
    }
    write(drawn["inference"], tmp_path, "inference")
    assert (tmp_path / "inference.png").read_bytes().startswith(b"\x89PNG")
    assert "<svg" in (tmp_path / "inference.svg").read_text()


def test_the_clients_own_view(tmp_path):
    write_run(tmp_path / "a", sparsity=0.9, evaluate="clients")
    (environment,) = environments_of(load_runs([tmp_path])[0])
    names = {name: figure for name, _, figure in figures.figures_of([environment])}
    (panel,) = names["clients-digits-4-iid"].axes
    mean, worst = panel.lines
    assert list(worst.get_ydata()) == pytest.approx([0.25, 0.3, 0.35, 0.4, 0.45, 0.5])
    assert list(mean.get_ydata()) == environment.runs[0].client_views["accuracy"]["mean"]


def test_the_same_runs_are_the_same_bytes(environments, tmp_path):
    for name in ("a", "b"):
        write(figures.progress(environments[:1], 0.9), tmp_path, name)
    for kind in ("svg", "png"):
        assert (tmp_path / f"a.{kind}").read_bytes() == (tmp_path / f"b.{kind}").read_bytes()


def test_a_method_has_one_colour_and_methods_have_different_looks(environments):
    figure = figures.accuracy_against_sparsity(environments)
    for panel in figure.axes:
        for handle, label in zip(*panel.get_legend_handles_labels(), strict=True):
            line = handle.lines[0] if hasattr(handle, "lines") else handle
            wanted = next(look for look in LOOKS.values() if look.label == label)
            assert line.get_color() == wanted.colour
    looks = [(look.colour, look.marker) for name, look in LOOKS.items() if name != "fedavg-mfl"]
    assert len(set(looks)) == len(looks)
    assert look_of("mine:Noisy") == look_of("mine:Noisy")
    assert look_of("mine:Noisy").label == "Noisy"


def test_legends_cover_no_data(drawn):
    made = {name: figure for name, figure in drawn.items() if figure.legends}
    assert len(made) >= 8
    for name, figure in made.items():
        figure.draw_without_rendering()
        (legend,) = figure.legends
        box = legend.get_window_extent()
        for panel in figure.axes:
            assert not box.overlaps(panel.get_window_extent()), name


def test_runs_of_different_lengths(tmp_path):
    write_run(tmp_path / "runs" / "a", sparsity=0.9)
    write_run(tmp_path / "runs" / "b", sparsity=0.9, seed=1991, played=3)
    write_run(tmp_path / "runs" / "c", sparsity=0.8, played=1)
    runs, notes = load_runs([tmp_path / "runs"])
    (environment,) = environments_of(runs)
    drawn = set(figures.draw_all([environment], tmp_path / "out"))
    assert "rounds-digits-4" in drawn
    assert len(notes) == 2
    assert [len(one.finals) for one in environment.series] == [0, 1]


def test_only_stopped_runs_still_make_curves(tmp_path):
    write_run(tmp_path / "runs" / "a", sparsity=0.9, played=2)
    drawn = set(figures.draw_all(environments_of(load_runs([tmp_path])[0]), tmp_path / "out"))
    assert drawn >= {"rounds-digits-4", "cost-digits-4", "data-digits-4"}


def test_environments_of_other_lengths_have_figures_of_their_own(tmp_path):
    write_run(tmp_path / "runs" / "a", sparsity=0.9)
    write_run(tmp_path / "runs" / "b", sparsity=0.9, rounds=4)
    found = environments_of(load_runs([tmp_path])[0])
    names = [name for name, _, _ in figures.figures_of(found)]
    assert len(names) == len(set(names))
    assert {"rounds-digits-4", "rounds-digits-4-v2"} <= set(names)
