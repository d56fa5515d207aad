"""Whatever a setting may be, `tomllib` reads it back from what we write."""

from __future__ import annotations

import math
import tomllib
from dataclasses import dataclass, replace
from typing import Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedsparsify import METHODS, RunConfig, toml
from fedsparsify.config import load_config, to_toml
from fedsparsify.errors import ConfigError
from fedsparsify.methods import Gradual, Method, PruneFL
from fedsparsify.options import option, settings

TEXTS = ["", "plain", 'a "b" \\ c', "line\nline\r\n\ttab", "\x00\x1b[31m\x7f\x85\u2028", "größe 数 🙂", "#[x]=1"]
VALUES = {
    bool: [True, False],
    int: [0, -1, 2**62, 2**70],
    float: [0.0, -0.0, 1e-300, 1e300, 5e-324, 0.1, 3.0, math.inf, -math.inf, math.nan],
    str: [*TEXTS, "none"],
}


@dataclass(frozen=True, kw_only=True)
class Everything(Gradual):
    """A method with an option of every type."""

    cap: float | None = option(None, "largest step; none: no cap")
    floor: int | None = option(3, "least step")
    note: str | None = option("x", "any text")
    mode: Literal["a", "b"] | None = option("a", "a word")
    taps: tuple[float, ...] = option((1.0, math.inf), "weights of the taps")
    size: tuple[int, int] = option((3, 4), "height and width")
    names: tuple[str, ...] | None = option(None, "names")
    größe: bool = option(True, "a key that needs quotes")


@pytest.mark.parametrize(
    ("value", "written"),
    [
        (math.inf, "inf"),
        (-math.inf, "-inf"),
        (math.nan, "nan"),
        (1e-05, "1e-05"),
        (3.0, "3.0"),
        (3, "3"),
        (True, "true"),
        (None, '"none"'),
        ((1, 2), "[1, 2]"),
        ('a "b"\n\x7f', r'"a \"b\"\n\u007f"'),
    ],
)
def test_literally(value, written):
    assert toml.literal(value) == written


def same(a, b) -> bool:
    return a == b or (a != a and b != b)


@pytest.mark.parametrize("kind", [RunConfig, *METHODS.values(), Everything], ids=lambda kind: kind.__name__)
def test_every_option_of_every_class(kind):
    for setting in settings(kind).values():
        values = setting.choices or VALUES[setting.type]
        if setting.length is not None:
            values = [tuple(values[: setting.length]) if setting.length >= 0 else tuple(values)]
        for value in [*values, *([None] if setting.optional else [])]:
            back = setting.read(tomllib.loads(toml.dumps({setting.name: value}))[setting.name])
            expected = None if setting.optional and value == "none" else value
            assert repr(back) == repr(expected), setting
            assert type(back) is type(expected)


@given(st.recursive(st.text() | st.floats() | st.integers() | st.booleans(), lambda inner: st.lists(inner, max_size=3)))
def test_any_value(value):
    assert repr(tomllib.loads(toml.dumps({"größe\n.x": value}))["größe\n.x"]) == repr(value)


@pytest.mark.parametrize("text", TEXTS)
def test_a_run_with_settings_of_every_type_reads_back_as_the_same_run(tmp_path, text):
    path = tmp_path / "config.toml"
    for method in (
        Everything(cap=math.inf, note=text, names=(text, text), größe=False),
        Everything(cap=None, floor=None, note=None, mode=None, taps=(), size=(0, -1)),
        PruneFL(half_life=math.inf),
    ):
        config = RunConfig(method=method, data=f"{text}:f")
        path.write_bytes(to_toml(config).encode())
        assert load_config(path) == config
        assert config.differences(load_config(path)) == []


def test_the_word_none_is_none_where_a_setting_may_be_none():
    config = RunConfig(method={"name": f"{__name__}:Everything", "floor": "none"})
    assert config.method.floor is None
    with pytest.raises(ConfigError, match=r"method\.exponent must be a number\. Received: 'none'"):
        RunConfig(method={"name": f"{__name__}:Everything", "exponent": "none"})


def test_what_earlier_versions_wrote_can_be_read(tmp_path):
    path = tmp_path / "config.toml"
    config = RunConfig(method=Everything(cap=None, taps=()))
    text = to_toml(config).replace('cap = "none"', "cap = null").replace('names = "none"', "names = null")
    path.write_text(text.replace("exponent = 3.0", "exponent = Infinity"), "utf-8")
    assert load_config(path) == replace(config, method=replace(config.method, exponent=math.inf))


def test_half_a_surrogate_pair_is_refused_by_name():
    with pytest.raises(ConfigError, match=r"data must be Unicode text. Received: '\\ud800:f'"):
        to_toml(RunConfig(data="\ud800:f"))


@pytest.mark.parametrize(
    ("kind", "says"),
    [
        (dict, "cannot carry: dict"),
        (list[int], r"cannot carry: list\[int\]"),
        (int | str, r"cannot carry: int \| str"),
        (complex, "cannot carry: complex"),
        (tuple[int, str], "cannot carry"),
        (Literal[1, 2], "cannot carry"),
        (object, "cannot carry: object"),
    ],
)
def test_an_option_of_a_type_that_cannot_be_carried_is_refused_when_the_class_is_made(kind, says):
    body = {"__annotations__": {"odd": kind}, "odd": option(None, "odd"), "__module__": __name__}
    with pytest.raises(ConfigError, match=f"the option 'odd' of {__name__}.Mine has a type.*{says}"):
        type("Mine", (Method,), body)


@pytest.mark.parametrize(
    ("name", "annotations", "default", "says"),
    [
        ("noise", {}, 0.1, "'noise' of .*Mine has no type"),
        ("noise", {"noise": "Nowhere"}, 0.1, "'Nowhere' is not defined"),
        ("noise", {"noise": float}, None, r"the default of Mine.noise must be a number. Received: None"),
        ("noise", {"noise": int}, 0.5, r"the default of Mine.noise must be an integer. Received: 0.5"),
        ("rounds", {"rounds": int}, 1, "'rounds' of .*Mine must have another name"),
        ("name", {"name": str}, "", "'name' of .*Mine must have another name"),
    ],
)
def test_other_mistakes_in_an_option(name, annotations, default, says):
    with pytest.raises(ConfigError, match=says):
        type("Mine", (Method,), {"__annotations__": annotations, name: option(default, ""), "__module__": __name__})


@pytest.mark.parametrize(
    ("table", "says"),
    [
        ({"seed": 2**70}, r"seed must lie in 0 … 2⁶³ − 1. Received: 1180591620717411303424"),
        ({"seed": -1}, "seed must lie in .* Received: -1"),
        ({"clients": 2**40}, "clients must be at most 2,147,483,647. Received: 1099511627776"),
        ({"lr": 10**400}, "lr must be a number"),
    ],
)
def test_numbers_out_of_range(table, says):
    with pytest.raises(ConfigError, match=says):
        RunConfig(**table)
