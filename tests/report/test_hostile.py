"""Runs from strangers: their names are text in every table, figure and page."""

from __future__ import annotations

import csv
import io
import json
import re
import tomllib

import pytest
from made_runs import write_run
from matplotlib.text import Text

from fedsparsify import toml
from fedsparsify.report import environments_of, load_runs, write_packed
from fedsparsify.report.figures import write
from fedsparsify.report.page import page_of, write_page
from fedsparsify.report.paper_figures import figures_of
from fedsparsify.report.render import as_csv, latex, markdown
from fedsparsify.report.site import tables_of, write_tables
from fedsparsify.report.tables import Cell, Table, every_run

NASTY = (
    "{{js}}{{data}}</script><img src=x>\u2028\u202e\x1b[31m\n",
    r"\input{/etc/passwd}\write18{id}~^%#&_{}$\frac$",
    "=1+1|[a](http://b) `c` *d* <!-- end -->",
    "../../x",
    "x" * 100_000,
)


FEW = NASTY[0], NASTY[1], NASTY[-1]


def table(*texts: str) -> Table:
    return Table(texts[0], ("Method", texts[0]), tuple((Cell(text=text), Cell(0.5, ".2f", 2.0)) for text in texts))


@pytest.mark.parametrize(
    ("text", "tex", "md", "field"),
    [
        ("a & b", r"a \& b", "a & b", "a & b"),
        (r"\input{x}", r"\textbackslash{}input\{x\}", r"\\input{x}", r"\input{x}"),
        ("$x$ 5% #1 a_b", r"\$x\$ 5\% \#1 a\_b", r"\$x\$ 5% #1 a_b", "$x$ 5% #1 a_b"),
        ("~^<>", r"\textasciitilde{}\textasciicircum{}\textless{}\textgreater{}", r"\~^&lt;>", "~^<>"),
        ("a\nb", r"a\textbackslash{}nb", r"a\\nb", r"a\nb"),
        ("[x]", "{}[x]", r"\[x\]", "[x]"),
        ("*x*", "{}*x*", r"\*x\*", "*x*"),
        ("a--b", "a-{}-b", "a--b", "a--b"),
        ("(xavier)", "(xavier)", "(xavier)", "(xavier)"),
        ("=1+1", "=1+1", "=1+1", "'=1+1"),
        ("+1", "+1", "+1", "'+1"),
        ("-1", "-1", "-1", "'-1"),
        ("@x", "@x", "@x", "'@x"),
        (" =1", " =1", " =1", "' =1"),
        ("＝1", "＝1", "＝1", "'＝1"),
        ("\t=1", r"\textbackslash{}t=1", r"\\t=1", r"\t=1"),
        ('a"b,c', 'a"b,c', 'a"b,c', '"a""b,c"'),
        ("a;=1", "a;=1", "a;=1", '"a;=1"'),
        ("a|b", r"a\textbar{}b", r"a\|b", '"a|b"'),
        ("<b>&lt;", r"\textless{}b\textgreater{}\&lt;", r"&lt;b>\&lt;", '"<b>&lt;"'),
        ("http://a www.b a@b", "http://a www.b a@b", r"http\://a www\.b a\@b", "http://a www.b a@b"),
        ("_a_ `b`", r"\_a\_ `b`", r"\_a\_ \`b\`", "_a_ `b`"),
    ],
)
def test_every_format_escapes_its_own(text, tex, md, field):
    made = table(text)
    assert latex(made).splitlines()[-3] == rf"{tex} & 0.50 ($\times$2.00) \\"
    assert markdown(made).splitlines()[2] == f"| {md} | 0.50 (x2.00) |"
    assert as_csv(made).splitlines()[1] == f"{field},0.5,2"


def test_numbers_stay_numbers():
    assert as_csv(Table("", ("a",), ((Cell(-0.5, ".2f"),),))) == "a\n-0.5\n"


@pytest.mark.parametrize("text", NASTY)
def test_no_text_leaves_its_cell(text):
    made = table(text, "next")
    assert len(latex(made).splitlines()) == 9
    assert "\\input" not in latex(made)
    assert "\\write" not in latex(made)
    assert len(markdown(made).splitlines()) == 4
    assert "<!-- end -->" not in markdown(made)
    rows = list(csv.reader(io.StringIO(as_csv(made))))
    assert [len(row) for row in rows] == [3, 3, 3]
    assert not rows[1][0].startswith(("=", "+", "-", "@", "\t", "\r"))


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Runs whose settings, folders and layers are called by nasty names; also numbers where text belongs."""
    folder = tmp_path_factory.mktemp("nasty")
    for number, text in enumerate(FEW):
        name = text.replace("/", "-")[:100]
        path = write_run(folder / name, diagnose=not number, method="fedsparsify-local", sparsity=0.9)
        config = tomllib.loads((path / "config.toml").read_text())
        told = {
            "name": f"a:{text}",
            "aggregate": text,
            "every": text,
            "exponent": number,
            text[:50]: text,
            "taps": [1, 2],
        }
        config |= {"data": text, "network": text, "seed": number, "method": config["method"] | told}
        (path / "config.toml").write_text(toml.dumps(config), "utf-8")
        again = config | {
            "split": text,
            "seed": 9,
            "method": {"name": "fedsparsify-local", "sparsity": 0.9, "every": text},
        }
        other = write_run(folder / f"{name}-again")
        (other / "config.toml").write_text(toml.dumps(again), "utf-8")
    return folder


@pytest.fixture(scope="module")
def environments(runs):
    found, notes = load_runs([runs])
    assert len(found) == 2 * len(FEW)
    assert all(note.isprintable() and len(note) <= 500 for note in notes)
    assert all(run.name.isprintable() and len(run.name) <= 200 for run in found)
    return environments_of(found)


def test_tables(environments):
    made = tables_of(environments)
    assert len(made) == 3 * len(environments)
    for name, one in made.items():
        assert re.fullmatch(r"[a-z0-9.-]{1,150}", name)
        assert "\\input" not in latex(one)
        assert "<!-- end -->" not in markdown(one)
    for row in csv.reader(io.StringIO(as_csv(every_run(environments)))):
        assert len(row) == 18
        assert not any(cell.startswith(("=", "+", "@")) for cell in row)


def test_figures(environments):
    names = []
    for name, _, figure in figures_of([one for one in environments if "input" in one.data]):
        names.append(name)
        assert re.fullmatch(r"[a-z0-9.-]{1,150}", name)
        for text in figure.findobj(Text):
            said = text.get_text()
            assert said.isprintable()
            assert len(said) <= 200
            assert said.count("$") == said.count(r"\$") or r"\mathdefault" in said, said
    assert len(set(names)) == len(names) > 5


def test_the_page(environments):
    page = page_of(environments, [NASTY[0]])
    data = json.loads(re.search(r'<script type="application/json" id="data">(.*?)</script>', page, re.DOTALL)[1])
    assert page.count("<script") == page.count("</script>") == 2
    assert "<img" not in page
    assert page.count("let DATA = ") == 1
    assert data["notes"][0].startswith("{{js}}{{data}}</script>")
    for environment in data["environments"]:
        for run in environment["runs"]:
            lines = environment["settings"] | run["settings"]
            assert (
                tomllib.loads("\n".join(lines[key] for key in lines if not key.startswith("method.")))["data"] in NASTY
            )


def test_a_title_is_text(environments):
    first = next(one for one in environments if "img" in one.data)
    assert "&lt;img src=x&gt;" in page_of([first], [])
    assert "{{js}}{{data}}&lt;/script" in page_of([first], [])


def test_files_with_a_long_name_are_written_and_what_was_packed_reads_back(environments, tmp_path):
    long = [one for one in environments if one.data.startswith("xxx") and one.iid]
    name, caption, figure = next(figures_of(long))
    write(figure, tmp_path, name, caption)
    assert len(write_tables(long, tmp_path)) == 3
    (packed,) = write_packed(long, tmp_path / "packed")
    (run,), _ = load_runs([packed])
    assert run.table["data"] == NASTY[-1]
    assert run.table["method"]["taps"] == (1, 2)


def test_names_that_are_no_unicode(tmp_path):
    (tmp_path / "results.json").write_text(
        json.dumps(
            {
                "format": "fedsparsify-runs/1",
                "settings": {"data": "\udcff", "split": "iid", "clients": 2, "rounds": 1, "method.name": "\ud800"},
                "runs": [
                    {
                        "name": "\udcff",
                        "settings": {},
                        "total": 4,
                        "seconds": 1,
                        "model_bytes": 3,
                        "layers": [["\udcff", 1, 2]],
                    }
                    | {key: [1] for key in ("round", "accuracy", "nonzero", "paper_params", "sent_params")}
                ],
            }
        )
    )
    runs, notes = load_runs([tmp_path])
    assert not notes
    environments = environments_of(runs)
    write_page(environments, [], tmp_path / "page.html")
    write_tables(environments, tmp_path / "tables")
    assert r"\udcff" in (tmp_path / "page.html").read_text()
    write_packed(environments, tmp_path / "again")
    assert load_runs([tmp_path / "again"])[0][0].table == runs[0].table


@pytest.mark.parametrize("value", [10**400, -1, 2**60])
def test_counts_beyond_reason_are_damage(tmp_path, value):
    history = write_run(tmp_path / "a", sparsity=0.9) / "history.jsonl"
    lines = history.read_text().splitlines()
    history.write_text("\n".join([*lines[:2], re.sub(r'"nonzero": \d+', f'"nonzero": {value}', lines[2])]))
    (run,), notes = load_runs([tmp_path])
    assert run.round == [1, 2]
    assert "line 3" in notes[0]


@pytest.mark.parametrize(
    ("key", "value"), [("lr", "x"), ("lr", 0.0), ("epochs", "x"), ("batch_size", 0), ("lr", [[1]])]
)
def test_settings_that_are_none_become_a_note(tmp_path, key, value):
    path = write_run(tmp_path / "a", sparsity=0.9) / "config.toml"
    path.write_text(toml.dumps(tomllib.loads(path.read_text()) | {key: value}))
    runs, notes = load_runs([tmp_path])
    assert not runs
    assert "are not those of a run" in notes[0]


def test_a_finished_run_with_infinities_is_shown_and_repeated(tmp_path):
    write_run(tmp_path / "a", method={"name": "prunefl", "half_life": float("inf")})
    (run,), notes = load_runs([tmp_path])
    assert notes == []
    (environment,) = environments_of([run])
    page = page_of([environment], [])
    assert "half_life = inf" in page
