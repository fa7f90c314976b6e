"""The reference says what the code does: each table of it against what it is about."""

from __future__ import annotations

import builtins
import copy
import json
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from hypothesis import given
from pages import ROOT
from test_pages import ALL
from test_records import config_files

import shipconf
from shipconf import (
    children,
    files,
    finals,
    flight,
    gpu_bench,
    memory,
    placement,
    records,
    sampler,
    settings,
    tuner,
)
from shipconf.cli import main
from shipconf.errors import ConfigFileError

REFERENCE = ROOT / "docs" / "reference"
SCHEMA = json.loads((REFERENCE / "schema-1.json").read_text(encoding="utf-8"))
VALIDATOR = jsonschema.Draft202012Validator(SCHEMA)
GOLDEN = sorted((ROOT / "tests" / "golden").glob("schema1*.json"))
SHIPPED = sorted((ROOT / "examples").glob("*/shipconf_*/configs/**/*.json"))


def rows(page: str) -> list[list[str]]:
    """The cells of every row of the tables of a page."""
    lines = (REFERENCE / page).read_text(encoding="utf-8").splitlines()
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines
            if line.startswith("|")]  # fmt: skip


def code(cell: str) -> list[str]:
    return re.findall(r"`([^`]+)`", cell)


# --- the file format --------------------------------------------------------------------------


def test_the_schema_is_one():
    jsonschema.Draft202012Validator.check_schema(SCHEMA)
    assert SCHEMA["properties"]["schema"]["const"] == records.SCHEMA


@pytest.mark.parametrize("path", [*GOLDEN, *SHIPPED], ids=lambda path: path.name)
def test_files_of_every_version_and_those_that_ship_validate(path):
    assert len(GOLDEN) >= 2 and len(SHIPPED) >= 4
    VALIDATOR.validate(json.loads(path.read_text(encoding="utf-8")))


@given(config_files)
def test_what_is_written_validates(file):
    """Whatever the records."""
    VALIDATOR.validate(json.loads(records.dump(file)))


def changed(*where: Any, to: Any = None) -> Callable[[Any], None]:
    """A change of a document: another value at the place, or none where it is not given."""

    def change(document: Any) -> None:
        *parents, last = where
        for name in parents:
            document = document[name]
        if to is None:
            del document[last]
        else:
            document[last] = to

    return change


WRONG = {
    "no kernel": changed("kernel"),
    "no device's name": changed("device", "name"),
    "a newer schema": changed("schema", to=2),
    "a list for a key": changed("key", to=[1]),
    "a list in a key": changed("key", "N", to=[1]),
    "nearest doubled": changed("nearest", to=["M", "M"]),
    "no point": changed("records", 0, "at"),
    "half a point": changed("records", 0, "at", "M", to=0.5),
    "three warps": changed("records", 0, "config", "num_warps", to=3),
    "warps in words": changed("records", 0, "config", "num_warps", to="4"),
    "a list for a knob": changed("records", 0, "config", "BLOCK_M", to=[16]),
    "a negative time": changed("records", 1, "time_ms", "median", to=-1),
    "candidates in words": changed("records", 1, "candidates", to="96"),
    "no dtypes of a tuple": changed("dtypes", "scales", to=[]),
}


@pytest.mark.parametrize("change", WRONG.values(), ids=WRONG)
def test_what_shipconf_refuses_does_not_validate(change):
    document = json.loads(GOLDEN[0].read_text(encoding="utf-8"))
    records.from_document(copy.deepcopy(document), "x.json")
    change(document)
    with pytest.raises(ConfigFileError):
        records.from_document(document, "x.json")
    assert not VALIDATOR.is_valid(document)


def test_the_schema_has_the_fields_that_are_read():
    """No more, no fewer."""
    parts = SCHEMA["$defs"]
    assert set(parts["record"]["properties"]) == {"at", "config", *records._RECORD_FIELDS}
    assert list(parts["device"]["properties"]) == list(records._DEVICE_FIELDS)
    assert list(parts["config"]["properties"]) == list(records.OPTIONS)


@pytest.mark.parametrize("part", ["root", "device", "record", "config", "portfolio", "row"])
def test_the_page_has_the_fields_of_the_schema(part):
    """In its order, in the table that the comment before it names."""
    text = (REFERENCE / "file-format.md").read_text(encoding="utf-8")
    table = text.split(f"<!-- fields: {part} -->\n\n")[1].split("\n\n")[0]
    told = [code(line.split("|")[1])[0] for line in table.splitlines()[2:]]
    described = SCHEMA if part == "root" else SCHEMA["$defs"][part]
    assert told == list(described["properties"])
    assert all("description" in field for field in described["properties"].values())


# --- settings, errors, names, commands --------------------------------------------------------


def test_the_page_of_settings_has_every_variable(monkeypatch):
    """As shipconf itself lists them for a variable that it does not know."""
    monkeypatch.setenv("SHIPCONF_NONSENSE", "1")
    (fault,) = settings.faults()
    known = fault.partition("those are: ")[2].split(", ")
    told = [code(row[0])[0] for row in rows("settings.md") if code(row[0])]
    assert [name for name in told if name.startswith("SHIPCONF_")] == known


def test_the_page_of_errors_has_every_error_with_its_attributes():
    """And with the standard error that it also is."""
    kinds = {
        name: kind for name in shipconf.__all__
        if isinstance(kind := getattr(shipconf, name), type) and issubclass(kind, Exception)
    }  # fmt: skip
    told = {code(row[0])[0]: row for row in rows("errors.md") if code(row[0])}
    assert list(told) == list(kinds)
    for name, kind in kinds.items():
        (standard,) = code(told[name][1])
        assert issubclass(kind, getattr(builtins, standard))
        own = [*vars(kind).get("__annotations__", {})]
        own += [field for field, value in vars(kind).items() if isinstance(value, property)]
        assert sorted(code(told[name][2])) == sorted(own)


def test_every_public_name_is_described():
    pages = "".join((REFERENCE / page).read_text("utf-8") for page in ("python.md", "errors.md"))
    described = re.findall(r"^\.\. auto\w+:: (\w+)", pages, flags=re.M)
    assert sorted(described) == sorted(shipconf.__all__)


@pytest.fixture
def command_line(monkeypatch):
    """The extension that makes the page of the command line."""
    monkeypatch.syspath_prepend(str(ROOT / "docs" / "_ext"))
    import command_line

    yield command_line
    del sys.modules["command_line"]


def test_the_page_of_the_command_line_has_every_command_and_option(command_line, capsys):
    with pytest.raises(SystemExit):
        main(["--help"])
    listed = re.findall(r"^    (\w+) ", capsys.readouterr().out, flags=re.M)
    page = command_line.markdown()
    assert sorted(listed) == re.findall(r"^## shipconf (\w+)", page, flags=re.M)
    for parser in command_line.parsers().values():
        for action in parser._actions:
            for option in action.option_strings:
                assert option in ("-h", "--help") or f"`{option}" in page
    assert not re.findall(r"^: *$", page, flags=re.M)  # an argument without a word on it


@pytest.mark.parametrize("path", ALL, ids=lambda path: str(path.relative_to(ROOT)))
def test_commands_that_pages_show_exist(path: Path, command_line):
    """With the options that they show."""
    parsers = command_line.parsers()
    for block in re.findall(
        r"^```(?:console|sh|)\n(.*?)^```", path.read_text("utf-8"), re.M | re.S
    ):
        joined = block.replace("\\\n", " ")
        for name, rest in re.findall(r"^\$? ?(?:\w+=\S+ )*shipconf (\w+)(.*)", joined, re.M):
            assert name in parsers, f"shipconf {name}"
            options = re.findall(
                r"(?<!\S)--?[a-z][\w-]*", rest.partition(" -- ")[0].partition("#")[0]
            )
            known = [word for action in parsers[name]._actions for word in action.option_strings]
            assert set(options) <= set(known), f"shipconf {name}{rest}"


# --- numbers in prose -------------------------------------------------------------------------

NUMBERS = {
    "measuring.md": [
        f"Launches of less than {sampler.SHORT_MS * 1000:g} µs",
        f"take {gpu_bench.HOPELESS:g} times as long as the best",
        f"and up to {children.PROCESSES}, and",
        f"killed if nothing is heard for {children.STUCK_S} s.",
        f"has {children.LARGE >> 30} GiB of memory",
        f"Those within {tuner.REACH - 1:.0%} of the best".replace("%", " %"),
        f"up to {gpu_bench.FINALISTS}, or",
        f"up to {gpu_bench.FEW_FINALISTS} of launches of {gpu_bench.LONG_MS:g} ms",
        f"at least {finals.LEAST_ROUNDS} rounds",
        f"or for {gpu_bench.FINALS_S:g} s",
        f"up to {placement.MOST_COPIES} copies",
        f"runs for {gpu_bench.BLOCK_MS:g} ms at a time",
        f"at least {gpu_bench.LONG_ROUNDS} rounds of blocks",
        f"end after {gpu_bench.LONG_FINALS_S:g} s",
        f"A lead of up to {finals.TIE * 100:g} % is a tie",
        f"more than {finals.TIE * 100:g} % faster",
    ],
    "locks.md": [
        f"After {files.SAY_AFTER_S:g} s",
        f"looks again {flight.RETRY_S / 60:g} minutes later",
    ],
    "lookup.md": [f"the last {memory.CAPACITY:,} shapes"],
}


@pytest.mark.parametrize("page", NUMBERS)
def test_numbers_in_prose_are_those_of_the_code(page):
    text = " ".join((ROOT / "docs" / "explanation" / page).read_text(encoding="utf-8").split())
    for phrase in NUMBERS[page]:
        assert phrase in text, f"{page} does not say: {phrase}"
