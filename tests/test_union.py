"""Merging files in memory: the laws it keeps, and the rule for two records of one point."""

from __future__ import annotations

import dataclasses
import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shipconf.portfolio import Portfolio, Row
from shipconf.records import ConfigFile, Device, Record, dump
from shipconf.union import agree, chosen, equal, identity, unite, unite_all, unite_portfolios

FILE = ConfigFile(
    kernel="told", device=Device("cuda", "NVIDIA L4", "sm_89", 58, 101376), key={"N": 8},
    dtypes={"a_ptr": "float16"}, nearest=("M",), records=(),
)  # fmt: skip

texts = st.sampled_from(["a", "b"])
records = st.builds(
    Record,
    at=st.sampled_from([{"M": 1}, {"M": 2}, {"M": 64}]),
    config=st.fixed_dictionaries({"BLOCK": st.sampled_from([16, 32])}),
    time_ms=st.none() | st.fixed_dictionaries({"median": st.sampled_from([0.0, 0.5, 1.0])}),
    rigor=st.sampled_from([None, "quick", "full", "verified", "odd"]),
    fingerprint=st.none() | texts,
    tuned_at=st.sampled_from(
        [None, "2026-01-01T00:00:00Z", "2026-01-01T01:00:00+01:00", "2026-02-01T00:00:00Z", "odd"]
    ),
    extra=st.dictionaries(st.sampled_from(["note", "more"]), texts),
)
rows = st.builds(
    Row,
    at=st.sampled_from([{"M": 1}, {"M": 2}, {"M": 64}]),
    time_ms=st.tuples(*[st.sampled_from([None, 0.5, 1.0])] * 2),
    programs=st.none() | st.just((4, 2)),
)
tables = st.builds(
    Portfolio,
    configs=st.permutations([{"BLOCK": 16}, {"BLOCK": 32}]).map(tuple),
    resources=st.just(({"shared": 64}, {"shared": 64})),
    rows=st.lists(rows, min_size=1, max_size=3, unique_by=lambda row: row.at["M"]).map(tuple),
    fingerprint=st.none() | texts,
    triton=st.sampled_from(["3.5.0", "3.6.0"]),
)
files = st.builds(
    lambda found, measured, module, extra: dataclasses.replace(
        FILE,
        records=tuple(found),
        portfolios=unite_portfolios(measured),
        module=module,
        extra=extra,
    ),
    st.lists(records, max_size=4, unique_by=lambda record: record.at["M"]),
    st.lists(tables, max_size=2),
    st.none() | texts,
    st.dictionaries(st.sampled_from(["portfolio", "comment"]), texts, max_size=1),
)
agreeing = files.map(lambda file: dataclasses.replace(file, extra={"portfolio": "a"}))


def merged(*several: ConfigFile) -> list[bytes]:
    return [dump(file) for file in unite_all(several)[0]]


@given(files)
def test_merging_a_file_with_itself_changes_nothing(file):
    assert merged(file, file) == merged(file) == [dump(file)]


@given(st.lists(files, max_size=4))
def test_merging_again_changes_nothing(several):
    once, _ = unite_all(several)
    assert merged(*once) == merged(*several) == merged(*once, *several)


@given(st.lists(files, max_size=4), st.randoms())
def test_the_order_of_the_files_says_nothing(several, random):
    shuffled = list(several)
    random.shuffle(shuffled)
    assert merged(*shuffled) == merged(*several)


@given(agreeing, agreeing, agreeing)
def test_merging_in_steps_is_merging_at_once(one, two, three):
    (first,), _ = unite_all([one, two])
    assert merged(first, three) == merged(one, two, three)


@given(st.lists(files, min_size=1, max_size=4))
def test_nothing_is_lost_and_no_record_is_mixed_or_relabelled(several):
    """Each record of the result is one of the inputs', each that is not there lost to another
    of its point, and each unknown field has every value that it had."""
    united, conflicts = unite_all(several)
    before = [record for file in several for record in file.records]
    after = [record for file in united for record in file.records]
    assert all(record in before for record in after)
    assert {record.at["M"] for record in after} == {record.at["M"] for record in before}
    dropped = [conflict.dropped for conflict in conflicts]
    assert all(record in after or record in dropped for record in before)
    for name, value in ((n, v) for file in several for n, v in file.extra.items()):
        assert any(file.extra.get(name) == value for file in united)


@given(st.lists(records.map(lambda r: dataclasses.replace(r, at={"M": 1})), min_size=3, max_size=3))
def test_the_rule_for_two_records_is_a_total_order(three):
    one, two, three_ = three
    assert chosen(one, two)[0] == chosen(two, one)[0]
    winners = {id(_best(order)): _best(order) for order in itertools.permutations(three)}
    first = next(iter(winners.values()))
    assert all(winner == first for winner in winners.values()), three_


def _best(order):
    best = order[0]
    for record in order[1:]:
        best, _, _ = chosen(best, record)
    return best


def record(**fields) -> Record:
    return Record(at={"M": 1}, config={"BLOCK": 16}, **fields)


LATE = "2026-02-01T00:00:00Z"


@pytest.mark.parametrize(
    ("wins", "loses", "why"),
    [
        ({"tuned_at": LATE, "rigor": "quick"}, {"tuned_at": "2026-01-01T00:00:00Z",
                                                "rigor": "full"}, "tuned later"),
        ({"tuned_at": LATE}, {"time_ms": {"median": 0.1}, "rigor": "verified"}, "tuned later"),
        ({"tuned_at": "2026-01-01T23:30:00-05:00"}, {"tuned_at": "2026-01-02T01:00:00Z"},
         "tuned later"),
        ({"rigor": "verified"}, {"rigor": "full", "time_ms": {"median": 0.1}}, "of more rigor"),
        ({"rigor": "quick"}, {"rigor": "thorough"}, "of more rigor"),
        ({"time_ms": {"median": 0.1}}, {"time_ms": {"median": 0.2}}, "that is faster"),
        ({"time_ms": {"median": 0.2}}, {}, "that is faster"),
        ({"fingerprint": "1:b"}, {"fingerprint": "1:a"}, "of the greater text"),
    ],
)  # fmt: skip
def test_which_of_two_records_stays(wins, loses, why):
    winner, loser = record(**wins), record(**loses)
    assert chosen(winner, loser) == (winner, loser, why)
    assert chosen(loser, winner) == (winner, loser, why)


@pytest.mark.parametrize(
    "other",
    [
        {"kernel": "other"},
        {"key": {"N": 8.0}},
        {"key": {"N": True}},
        {"dtypes": None},
        {"dtypes": {"a_ptr": "float32"}},
        {"nearest": ("L",)},
        *({"device": dataclasses.replace(FILE.device, **change)} for change in (
            {"name": "NVIDIA L40"}, {"arch": ""}, {"backend": "hip"}, {"multiprocessors": 57},
            {"shared_memory": 0},
        )),
    ],
)  # fmt: skip
def test_files_of_another_device_key_or_kernel_are_never_merged(other):
    assert identity(dataclasses.replace(FILE, **other)) != identity(FILE)


def test_unknown_fields_of_a_file_and_its_device_are_kept():
    newer = dataclasses.replace(FILE.device, extra={"clock_mhz": 2040})
    one = dataclasses.replace(FILE, extra={"portfolio": [1]}, device=newer)
    two = dataclasses.replace(FILE, extra={"note": "x"}, records=(record(),))
    united, _ = unite(one, two)
    assert united.extra == {"note": "x", "portfolio": [1]}
    assert united.device.extra == {"clock_mhz": 2040} and united.records == (record(),)


def test_one_kernel_that_was_tuned_in_two_modules_stays_in_one_file():
    """A package that was renamed, say: where a kernel was found does not part its records."""
    files = [dataclasses.replace(FILE, module=module) for module in ("new.name", None, "old.name")]
    for order in itertools.permutations(files):
        (one,), _ = unite_all(order)
        assert one.module == "new.name"


def test_two_values_of_an_unknown_field_stay_in_two_files():
    one = dataclasses.replace(FILE, extra={"portfolio": [1]})
    two = dataclasses.replace(FILE, extra={"portfolio": [2]})
    assert not agree(one, two) and len(unite_all([one, two])[0]) == 2


# --- portfolios ---------------------------------------------------------------------------------

TABLE = Portfolio(
    configs=({"BLOCK": 16}, {"BLOCK": 32}), resources=({"shared": 64}, {"shared": 128}),
    rows=(Row(at={"M": 1}, time_ms=(1.0, 2.0), programs=(4, 2)),),
    fingerprint="1:a", triton="3.6.0",
)  # fmt: skip
TURNED = dataclasses.replace(
    TABLE, configs=TABLE.configs[::-1], resources=TABLE.resources[::-1],
    rows=(Row(at={"M": 64}, time_ms=(5.0, 9.0), programs=(20, 40)),),
)  # fmt: skip


def with_tables(*several: Portfolio) -> ConfigFile:
    return dataclasses.replace(FILE, portfolios=several)


def test_tables_of_the_same_configs_become_one():
    """In whatever order each has them: the rows stay with their configs."""
    (one,) = unite_portfolios([TURNED, TABLE])
    times = {row.at["M"]: dict(zip((16, 32), row.time_ms, strict=True)) for row in one.rows}
    assert [config["BLOCK"] for config in one.configs] == [16, 32]
    assert times == {1: {16: 1.0, 32: 2.0}, 64: {16: 9.0, 32: 5.0}}
    assert one.resources == TABLE.resources
    assert {row.at["M"]: row.programs for row in one.rows} == {1: (4, 2), 64: (40, 20)}


@pytest.mark.parametrize(
    "other",
    [
        {"fingerprint": "1:b"},
        {"fingerprint": None},
        {"triton": "3.5.0"},
        {"configs": ({"BLOCK": 16}, {"BLOCK": 64})},
        {"resources": ({"shared": 64}, {"shared": 256})},
        {"extra": {"measured_by": "somebody"}},
    ],
)
def test_tables_that_differ_in_more_than_their_rows_stand_side_by_side(other):
    """Times of two versions, or of two compilations, are never one table."""
    different = dataclasses.replace(TABLE, **other)
    assert sorted(unite_portfolios([TABLE, different]), key=repr) == sorted(
        [TABLE, different], key=repr
    )
    assert unite_portfolios([TABLE, different]) == unite_portfolios([different, TABLE])


def test_of_two_rows_of_a_point_the_complete_one_stays_then_the_faster():
    def row(*time_ms):
        return dataclasses.replace(TABLE, rows=(Row(at={"M": 1}, time_ms=time_ms),))

    def kept(*several):
        return [one.rows[0].time_ms for one in unite_portfolios(several)]

    assert kept(row(0.1, None), row(1.0, 2.0)) == [(1.0, 2.0)]
    assert kept(row(1.0, 2.0), row(1.0, 1.5), row(1.2, 1.6)) == [(1.0, 1.5)]


def test_tables_of_two_devices_are_never_in_one_file():
    other = dataclasses.replace(with_tables(TURNED), device=Device("cuda", "NVIDIA L40", "sm_89"))
    assert identity(with_tables(TABLE)) != identity(other)


def test_a_malformed_portfolio_joins_none_that_is_well():
    """Both would be written under one name, and no reader takes a file with a doubled name."""
    malformed = dataclasses.replace(FILE, extra={"portfolios": [7]})
    assert not agree(malformed, with_tables(TABLE)) and not agree(with_tables(TABLE), malformed)
    assert agree(malformed, FILE)
    assert len(unite_all([malformed, with_tables(TABLE), FILE])[0]) == 2


def test_files_whose_tables_list_the_same_in_another_order_say_the_same():
    turned = dataclasses.replace(TURNED, rows=(
        dataclasses.replace(TABLE.rows[0], time_ms=(2.0, 1.0), programs=(2, 4)),
    ))  # fmt: skip
    assert equal(with_tables(TABLE), with_tables(turned))
    assert not equal(with_tables(TABLE), with_tables(TURNED))
    assert not equal(with_tables(TABLE), FILE)
