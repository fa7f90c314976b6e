"""The places that hold records, the order in which they serve, and what is written where."""

from __future__ import annotations

import dataclasses
import errno
import inspect
import itertools
import json
import os
import random
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import FunctionType
from typing import Any

import pytest
from forked import NOBODY, Child, event
from hypothesis import given
from hypothesis import strategies as st

from shipconf import files, stores
from shipconf.errors import ShipconfWarning
from shipconf.keys import Binder, Dtype, Key, Opaque, distance
from shipconf.records import ConfigFile, Device, Record, dump, parse
from shipconf.stores import Found, Shelf, file_name, journal_path, lock_path, places, put, read
from shipconf.subject import Subject, subject_of

L4 = Device("cuda", "NVIDIA L4", "sm_89", 58, 101376)
H20 = Device("cuda", "NVIDIA H20", "sm_90", 78, 232448)
H200 = Device("cuda", "NVIDIA H200", "sm_90", 132, 232448)
NVL = Device("cuda", "NVIDIA H200 NVL", "sm_90", 114, 232448)
HALF = {"a_ptr": "float16", "b_ptr": "float16"}
NOW = "1:00000000000000aa"  # the fingerprint of the kernel as it is
OLD = "1:00000000000000bb"

only_root = pytest.mark.skipif(os.getuid() != 0, reason="only root may change the user id")


@pytest.fixture
def subject(tmp_path) -> Subject:
    """A kernel in a package with an empty `configs/tile/gemm`."""
    package = tmp_path / "site" / "configs" / "tile" / "gemm"
    package.mkdir(parents=True)
    return Subject(
        name="gemm", target="pkg.tile:gemm", stem="tile", package=package, own_folder=False,
        identity="gemm-0123456789ab", key_names=("N", "K"), nearest_names=("M",), fingerprint=NOW,
    )  # fmt: skip


def key(M: int = 64, N: Any = 4096, K: Any = 4096, dtypes: Any = HALF) -> Key:
    return Key({"N": N, "K": K}, dtypes, {"M": M})


def record(M: int = 64, block: int = 1, **fields: Any) -> Record:
    """A record whose block tells it from the others."""
    return Record(at={"M": M}, config={"BLOCK": block}, **{"fingerprint": NOW, **fields})


def config_file(*records: Record, device: Device = L4, **fields: Any) -> ConfigFile:
    values = {"kernel": "gemm", "key": {"N": 4096, "K": 4096}, "dtypes": HALF, "nearest": ("M",)}
    return ConfigFile(**{**values, "device": device, "records": records, **fields})


def ship(
    folder: Path | None, *records: Record, device: Device = L4, name: str = "", **fields: Any
) -> Path:
    """Write a file of records into a folder, under the name that lookups build for it."""
    assert folder is not None
    folder.mkdir(parents=True, exist_ok=True)
    file = config_file(*records, device=device, **fields)
    asked = Key(file.key, file.dtypes or {}, {})
    path = folder / (name or f"{file_name(asked, device)}.json")
    path.write_bytes(dump(file))
    return path


def served(subject: Subject, asked: Key | None = None, device: Device = L4) -> list[int]:
    """The blocks of the records that serve, best first."""
    asked = asked or key()
    ranked = read(subject, asked, device).ranked(asked)
    return [found.record.config["BLOCK"] for _, found in ranked]


def flat(folder: Path, name: str, points: Mapping[str, Any]) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / name
    path.write_text(json.dumps(points, indent=4))
    return path


def with_folder(subject: Subject, folder: Path) -> Subject:
    """The same kernel, with a `configs_dir` that its author named."""
    return dataclasses.replace(subject, package=folder, own_folder=True)


# --- names ------------------------------------------------------------------------------------


def test_the_file_name_of_the_design():
    assert file_name(Key({"N": 4096, "K": 4096}, {"a": "float16"}, {"M": 1}), L4) == (
        "N=4096,K=4096,dtypes=float16,device_name=NVIDIA_L4,arch=sm_89,mp=58"
    )
    mixed = {"a": "float16", "bias": "none", "scale": "float8_e4m3fn"}
    assert file_name(Key({}, mixed, {}), H200) == (
        "dtypes=float16-none-float8_e4m3fn,device_name=NVIDIA_H200,arch=sm_90,mp=132"
    )
    assert file_name(Key({}, {}, {}), Device("interpreter", "interpreter", "interpreter")) == (
        "device_name=interpreter,arch=interpreter,mp=0"
    )


HARD_NAMES = [
    "AMD Instinct MI50/MI60", "AMD Instinct MI50", "AMD Instinct MI50_MI60", "Orin (nvgpu)",
    "Intel(R) Arc(TM) Pro B60 Graphics", "GPU [0]", "..", ".", "../../etc", "a,b", "a=b", "a~2",
    "a%2Fb", "a/b", "é", "NVIDIA_L4", "NVIDIA L4", "nvidia l4", "", "x" * 300, "x" * 300 + "y",
    "/" * 80, "N=1,device_name=NVIDIA_L4",
]  # fmt: skip


@pytest.mark.parametrize("name", HARD_NAMES, ids=lambda name: name[:20])
def test_hard_device_names_make_a_round_trip(subject, store, name):
    """Case 2: in the user store and in a package, and the file stays in its folder."""
    device = dataclasses.replace(L4, name=name)
    path = put(subject, key(), device, record(block=7))
    assert path.parent == store / "v1" / subject.identity
    assert os.listdir(path.parent) == [path.name]
    assert served(subject, device=device) == [7]
    path.unlink()
    shipped = ship(subject.package, record(block=8), device=device)
    assert shipped.parent == subject.package and os.listdir(shipped.parent) == [shipped.name]
    assert served(subject, device=device) == [8]


def test_two_hard_names_never_share_a_file(subject):
    """Case 2 and 3: each device finds its own record, and no other does."""
    devices = [dataclasses.replace(L4, name=name) for name in HARD_NAMES]
    paths = {put(subject, key(), device, record(block=i)) for i, device in enumerate(devices)}
    assert len(paths) == len(devices)
    for i, device in enumerate(devices):
        assert served(subject, device=device) == [i]


def test_a_prefix_of_a_name_is_another_device(subject):
    """Case 3: an H20 takes nothing from an H200, nor the other way round."""
    ship(subject.package, record(), device=dataclasses.replace(H200, multiprocessors=0, arch=""))
    assert served(subject, device=H200) == [1]
    assert served(subject, device=dataclasses.replace(H200, name="NVIDIA H20")) == []
    ship(subject.package, record(block=2), device=H20)
    assert served(subject, device=H20) == [2] and served(subject, device=H200) == [1]


def test_a_slice_of_a_gpu_is_another_device(subject):
    ship(subject.package, record(), device=H200)
    assert served(subject, device=dataclasses.replace(H200, multiprocessors=16)) == []
    shelf = read(subject, key(), dataclasses.replace(H200, multiprocessors=16))
    assert [why for _, why in shelf.skipped] == [
        "tuned on NVIDIA H200 (cuda, sm_90, 132 multiprocessors)"
    ]


def test_names_longer_than_the_file_system_allows_work(subject, store):
    """Case 11: long values and many tensors; each key still has its own record."""
    keys = [key(N="n" * 300 + str(i)) for i in range(3)]
    keys.append(key(dtypes={f"t{i}": ("float16", "int8")[i % 2] for i in range(60)}))
    for i, asked in enumerate(keys):
        path = put(subject, asked, L4, record(block=i))
        assert len(path.name) <= 205
    for i, asked in enumerate(keys):
        assert served(subject, asked) == [i]
        assert len(lock_path(subject, asked, L4).name) < 255
    assert len(os.listdir(store / "v1" / subject.identity)) == len(keys)


def test_a_cut_name_that_two_keys_share_is_numbered(subject, monkeypatch):
    """What is inside decides: with hashes that collide, the second key takes `~2`."""
    monkeypatch.setattr(stores, "file_name", lambda key, device: "N=" + "x" * 198)
    first, second = key(N="x" * 250 + "1"), key(N="x" * 250 + "2")
    monkeypatch.setattr(stores, "key_text", lambda values: "N=" + "x" * 250)
    paths = [put(subject, first, L4, record(block=1)), put(subject, second, L4, record(block=2))]
    assert [path.name[198:] for path in paths] == ["xx.json", "xx~2.json"]
    assert served(subject, first) == [1] and served(subject, second) == [2]
    assert put(subject, second, L4, record(block=3)) == paths[1]
    assert served(subject, first) == [1] and served(subject, second) == [3]


@pytest.mark.parametrize(
    "other",
    [{"device": H200}, {"kernel": "gemv"}, {"key": {"N": 1, "K": 1}}, {"nearest": ("L",)},
     {"key": {"N": 4096.0, "K": 4096}}, {"dtypes": {"a_ptr": "float16"}}, {"dtypes": None}],
    ids=repr,
)  # fmt: skip
def test_a_file_of_something_else_at_the_path_is_left_alone(subject, store, other):
    """A write takes the next free name, and readers look there too."""
    folder = store / "v1" / subject.identity
    name = f"{file_name(key(), L4)}.json"
    at = dict.fromkeys(other.get("nearest", ("M",)), 1)
    theirs = ship(folder, Record(at=at, config={"BLOCK": 9}), name=name, **other)
    before = theirs.read_bytes()
    path = put(subject, key(), L4, record(block=5))
    assert path.name == name.replace(".json", "~2.json")
    assert theirs.read_bytes() == before
    assert 5 in served(subject)
    put(subject, key(), L4, record(M=128, block=6))
    assert sorted(os.listdir(folder)) == sorted([name, path.name])


def test_readers_look_past_a_missing_number(subject):
    """`~3` is found where `~2` was deleted."""
    name = f"{file_name(key(), L4)}~3.json"
    ship(subject.package, record(block=3), name=name)
    assert served(subject) == [3]


def test_a_lookup_looks_at_no_names_but_its_key_s(subject, monkeypatch):
    """A folder of a thousand keys costs it no more than one of ten; long names are cut."""
    long = "x" * 300
    for n in (1, 8, 40, 409, 4096, 40961, long, long + "y", "w" * 300):
        ship(subject.package, record(block=5), key={"N": n, "K": 4096})
    ship(subject.package, record(block=6), key={"N": 4096, "K": 40960})
    seen: list[str] = []
    may_hold = stores.may_hold

    def watched(name: str, *args: Any, **options: Any) -> bool:
        seen.append(name)
        return may_hold(name, *args, **options)

    monkeypatch.setattr(stores, "may_hold", watched)
    assert served(subject) == [5] and len(seen) == 2  # K=4096 and K=40960 begin alike
    seen.clear()
    assert served(subject, key(N=long)) == [5] and len(seen) == 2


# --- order ------------------------------------------------------------------------------------


def everywhere(subject: Subject, tmp_path: Path, monkeypatch: Any, **fields: Any) -> None:
    """One record in each store: path 1, package 2, user 3."""
    monkeypatch.setenv("SHIPCONF_CONFIG_PATH", str(tmp_path / "extra"))
    ship(tmp_path / "extra" / "gemm", record(block=1))
    ship(subject.package, record(block=2))
    put(subject, key(), L4, record(block=3, **fields))


def test_stores_serve_in_order(subject, tmp_path, monkeypatch):
    """The path first, then the package, then the user."""
    everywhere(subject, tmp_path, monkeypatch)
    assert served(subject) == [1, 2, 3]
    found = [found for _, found in read(subject, key(), L4).ranked(key())]
    assert [f.source for f in found] == ["path", "package", "user"]
    assert [f.path is not None and f.path.exists() for f in found] == [True] * 3


def test_a_forced_tuning_supersedes_the_package_and_not_the_path(subject, tmp_path, monkeypatch):
    everywhere(subject, tmp_path, monkeypatch, supersedes=True)
    assert served(subject) == [1, 3, 2]


def test_a_packages_own_word_does_not_supersede(subject):
    """`"supersedes": true` counts in the user store only."""
    ship(subject.package, record(block=2, supersedes=True))
    put(subject, key(), L4, record(block=3, supersedes=True))
    assert served(subject) == [3, 2]


def test_a_stale_package_record_ranks_after_a_current_user_record(subject):
    """Whether exact or nearest; it still serves where there is nothing else."""
    ship(subject.package, record(block=2, fingerprint=OLD), record(M=128, block=4, fingerprint=OLD))
    assert served(subject) == [2, 4]
    put(subject, key(), L4, record(block=3))
    assert served(subject) == [3, 2, 4]
    assert served(subject, key(M=120)) == [3, 4, 2]
    shelf = read(subject, key(), L4)
    assert {f.source: f.stale for f in shelf.found} == {"package": True, "user": False}


def test_a_record_without_fingerprint_is_not_stale(subject):
    ship(subject.package, record(block=2, fingerprint=None))
    put(subject, key(), L4, record(block=3))
    assert served(subject) == [2, 3]


def test_exact_goes_before_nearest_whatever_the_store(subject):
    """An exact record of the user beats a near one of the package."""
    ship(subject.package, record(M=63, block=2))
    put(subject, key(), L4, record(M=64, block=3))
    assert served(subject) == [3, 2]


def test_the_nearest_of_all_stores_goes_first(subject, tmp_path, monkeypatch):
    monkeypatch.setenv("SHIPCONF_CONFIG_PATH", str(tmp_path / "extra"))
    ship(tmp_path / "extra" / "gemm", record(M=8, block=1))
    ship(subject.package, record(M=48, block=2))
    put(subject, key(), L4, record(M=60, block=3))
    assert served(subject) == [3, 2, 1]
    distances = [d for d, _ in read(subject, key(), L4).ranked(key())]
    assert distances == sorted(distances) and distances[2] == 3


@pytest.mark.parametrize("order", list(itertools.permutations([1, 16, 64])))
def test_the_nearest_is_the_nearest_in_octaves(subject, tmp_path, order):
    """Case 14: tuned {1, 16, 64}, asked 36: 64, whatever the order in the file."""
    ship(subject.package, *(record(M=m, block=m) for m in order))
    assert served(subject, key(M=36)) == [64, 16, 1]
    own = with_folder(subject, tmp_path / "own")
    flat(tmp_path / "own", "N=4096,K=4096,device_name=NVIDIA_L4.json",
         {str(m): {"BLOCK": m} for m in order})  # fmt: skip
    assert served(own, key(M=36)) == [64, 16, 1]


def test_ties_go_to_the_larger_value_then_to_store_order(subject):
    """16 and 64 are one octave from 32."""
    ship(subject.package, record(M=16, block=16), record(M=64, block=64))
    assert served(subject, key(M=32)) == [64, 16]
    put(subject, key(), L4, record(M=64, block=65))
    put(subject, key(), L4, record(M=16, block=17))
    assert served(subject, key(M=32)) == [64, 65, 16, 17]


def test_ties_within_rounding_are_ties(subject):
    """Equal ratios whose logarithms differ by rounding: the larger value serves, always."""
    rounded = 0
    for asked in range(2, 200):
        small, large = {"M": asked}, {"M": asked * 9}
        ratio = distance({"M": asked * 3}, small) - distance({"M": asked * 3}, large)
        rounded += ratio < 0  # a plain comparison would take the smaller one
        shelf = Shelf([Found(Record(at=at, config={}), "package", None, None)
                       for at in (small, large)])  # fmt: skip
        ranked = shelf.ranked(Key({}, {}, {"M": asked * 3}))
        assert ranked[0][1].record.at == large
    assert rounded > 0


def test_ties_of_several_values_go_by_declared_order():
    """Not by the order that a file's `at` happens to have."""
    one = Record(at={"L": 8, "M": 1}, config={"BLOCK": 1})
    two = Record(at={"L": 1, "M": 8}, config={"BLOCK": 2})
    for found in ([one, two], [two, one]):
        shelf = Shelf([Found(r, "package", None, None) for r in found])
        asked = Key({}, {}, {"M": 3, "L": 3})
        # M is declared first, and 8 is larger than 1 there.
        assert [f.record.config["BLOCK"] for _, f in shelf.ranked(asked)] == [2, 1]


founds = st.builds(
    Found,
    record=st.builds(
        Record,
        at=st.fixed_dictionaries({"M": st.integers(-1, 40), "L": st.sampled_from([1, 2, 4])}),
        config=st.just({}),
        supersedes=st.none() | st.booleans(),
    ),
    source=st.sampled_from(["path", "package", "user"]),
    path=st.none(),
    dtypes=st.sampled_from([None, HALF, {"a_ptr": "float32"}]),
    stale=st.booleans(),
    borrowed=st.booleans(),
)


@given(st.lists(founds, max_size=8), st.integers(0, 40), st.integers(1, 4), st.randoms())
def test_the_order_of_files_never_decides(found, m, ell, rng):
    """Any shuffle ranks the same: current before outdated, closest first; only fit dtypes serve."""
    asked = Key({}, HALF, {"M": m, "L": ell})

    def order(some: Sequence[Found]) -> list[Any]:
        return [(dict(f.record.at), f.source, f.rank) for _, f in Shelf(list(some)).ranked(asked)]

    shuffled = list(found)
    rng.shuffle(shuffled)
    assert order(found) == order(shuffled)
    ranked = Shelf(list(found)).ranked(asked)
    assert len(ranked) == sum(f.dtypes in (None, HALF) for f in found)
    near = [(f.stale and f.source == "package", d) for d, f in ranked]
    assert all(a[0] < b[0] or (a[0] == b[0] and a[1] <= b[1] + 1e-8) for a, b in
               itertools.pairwise(near))  # fmt: skip


def test_a_stored_zero_counts_as_one(subject):
    """Case 12: a stored 0 and a stored 1 are both exact for 0 and 1; the larger one serves."""
    ship(subject.package, record(M=0, block=10), record(M=1, block=11), record(M=-4, block=12))
    for asked in (0, 1, -7):
        assert served(subject, key(M=asked))[0] == 11
    assert [d for d, _ in read(subject, key(M=0), L4).ranked(key(M=0))] == [0, 0, 0]


@pytest.mark.parametrize("points", [("0", "1"), ("1", "0")])
def test_a_flat_zero_does_not_shadow_one(subject, tmp_path, points):
    own = with_folder(subject, tmp_path / "own")
    flat(tmp_path / "own", "N=4096,K=4096,device_name=NVIDIA_L4.json",
         {point: {"BLOCK": 10 + int(point)} for point in points})  # fmt: skip
    assert served(own, key(M=1))[0] == 11 and served(own, key(M=0))[0] == 11


# --- dtypes -----------------------------------------------------------------------------------


def test_other_dtypes_are_a_miss(subject):
    """Case 5: tuned in float16, launched in float32."""
    put(subject, key(), L4, record())
    assert served(subject, key(dtypes={"a_ptr": "float32", "b_ptr": "float32"})) == []
    assert served(subject, key(dtypes="float16")) == [1]
    assert served(subject, key(dtypes="float32")) == []


def test_a_file_without_dtypes_serves_any(subject):
    ship(subject.package, record(), dtypes=None, name="N=4096,K=4096,device_name=NVIDIA_L4.json")
    assert served(subject) == [1]
    assert served(subject, key(dtypes={"a_ptr": "int8"})) == [1]


# --- keys -------------------------------------------------------------------------------------

SIX = [1, True, 1.0, "1", None, Dtype("float16"), (1, 2), (True, 2), ("1", (2.0,))]


def test_values_of_six_types_make_a_round_trip(subject):
    """Case 8: each finds its own record, through the user store and through a package."""
    for i, value in enumerate(SIX):
        put(subject, key(N=value), L4, record(block=i))
    for i, value in enumerate(SIX):
        assert served(subject, key(N=value)) == [i]
    for i, value in enumerate(SIX):
        ship(subject.package, record(block=100 + i), key={"N": value, "K": 4096})
    for i, value in enumerate(SIX):
        assert served(subject, key(N=value)) == [100 + i, i]


def test_a_file_of_a_fitting_name_for_another_key_is_skipped_and_reported(subject):
    """What is inside decides: a copied file, and one of a newer or older declaration."""
    name = f"{file_name(key(), L4)}.json"
    cases = {
        "holds another N": {"key": {"N": 1, "K": 4096}},
        "has key ['N']": {"key": {"N": 4096}},
        "nearest ['L']": {"nearest": ("L",), "records": (Record(at={"L": 1}, config={}),)},
        "kernel gemv": {"kernel": "gemv"},
        "another N, K": {"key": {"N": True, "K": "4096"}},
    }
    for why, fields in cases.items():
        path = ship(subject.package, name=name, **fields)
        shelf = read(subject, key(), L4)
        assert shelf.found == []
        assert [(p, why in reason) for p, reason in shelf.skipped] == [(path, True)], why


def test_key_names_in_another_order_are_the_same_key(subject):
    ship(subject.package, record(), key={"K": 4096, "N": 4096}, name=f"{file_name(key(), L4)}.json")
    assert served(subject) == [1]


def test_files_for_other_keys_are_not_opened(subject):
    """A folder with thousands of files costs a listing, not thousands of reads."""
    for n in range(50):
        path = subject.package / f"{file_name(key(N=n), L4)}.json"
        path.write_text("not read")
    (subject.package / "README.json").write_text("not read either")
    (subject.package / f"{file_name(key(), H200)}.json").write_text("nor this")
    ship(subject.package, record())
    shelf = read(subject, key(), L4)
    assert len(shelf.found) == 1 and shelf.skipped == []


def test_a_key_that_no_file_can_hold_looks_nowhere(subject):
    assert read(subject, key(N=Opaque(object())), L4) == Shelf()


# --- aliases ----------------------------------------------------------------------------------


def alias(path: Path, **names: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({k.replace("_", " "): v for k, v in names.items()}))


@pytest.mark.parametrize("where", ["kernel", "configs"])
def test_a_device_borrows_where_the_author_says_so(subject, where):
    """`aliases.json` in the kernel's folder or in the root of `configs`."""
    ship(subject.package, record(), device=H200)
    assert served(subject, device=NVL) == []
    assert subject.package is not None
    root = subject.package if where == "kernel" else subject.package.parent.parent
    alias(root / "aliases.json", NVIDIA_H200_NVL="NVIDIA H200")
    assert served(subject, device=NVL) == [1]
    assert read(subject, key(), NVL).found[0].borrowed
    assert not read(subject, key(), H200).found[0].borrowed
    # Not across architectures, not backwards, and not for anything else.
    assert served(subject, device=dataclasses.replace(NVL, arch="sm_100")) == []
    assert served(subject, device=H20) == []
    ship(subject.package, record(block=2), device=NVL)
    assert served(subject, device=H200) == [1]


def test_the_kernels_own_aliases_win(subject):
    assert subject.package is not None
    ship(subject.package, record(block=1), device=H200)
    ship(subject.package, record(block=2), device=H20)
    alias(subject.package.parent.parent / "aliases.json", NVIDIA_H200_NVL="NVIDIA H200")
    alias(subject.package / "aliases.json", NVIDIA_H200_NVL="NVIDIA H20")
    assert served(subject, device=NVL) == [2]


def test_borrowed_records_come_after_ones_own(subject):
    """After the package's own, and after the user's; before stale ones."""
    assert subject.package is not None
    alias(subject.package / "aliases.json", NVIDIA_H200_NVL="NVIDIA H200")
    ship(subject.package, record(block=1), device=H200)
    put(subject, key(), NVL, record(block=3))
    assert served(subject, device=NVL) == [3, 1]
    ship(subject.package, record(block=2), device=NVL)
    assert served(subject, device=NVL) == [2, 3, 1]
    ship(subject.package, record(block=2, fingerprint=OLD), device=NVL)
    assert served(subject, device=NVL) == [3, 1, 2]


def test_the_user_store_knows_no_aliases(subject, store):
    put(subject, key(), H200, record())
    for folder in (store, store / "v1", store / "v1" / subject.identity):
        alias(folder / "aliases.json", NVIDIA_H200_NVL="NVIDIA H200")
    assert served(subject, device=NVL) == []


@pytest.mark.parametrize("text", ["", "[]", '{"NVIDIA H200 NVL": 3}', "{", '{"a": "b", "a": "c"}'])
def test_bad_aliases_are_warned_about_once_and_ignored(subject, text):
    assert subject.package is not None
    ship(subject.package, record(), device=NVL)
    (subject.package / "aliases.json").write_text(text)
    with pytest.warns(ShipconfWarning, match=r"ignores the aliases.*aliases\.json") as caught:
        assert served(subject, device=NVL) == [1]
        assert served(subject, device=NVL) == [1]
    assert len(caught) == 1


# --- the flat form ----------------------------------------------------------------------------

FLAT = "N=4096,K=4096,device_name=NVIDIA_L4.json"


def test_flat_files_serve_in_a_folder_that_the_author_named(subject, tmp_path):
    """They name no arch and no dtypes, so they serve any. Case 17: a version on top."""
    own = with_folder(subject, tmp_path / "own")
    path = flat(tmp_path / "own", FLAT, {
        "triton_version": "3.5.0", "1": {"BLOCK": 1}, "64": {"BLOCK": 64},
    })  # fmt: skip
    assert served(own) == [64, 1]
    assert served(own, key(dtypes={"a_ptr": "int8"})) == [64, 1]
    found = read(own, key(), L4).found[0]
    assert (found.path, found.dtypes, found.record.triton) == (path, None, "3.5.0")
    assert not found.borrowed and not found.stale


def test_flat_files_serve_nowhere_else(subject, tmp_path, monkeypatch, store):
    """Not in the default folder, not on the path, not in the user store."""
    monkeypatch.setenv("SHIPCONF_CONFIG_PATH", str(tmp_path / "extra"))
    assert subject.package is not None
    for folder in (subject.package, tmp_path / "extra" / "gemm"):
        flat(folder, FLAT, {"64": {"BLOCK": 1}})
        with pytest.warns(ShipconfWarning, match="bad file.*schema: is missing"):
            assert served(subject) == []
        (folder / FLAT).unlink()
    flat(store / "v1" / subject.identity, FLAT, {"64": {"BLOCK": 1}})
    with pytest.warns(ShipconfWarning, match="bad file"):
        assert served(subject) == []


@pytest.mark.parametrize(
    "name",
    [
        "K=4096,N=4096,device_name=NVIDIA_L4.json",
        "device_name=NVIDIA_L4,N=4096,K=4096.json",
    ],
)
def test_the_fields_of_a_flat_name_come_in_any_order(subject, tmp_path, name):
    flat(tmp_path / "own", name, {"64": {"BLOCK": 1}})
    assert served(with_folder(subject, tmp_path / "own")) == [1]


@pytest.mark.parametrize(
    "name",
    [
        "N=4096,K=4096,device_name=NVIDIA_L4,dtype=fp8_w8a8.json",
        "N=4096,device_name=NVIDIA_L4.json",
        "N=4096,K=4096.json",
        "E=8,N=4096,K=4096,device_name=NVIDIA_L4.json",
        "N=4096,K=4096,device_name=NVIDIA_L40.json",
        "N=4096,K=4096,device_name=nvidia_l4.json",
        "N=4096,K=40960,device_name=NVIDIA_L4.json",
        "N=4096.0,K=4096,device_name=NVIDIA_L4.json",
        "N=4096,N=4096,K=4096,device_name=NVIDIA_L4.json",
        "N=4096,K=4096,device_name=NVIDIA_L4~old.json",
        "N=4096,K=4096,device_name=NVIDIA_L4.json.bak",
    ],
)
def test_a_flat_file_with_another_field_or_value_never_serves(subject, tmp_path, name):
    """A field that is not declared makes the file foreign."""
    flat(tmp_path / "own", name, {"64": {"BLOCK": 1}})
    assert served(with_folder(subject, tmp_path / "own")) == []


@pytest.mark.parametrize("space", ["", " "])
def test_tuples_in_flat_names_have_commas(subject, tmp_path, space):
    flat(tmp_path / "own", f"N=[128,{space}64],K=None,device_name=Orin_(nvgpu).json",
         {"64": {"BLOCK": 1}})  # fmt: skip
    own = with_folder(subject, tmp_path / "own")
    orin = dataclasses.replace(L4, name="Orin (nvgpu)")
    assert served(own, key(N=(128, 64), K=None), orin) == [1]
    assert served(own, key(N=(64, 128), K=None), orin) == []


def test_a_device_with_a_tilde_has_flat_files_of_its_own(subject, tmp_path):
    flat(tmp_path / "own", "N=4096,K=4096,device_name=GPU~1.json", {"64": {"BLOCK": 1}})
    own = with_folder(subject, tmp_path / "own")
    assert served(own, device=dataclasses.replace(L4, name="GPU~1")) == [1]
    assert served(own, device=dataclasses.replace(L4, name="GPU")) == []


def test_flat_and_own_files_share_a_folder(subject, tmp_path):
    own = with_folder(subject, tmp_path / "own")
    flat(tmp_path / "own", FLAT, {"16": {"BLOCK": 1}})
    ship(tmp_path / "own", record(M=64, block=2))
    assert served(own) == [2, 1] and served(own, key(M=16)) == [1, 2]


def test_flat_files_are_borrowed_through_aliases(subject, tmp_path):
    own = with_folder(subject, tmp_path / "own")
    flat(tmp_path / "own", FLAT, {"64": {"BLOCK": 1}})
    other = dataclasses.replace(L4, name="NVIDIA L4 Pro")
    assert served(own, device=other) == []
    alias(tmp_path / "own" / "aliases.json", NVIDIA_L4_Pro="NVIDIA L4")
    assert served(own, device=other) == [1]
    assert read(own, key(), other).found[0].borrowed
    assert not read(own, key(), L4).found[0].borrowed


@pytest.mark.parametrize(
    "content", [b"", b"[]", b'{"64": {"num_warps": "4"}}', b'{"64": {"num_warps": 3}}', b'{"64":{}']
)
def test_a_bad_flat_file_is_a_warned_miss(subject, tmp_path, content):
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / FLAT).write_bytes(content)
    with pytest.warns(ShipconfWarning, match="bad file") as caught:
        assert served(with_folder(subject, tmp_path / "own")) == []
        assert served(with_folder(subject, tmp_path / "own")) == []
    assert len(caught) == 1


def test_an_empty_flat_object_is_a_miss(subject, tmp_path):
    flat(tmp_path / "own", FLAT, {})
    assert served(with_folder(subject, tmp_path / "own")) == []


# --- broken files -----------------------------------------------------------------------------

BROKEN = {
    "empty": b"", "cut": dump(config_file(record()))[:80], "two": b"{}{}", "list": b"[]",
    "mark": b"\xef\xbb\xbf" + dump(config_file(record())), "bytes": b'{"schema": "\xff"}',
    "deep": b"[" * 100_000, "warps": dump(config_file(record())).replace(b'"BLOCK": 1',
                                                                         b'"num_warps": "4"'),
}  # fmt: skip


@pytest.mark.parametrize("kind", BROKEN)
def test_a_bad_package_file_is_warned_about_once_and_a_miss(subject, kind):
    """Case 21: the launch goes on, other files serve, and nothing in the package is touched."""
    assert subject.package is not None
    path = subject.package / f"{file_name(key(), L4)}.json"
    path.write_bytes(BROKEN[kind])
    put(subject, key(), L4, record(block=3))
    with pytest.warns(ShipconfWarning, match="takes no records from a bad file") as caught:
        assert served(subject) == [3]
        assert served(subject) == [3]
    assert len(caught) == 1 and str(path) in str(caught[0].message)
    assert path.read_bytes() == BROKEN[kind] and os.listdir(path.parent) == [path.name]
    assert [p for p, _ in read(subject, key(), L4).skipped] == [path]


@pytest.mark.parametrize("kind", BROKEN)
def test_a_bad_user_file_is_moved_aside_by_the_next_write(subject, store, kind):
    """As `.bad`, with one warning; reading alone moves nothing."""
    folder = store / "v1" / subject.identity
    folder.mkdir(parents=True)
    path = folder / f"{file_name(key(), L4)}.json"
    path.write_bytes(BROKEN[kind])
    with pytest.warns(ShipconfWarning, match="bad file") as caught:
        assert served(subject) == []
        assert os.listdir(folder) == [path.name]
        assert put(subject, key(), L4, record(block=5)) == path
    assert len(caught) == 1
    assert sorted(os.listdir(folder)) == [path.name, path.name + ".bad"]
    assert (folder / (path.name + ".bad")).read_bytes() == BROKEN[kind]
    assert served(subject) == [5]


def newer(path: Path) -> bytes:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"schema": 2, "kernel": "gemm", "rows": []}))
    return path.read_bytes()


def test_a_newer_schema_is_never_written_over(subject, store):
    """Case 18: a warned miss; the new record goes to the next free name."""
    path = store / "v1" / subject.identity / f"{file_name(key(), L4)}.json"
    before = newer(path)
    newer(path.with_name(path.name.replace(".json", "~2.json")))
    with pytest.warns(ShipconfWarning, match="2 is newer than 1"):
        assert served(subject) == []
    written = put(subject, key(), L4, record(block=5))
    assert written.name.endswith("~3.json")
    assert path.read_bytes() == before
    assert served(subject) == [5]
    assert not list(path.parent.glob("*.bad"))


def test_unknown_fields_survive_a_write(subject):
    """Case 18: a merge keeps what a newer version wrote, in file, device and records."""
    path = put(subject, key(), L4, record(M=1, block=1))
    document = json.loads(path.read_text())
    document["x_file"] = [1]
    document["device"]["x_device"] = {"clock": 1}
    document["records"][0]["x_record"] = "kept"
    path.write_text(json.dumps(document))
    put(subject, key(), L4, record(M=2, block=2))
    after = json.loads(path.read_text())
    assert after["x_file"] == [1] and after["device"]["x_device"] == {"clock": 1}
    assert after["records"][0]["x_record"] == "kept"
    assert [r["at"]["M"] for r in after["records"]] == [1, 2]
    assert served(subject, key(M=1))[0] == 1


@only_root
def test_an_unreadable_folder_is_warned_about_once(subject):
    """Case 22, as a user who may not look: a miss, never an exception."""
    assert subject.package is not None
    open_way(subject.package.parent)
    ship(subject.package, record())
    subject.package.chmod(0o700)

    def look() -> list[str]:
        with pytest.warns(ShipconfWarning) as caught:
            assert served(subject) == [] and served(subject) == []
        return [str(w.message) for w in caught]

    messages = Child(look, user=NOBODY).result()
    assert any("cannot read" in m and str(subject.package) in m for m in messages)
    assert len(messages) == len(set(messages))


@only_root
def test_an_unreadable_file_is_a_warned_miss(subject):
    path = ship(subject.package, record())
    open_way(path.parent)
    path.chmod(0o600)

    def look() -> int:
        os.environ["SHIPCONF_CACHE_DIR"] = str(path.parent / "none")
        with pytest.warns(ShipconfWarning, match="bad file.*ermission denied"):
            return len(served(subject))

    assert Child(look, user=NOBODY).result() == 0


def open_way(folder: Path) -> None:
    """Let other users pass through the test's temporary folders, which are private."""
    while folder != Path("/") and folder.stat().st_uid == os.getuid():
        folder.chmod(folder.stat().st_mode | 0o055)
        folder = folder.parent
        if folder in (Path("/tmp"), Path("/")):
            break


def test_a_stale_network_handle_is_opened_again(subject, monkeypatch):
    """ESTALE once: the file was replaced between the listing and the read."""
    path = ship(subject.package, record())
    read_bytes = Path.read_bytes
    failures = [path]

    def stale_once(self: Path) -> bytes:
        if self in failures:
            failures.remove(self)
            raise OSError(errno.ESTALE, "Stale file handle")
        return read_bytes(self)

    monkeypatch.setattr(Path, "read_bytes", stale_once)
    assert served(subject) == [1] and failures == []


def test_a_directory_in_the_place_of_a_file_is_a_miss(subject):
    assert subject.package is not None
    (subject.package / f"{file_name(key(), L4)}.json").mkdir()
    with pytest.warns(ShipconfWarning, match="bad file"):
        assert served(subject) == []


def test_missing_folders_are_silent_misses(subject, tmp_path, monkeypatch):
    monkeypatch.setenv("SHIPCONF_CONFIG_PATH", f"{tmp_path / 'none'}:{tmp_path / 'file' / 'x'}")
    (tmp_path / "file").write_text("")
    lonely = dataclasses.replace(subject, package=tmp_path / "nowhere")
    shelf = read(lonely, key(), L4)
    assert (shelf.found, shelf.skipped) == ([], [])
    assert [place.source for place in shelf.looked] == ["path"] * 4 + ["package", "user"]


# --- places and identity ----------------------------------------------------------------------


def test_the_folders_of_the_path_have_two_layouts(subject, tmp_path, monkeypatch):
    """`<kernel>/` and `<stem>/<kernel>/` below each; the first folder named serves first."""
    folders = [tmp_path / "one", tmp_path / "two"]
    monkeypatch.setenv("SHIPCONF_CONFIG_PATH", os.pathsep.join(map(str, folders)))
    ship(folders[1] / "gemm", record(block=3))
    ship(folders[1] / "tile" / "gemm", record(block=4))
    assert sorted(served(subject)) == [3, 4]
    ship(folders[0] / "tile" / "gemm", record(block=2))
    assert served(subject)[0] == 2
    looked = [place.folder.relative_to(tmp_path) for place in list(places(subject))[:4]]
    assert list(map(str, looked)) == ["one/gemm", "one/tile/gemm", "two/gemm", "two/tile/gemm"]


@pytest.mark.parametrize("name", ["..", ".", "a/../../b", "x" * 300, "Outer.<locals>.kernel"])
def test_a_kernels_name_leads_to_no_other_folder(store, tmp_path, monkeypatch, name):
    """Case 11 and `name=".."`: each place is below its root, and records are kept there."""
    monkeypatch.setenv("SHIPCONF_CONFIG_PATH", str(tmp_path / "extra"))
    binder = Binder(inspect.signature(lambda M, N: None), ["N"], ["M"])
    found = subject_of(_plain(tmp_path), name, binder, None)
    roots = [tmp_path / "extra", tmp_path / "extra" / "plain", tmp_path / "configs" / "plain",
             store / "v1"]  # fmt: skip
    for place, root in zip(places(found), roots):
        assert Path(os.path.normpath(place.folder)).parent == root
    asked = Key({"N": 1}, {}, {"M": 64})
    put(found, asked, L4, record(block=5))
    assert served(found, asked) == [5]


def _plain(folder: Path) -> FunctionType:
    """A plain function in a file of its own."""
    scope: dict[str, Any] = {"__name__": "plain"}
    (folder / "plain.py").write_text("def kernel(M, N):\n    return M\n")
    exec(compile("def kernel(M, N):\n    return M\n", str(folder / "plain.py"), "exec"), scope)
    function: FunctionType = scope["kernel"]
    return function


def test_the_places_of_a_kernel(tmp_path, store):
    """`configs/<stem>/<kernel>` beside the source; `configs_dir` moves it, absolute or not."""
    binder = Binder(inspect.signature(lambda M, N: None), ["N"], ["M"])
    function = _plain(tmp_path)
    default = subject_of(function, "gemm", binder, None)
    assert default.package == tmp_path / "configs" / "plain" / "gemm"
    assert not default.own_folder
    moved = subject_of(function, "gemm", binder, "tuned")
    assert moved.package == tmp_path / "tuned" and moved.own_folder
    absolute = subject_of(function, "gemm", binder, tmp_path / "elsewhere")
    assert absolute.package == tmp_path / "elsewhere"
    assert stores.user_folder(default) == store / "v1" / default.identity
    assert {s.identity for s in (default, moved, absolute)} == {default.identity}


def test_an_identity_is_a_name_and_twelve_digits(tmp_path):
    """The source, the key's and the nearest names count; the module's name does not."""
    signature = inspect.signature(lambda M, N: None)
    function = _plain(tmp_path)

    def identity(key: list[str], nearest: list[str], name: str = "gemm") -> str:
        return subject_of(function, name, Binder(signature, key, nearest), None).identity

    base = identity(["N"], ["M"])
    name, _, digits = base.rpartition("-")
    assert name == "gemm" and len(digits) == 12 and int(digits, 16) >= 0
    others = {identity(["N"], []), identity([], ["M"]), identity(["M"], ["N"]),
              identity(["N", "M"], [])}  # fmt: skip
    assert len(others | {base}) == 5
    assert identity(["N"], ["M"], "other")[-12:] == digits
    function.__module__ = "renamed"
    assert identity(["N"], ["M"]) == base


def test_two_kernels_of_one_name_do_not_fight(store):
    """Case 9: without a source, the module's name tells them apart."""
    binder = Binder(inspect.signature(lambda M, N: None), ["N"], ["M"])
    found = []
    for module in ("one", "two", "one"):
        scope: dict[str, Any] = {"__name__": module}
        exec("def gemm(M, N): return M", scope)
        found.append(subject_of(scope["gemm"], "gemm", binder, None))
    assert found[0].identity == found[2].identity != found[1].identity
    assert found[0].fingerprint is None and found[0].package is None
    asked = Key({"N": 1}, {}, {"M": 64})
    put(found[0], asked, L4, record(block=1, fingerprint=None))
    put(found[1], asked, L4, record(block=2, fingerprint=None))
    assert served(found[0], asked) == [1] and served(found[1], asked) == [2]


@only_root
def test_without_a_home_the_other_places_serve(subject):
    """Case 22: one warning, and no user store."""
    ship(subject.package, record())
    open_way(subject.package)

    def look() -> tuple[list[int], list[str], list[str]]:
        for name in ("HOME", "XDG_CACHE_HOME", "SHIPCONF_CACHE_DIR"):
            os.environ.pop(name, None)
        with pytest.warns(ShipconfWarning) as caught:
            blocks = served(subject) + served(subject)
            sources = [place.source for place in read(subject, key(), L4).looked]
        return blocks, sources, [str(w.message) for w in caught]

    blocks, sources, messages = Child(look, user=54321).result()
    assert blocks == [1, 1] and sources == ["package"]
    assert len(messages) == 1 and "in memory only" in messages[0]


# --- writing ----------------------------------------------------------------------------------


def test_put_keeps_what_the_file_holds(subject):
    """One record for each point; the new one replaces its own only; putting twice is putting
    once."""
    for m, block in ((64, 1), (16, 2), (64, 3)):
        path = put(subject, key(), L4, record(M=m, block=block))
    data = path.read_bytes()
    put(subject, key(), L4, record(M=64, block=3))
    assert path.read_bytes() == data
    file = parse(data)
    assert [(r.at["M"], r.config["BLOCK"]) for r in file.records] == [(16, 2), (64, 3)]
    assert (file.kernel, file.device, file.dtypes) == ("gemm", L4, HALF)
    assert path.name == f"{file_name(key(), L4)}.json"


def test_only_record_files_end_in_json(subject, store):
    """Locks, journals, temporaries and bad files are told by their endings."""
    path = put(subject, key(), L4, record())
    lock, journal = lock_path(subject, key(), L4), journal_path(subject, key(), L4)
    assert lock.name == path.name + ".lock"
    assert journal.name == path.name.removesuffix(".json") + ".journal"
    assert lock.parent == journal.parent == path.parent
    with files.lock("a", lock, 1):
        files.append(journal, "{}")
    put(subject, key(), L4, record(M=1))
    assert {p.name for p in store.rglob("*.json")} == {path.name}
    with_dots = dataclasses.replace(L4, name="v1.2.lock", arch="gfx90a.json")
    assert journal_path(subject, key(), with_dots).name.endswith("mp=58.journal")
    assert lock_path(subject, key(), with_dots).name.endswith("mp=58.json.lock")


def test_a_failed_write_leaves_the_old_records(subject, monkeypatch):
    path = put(subject, key(), L4, record(block=1))

    def full(*args: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        put(subject, key(), L4, record(block=2))
    assert served(subject) == [1] and os.listdir(path.parent) == [path.name]


def test_processes_that_put_under_the_lock_lose_no_record(subject):
    """Six writers of one file: every point of each is there, and readers see whole files."""
    start = event()

    def write(writer: int) -> None:
        assert start.wait(30)
        for number in range(5):
            asked = key(M=1 + writer * 5 + number)
            with files.lock("x", lock_path(subject, asked, L4), 60):
                put(subject, asked, L4, record(M=asked.nearest["M"], block=writer))

    def look() -> int:
        assert start.wait(30)
        return max(len(served(subject)) for _ in range(40))

    writers, readers = [Child(write, i) for i in range(6)], [Child(look) for _ in range(3)]
    start.set()
    for child in writers:
        child.result()
    assert all(reader.result() <= 30 for reader in readers)
    found = read(subject, key(), L4).found
    assert sorted(f.record.at["M"] for f in found) == list(range(1, 31))


def test_a_writer_killed_at_any_moment_leaves_whole_files(subject):
    """Case 24 and 26, with kills: the next process reads, locks and writes at once."""

    def write_forever(running: Any) -> None:
        for number in itertools.count():
            with files.lock("x", lock_path(subject, key(), L4), 60):
                put(subject, key(), L4, record(M=1 + number % 50, block=number))
            running.set()

    rng = random.Random(3)
    for _ in range(8):
        running = event()
        child = Child(write_forever, running)
        assert running.wait(30)
        for _ in range(rng.randrange(1, 6)):
            assert served(subject)
        child.kill()
        with files.lock("x", lock_path(subject, key(), L4), 0.0) as why:
            assert why == ""
            path = put(subject, key(), L4, record(M=99))
        assert 99 in [r.at["M"] for r in parse(path.read_bytes()).records]
    assert sorted(p.name for p in path.parent.glob("*.json")) == [path.name]


# --- misses -----------------------------------------------------------------------------------


def test_misses_are_noted_as_lines(subject, tmp_path, monkeypatch):
    stores.note_miss(subject, key(), L4)  # not asked for
    assert os.listdir(tmp_path) == ["site"]
    monkeypatch.setenv("SHIPCONF_MISSES", str(tmp_path / "misses.jsonl"))
    stores.note_miss(subject, key(M=7, N=(1, Dtype("int8"))), L4)
    stores.note_miss(subject, key(dtypes="float16"), H200)
    lines = [json.loads(x) for x in (tmp_path / "misses.jsonl").read_text().splitlines()]
    assert lines == [
        {
            "kernel": "gemm", "target": subject.target,
            "key": {"N": {"tuple": [1, {"dtype": "int8"}]}, "K": 4096},
            "nearest": {"M": 7}, "dtypes": HALF, "device": "NVIDIA L4",
        },
        {
            "kernel": "gemm", "target": subject.target, "key": {"N": 4096, "K": 4096},
            "nearest": {"M": 64}, "dtypes": "float16", "device": "NVIDIA H200",
        },
    ]  # fmt: skip


def test_misses_of_several_processes_are_whole_lines(subject, tmp_path, monkeypatch):
    path = tmp_path / "misses.jsonl"
    monkeypatch.setenv("SHIPCONF_MISSES", str(path))
    start = event()

    def miss(writer: int) -> None:
        assert start.wait(30)
        for number in range(100):
            stores.note_miss(subject, key(M=number, N="x" * 300, K=writer), L4)

    children = [Child(miss, i) for i in range(6)]
    start.set()
    for child in children:
        child.result()
    lines = [json.loads(line) for line in path.read_bytes().splitlines()]
    assert sorted((x["key"]["K"], x["nearest"]["M"]) for x in lines) == [
        (writer, number) for writer in range(6) for number in range(100)
    ]


def test_a_misses_file_that_cannot_be_written_is_warned_about_once(subject, tmp_path, monkeypatch):
    monkeypatch.setenv("SHIPCONF_MISSES", str(tmp_path))
    with pytest.warns(ShipconfWarning, match="cannot note misses") as caught:
        stores.note_miss(subject, key(), L4)
        stores.note_miss(subject, key(), L4)
    assert len(caught) == 1


def test_a_stale_exact_record_comes_after_a_current_near_one(subject):
    """The user's own record of this kernel beats a package's record of another version of it."""
    stale = Found(Record(at={"M": 64}, config={"BLOCK": 1}), "package", None, None, stale=True)
    current = Found(Record(at={"M": 32}, config={"BLOCK": 2}), "user", None, None)
    ranked = Shelf([stale, current]).ranked(Key({}, {}, {"M": 64}))
    assert [found for _, found in ranked] == [current, stale]
