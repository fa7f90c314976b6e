"""Keys: binding, typed values, their text, and distance."""

from __future__ import annotations

import enum
import inspect
import json
import math
from typing import Any
from urllib.parse import unquote

import numpy as np
import pytest
import torch
import triton
import triton.language as tl
from hypothesis import example, given
from hypothesis import strategies as st
from triton.tools.tensor_descriptor import TensorDescriptor

from shipconf.keys import (
    RESERVED,
    Binder,
    Dtype,
    Key,
    Opaque,
    asked_dtypes,
    canonical,
    cut,
    distance,
    dtype_name,
    dtypes_serve,
    dtypes_text,
    escape,
    folder_name,
    from_json,
    key_text,
    one_or_each,
    storable,
    to_json,
    typed,
)
from shipconf.memory import Memory


@triton.jit
def helper(x):
    return x


def gemm(a_ptr, b_ptr, bias_ptr, M, N, K=64, *, BLOCK: tl.constexpr = 16):
    """The signature that these tests bind."""


def binder(key: Any = ("N", "K"), nearest: Any = ("M",), function: Any = gemm) -> Binder:
    return Binder(inspect.signature(function), key, nearest)


def tensor(dtype: torch.dtype = torch.float16) -> torch.Tensor:
    return torch.empty(4, dtype=dtype)


A, B = tensor(), tensor()

# The six values of the design that Python's `==` or JSON's types could mix up.
SIX = [1, True, 1.0, "1", None, torch.float16]

names = st.text("abNK_019", min_size=1).map(lambda text: f"k{text}")
integers = st.integers(-(2**70), 2**70)
floats = st.floats(allow_nan=False, allow_infinity=False)
texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
dtypes = st.sampled_from(["float16", "bfloat16", "float8_e4m3fn", "int32"]).map(Dtype)
values = st.recursive(
    st.none() | st.booleans() | integers | floats | texts | dtypes,
    lambda inner: st.lists(inner, max_size=3).map(tuple),
    max_leaves=6,
)


# --- binding ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("args", "kwargs"),
    [
        ((A, B, None, 3, 5), {}),
        ((A, B, None, 3, 5, 64), {}),
        ((A, B, None), {"M": 3, "N": 5, "K": 64}),
        ((), {"K": 64, "N": 5, "M": 3, "bias_ptr": None, "b_ptr": B, "a_ptr": A}),
        ((A, B, None, 3, 5), {"BLOCK": 16, "num_warps": 8}),
    ],
)
def test_positional_keyword_and_default_spellings_give_one_key(args, kwargs):
    """How an argument is spelt never shows in the key, nor in the process's memory."""
    binds = binder(("N", "K", "BLOCK"))
    key = binds.key(binds.bind(args, kwargs).named)
    assert key.values == {"N": 5, "K": 64, "BLOCK": 16}
    assert key.nearest == {"M": 3}
    assert key.dtypes == {"a_ptr": "float16", "b_ptr": "float16", "bias_ptr": "none"}
    memory = Memory(binds, None)
    assert memory.key(*args, **kwargs) == memory.key(A, B, None, 3, 5)


def test_bind_tells_what_the_launch_passed_from_defaults_and_options():
    bound = binder().bind((A, B, None, 3), {"N": 5, "num_warps": 8})
    assert bound.passed == {"a_ptr", "b_ptr", "bias_ptr", "M", "N", "num_warps"}
    assert bound.options == {"num_warps": 8}
    assert bound.named["K"] == 64 and "num_warps" not in bound.named


def test_too_many_arguments_raise_as_a_call_would():
    with pytest.raises(TypeError, match="too many positional"):
        binder().bind((A, B, None, 3, 5, 64, 99), {})
    with pytest.raises(TypeError, match="multiple values"):
        binder().bind((A,), {"a_ptr": A})


def test_a_pair_computes_its_entry_from_the_named_arguments():
    """`("E", lambda a: …)`: named arguments come however they were spelt, defaults included."""
    binds = binder([("E", lambda a: a["b_ptr"].shape[0]), ("twice", lambda a: 2 * a["K"])],
                   [("tokens", lambda a: a["M"] * a["N"])])  # fmt: skip
    key = binds.key(binds.bind((A,), {"b_ptr": torch.empty(7, 2), "M": 3, "N": 5}).named)
    assert key.values == {"E": 7, "twice": 128}
    assert key.nearest == {"tokens": 15}


def test_a_launch_without_a_key_argument_names_it():
    binds = binder()
    with pytest.raises(TypeError, match="'N'"):
        binds.key(binds.bind((A, B, None, 3), {}).named)


@pytest.mark.parametrize("value", [1.0, True, "1", None, (1,), torch.float16])
def test_a_nearest_value_must_be_an_integer(value):
    binds = binder()
    with pytest.raises(TypeError, match="M must be an integer"):
        binds.key(binds.bind((A, B, None, value, 5), {}).named)


def test_nearest_takes_integers_of_numpy():
    binds = binder()
    key = binds.key(binds.bind((A, B, None, np.int64(3), 5), {}).named)
    assert key.nearest == {"M": 3} and type(key.nearest["M"]) is int


@pytest.mark.parametrize("what", ["key", "nearest"])
def test_a_misspelt_name_raises_and_names_the_valid_ones(what):
    with pytest.raises(ValueError, match=rf"{what} names 'n'.*a_ptr, b_ptr, bias_ptr, M, N, K"):
        binder(**{"key": (), "nearest": (), what: ["n"]})


@pytest.mark.parametrize("name", [*RESERVED, "two words", "a=b", "..", "", "é", "1st"])
def test_a_pair_cannot_take_a_name_that_files_reserve_or_cannot_hold(name):
    with pytest.raises(ValueError, match="cannot hold the name"):
        binder([(name, len)])


def test_an_argument_with_a_reserved_name_must_be_renamed():
    def kernel(x_ptr, arch):
        pass

    with pytest.raises(ValueError, match="'arch'"):
        binder(["arch"], [], kernel)


def test_a_repeated_name_counts_once_and_two_uses_of_one_raise():
    """Triton's decorator takes a repeat; one name in both lists says two things."""
    assert list(binder(["N", "N"]).key_entries) == ["N"]
    with pytest.raises(ValueError, match="both in key and in nearest: M"):
        binder(["M"], ["M"])


def test_a_string_is_no_list_of_names():
    with pytest.raises(ValueError, match="not the string 'NK'"):
        binder("NK")


def kind_name(value: Any) -> str:
    """For test ids: a repr may hold an address, which differs between xdist's workers."""
    return type(value).__name__


# --- typed values -----------------------------------------------------------------------------


def wrappings(value: Any) -> list[Any]:
    return [value, (value,), (0, (value, "x"))]


@pytest.mark.parametrize("level", range(3))
def test_six_values_are_six_keys_in_tuples_too(level):
    """`1`, `True`, `1.0`, `"1"`, `None` and `torch.float16`: in keys, file names and memory."""
    wrapped = [wrappings(value)[level] for value in SIX]
    binds = binder(["N"], [])
    keys = [binds.key_of_values({"N": value}, {}) for value in wrapped]
    assert len({key.exact for key in keys}) == 6
    assert len({key_text(key.values.items()) for key in keys}) == 6
    memory = Memory(binds, None)
    for value in wrapped:
        memory = memory.learn({"N": value})
    assert len({memory.key(A, B, None, 3, value) for value in wrapped}) == 6


@pytest.mark.parametrize(
    "value",
    [np.int8(5), np.int64(5), np.uint64(5), torch.tensor(5), tl.constexpr(5), np.array(5),
     enum.IntEnum("Five", {"five": 5}).five],
    ids=kind_name,
)  # fmt: skip
def test_integers_of_numpy_and_torch_are_integers(value):
    assert typed(canonical(value)) == typed(5)
    assert typed(canonical((value, 1))) == typed((5, 1))


@pytest.mark.parametrize(
    ("value", "plain"),
    [(np.bool_(True), True), (np.float32(0.5), 0.5), (np.float64(0.5), 0.5), (np.str_("a"), "a"),
     (tl.constexpr("a"), "a"), (tl.constexpr((1, True)), (1, True)),
     (enum.Enum("Kind", {"a": "relu"}, type=str).a, "relu")],
    ids=kind_name,
)  # fmt: skip
def test_other_scalars_keep_their_kind(value, plain):
    assert typed(canonical(value)) == typed(plain)


def test_torch_and_triton_name_one_dtype_alike():
    """Every dtype of Triton that torch has too, so that a file serves both spellings."""
    pairs = [
        (tl.float16, torch.float16), (tl.bfloat16, torch.bfloat16), (tl.float32, torch.float32),
        (tl.float64, torch.float64), (tl.int1, torch.bool), (tl.int8, torch.int8),
        (tl.int16, torch.int16), (tl.int32, torch.int32), (tl.int64, torch.int64),
        (tl.uint8, torch.uint8), (tl.uint16, torch.uint16), (tl.uint32, torch.uint32),
        (tl.uint64, torch.uint64), (tl.float8e4nv, torch.float8_e4m3fn),
        (tl.float8e4b8, torch.float8_e4m3fnuz), (tl.float8e5, torch.float8_e5m2),
        (tl.float8e5b16, torch.float8_e5m2fnuz),
    ]  # fmt: skip
    for of_triton, of_torch in pairs:
        assert canonical(of_triton) == canonical(of_torch) == Dtype(str(of_torch)[6:])
        assert dtype_name(str(of_torch)) == dtype_name(of_triton)


@pytest.mark.parametrize(
    "value",
    [float("nan"), float("inf"), -math.inf, np.float32("nan"), helper, object(), b"1", 1j, [1],
     {"a": 1}, np.array([1, 2]), np.longdouble(0.5), np.datetime64("2020"), "\ud800",
     np.dtype("float16")],
    ids=kind_name,
)  # fmt: skip
def test_what_json_cannot_say_is_not_storable(value):
    """Neither alone nor inside a tuple; canonical never raises for it."""
    assert isinstance(canonical(value), Opaque)
    assert not storable(canonical(value))
    assert not storable(canonical((1, (value,))))
    assert not Key({"N": canonical(value)}, {}, {}).storable
    assert "opaque" in str(Key({"N": canonical(value)}, {}, {}))


def test_nan_is_one_key_and_a_jit_function_is_itself():
    """In memory, NaN is equal to NaN; two functions are two keys."""
    nans = [canonical(float("nan")), canonical(np.float64("nan"))]
    assert typed(nans[0]) == typed(nans[1])
    assert typed(canonical(helper)) == typed(canonical(helper)) != typed(canonical(gemm))


def test_a_jit_function_in_the_key_works_in_memory():
    memory = Memory(binder(["N"], []), None)
    assert memory.key(A, B, None, 3, helper) == memory.key(A, B, None, 3, helper)
    assert memory.key(A, B, None, 3, helper) != memory.key(A, B, None, 3, gemm)


@given(values)
@example(True)
@example((1, 1.0, True, "1", None, Dtype("float16"), ()))
def test_json_keeps_value_and_type(value):
    """from_json ∘ to_json = identity."""
    assert typed(from_json(to_json(value))) == typed(value)


@given(values)
def test_canonical_values_are_canonical(value):
    assert typed(canonical(canonical(value))) == typed(canonical(value))


@pytest.mark.parametrize(
    "document",
    [[1], {}, {"tuple": 1}, {"dtype": 1}, {"dtype": "a", "tuple": []}, {"opaque": "x"},
     {"tuple": [[1]]}],
)  # fmt: skip
def test_a_form_that_no_key_value_has_is_refused(document):
    with pytest.raises(ValueError, match="a key value cannot be"):
        from_json(document)


# --- text -------------------------------------------------------------------------------------


def test_the_names_of_the_design():
    assert key_text([("N", 4096), ("K", 4096)]) == "N=4096,K=4096"
    texts = [key_text([("N", canonical(value))]) for value in SIX]
    assert texts == [
        "N=1", "N=true", "N=1.0", "N=%221%22", "N=null",
        "N=%7B%22dtype%22%3A_%22float16%22%7D",
    ]  # fmt: skip
    assert key_text([("N", (1, "é"))]) == "N=%7B%22tuple%22%3A_%5B1%2C_%22%C3%A9%22%5D%7D"
    assert key_text([]) == ""


def test_dtypes_are_one_name_where_all_are_present_and_agree():
    assert dtypes_text({"a": "float16", "b": "float16"}) == "float16"
    assert dtypes_text({"a": "float16", "b": "float8_e4m3fn"}) == "float16-float8_e4m3fn"
    assert dtypes_text({"a": "float16", "b": "none"}) == "float16-none"
    assert dtypes_text({"a": "none", "b": "none"}) == "none-none"
    assert dtypes_text({"a": ["float16", "int32"], "b": "float16"}) == "float16-int32-float16"


@given(st.dictionaries(names, values, max_size=4))
@example({"k": (1, True, 1.0, "1", None, Dtype("float16"), "1,k=2", ())})
def test_two_keys_never_share_a_text(key):
    """One-to-one: the text alone gives back every name, value and type."""
    text = key_text(key.items())
    back = {}
    for part in filter(None, text.split(",")):
        name, _, escaped = part.partition("=")
        back[name] = from_json(json.loads(unquote(escaped.replace("_", " "), errors="strict")))
    assert [(n, typed(v)) for n, v in back.items()] == [(n, typed(v)) for n, v in key.items()]


@given(values)
@example("../../etc/passwd")
@example("..")
@example("a\0b/c\\d,e=f~2")
def test_no_value_escapes_its_folder(value):
    text = key_text([("N", value)])
    assert text.isascii() and not set(text) & set("/\\~,:\0 ")
    assert text.startswith("N=") and text.count("=") == 1
    assert text not in ("", ".", "..")


@given(texts)
def test_escape_is_undone_by_unquoting(text):
    assert unquote(escape(text).replace("_", " "), errors="strict") == text
    assert unquote(escape(text, keep="_"), errors="strict") == text


@given(st.text(st.characters(exclude_categories=["Cs"]), max_size=400))
@example("..")
@example(".")
@example("é" * 200)
def test_a_kernels_name_is_one_folder_that_stays_where_it_is(text):
    """Case 11, and `name=".."`: one path component that every file system takes."""
    folder = folder_name(text)
    assert folder not in (".", "..") and not set(folder) & set("/\\~\0")
    assert folder.isascii() and len(folder) <= 200


def test_folder_names_are_what_they_say_for_plain_names():
    assert folder_name("gemm_kernel") == "gemm_kernel"
    assert folder_name("Outer.<locals>.kernel") == "Outer.%3Clocals%3E.kernel"
    assert folder_name("a b") != folder_name("a_b")
    assert folder_name("..") != folder_name("...")


def test_a_long_text_is_cut_to_a_name_and_a_hash():
    """At most 200 bytes, equal for equal texts and different for different ones."""
    stem = "N=" + "9" * 300
    texts = [stem + str(i) for i in range(100)] + ["N=" + "9" * 199]
    cuts = {cut(text) for text in texts}
    assert len(cuts) == len(texts)
    assert all(len(text) <= 200 for text in cuts)
    assert cut(stem) == cut(stem) and cut(stem).startswith("N=999")
    assert cut("x" * 200) == "x" * 200


# --- distance ---------------------------------------------------------------------------------


def test_distance_is_the_sum_of_octaves():
    assert distance({"M": 36}, {"M": 64}) == pytest.approx(math.log2(64 / 36))
    assert distance({"M": 1, "L": 8}, {"M": 4, "L": 2}) == pytest.approx(4.0)
    assert distance({}, {}) == 0


sizes = st.integers(1, 2**40)


@given(sizes, sizes, sizes)
def test_distance_is_a_metric(a, b, c):
    def d(x, y):
        return distance({"M": x}, {"M": y})

    assert d(a, a) == 0
    assert d(a, b) == pytest.approx(d(b, a))
    assert d(a, c) <= d(a, b) + d(b, c) + 1e-9


@pytest.mark.parametrize("below", [0, -1, -4096])
def test_values_below_one_count_as_one(below):
    assert distance({"M": below}, {"M": 8}) == distance({"M": 1}, {"M": 8}) == 3
    assert distance({"M": 8}, {"M": below}) == 3


def test_a_zero_in_nearest_makes_a_key_zero_sized():
    assert Key({}, {}, {"M": 0}).zero_sized and not Key({}, {}, {"M": 1}).zero_sized
    assert not Key({"N": 0}, {}, {"M": 1}).zero_sized


# --- dtypes -----------------------------------------------------------------------------------


def found_dtypes(function: Any, *args: Any, **kwargs: Any) -> Any:
    binds = binder([], [], function)
    return binds.key(binds.bind(args, kwargs).named).dtypes


def test_dtypes_are_those_of_tensors_in_order():
    """Scalars and constexprs have none; an optional tensor that is None says so."""

    def kernel(a_ptr, n, bias_ptr=None, scale=1.0, BLOCK: tl.constexpr = None):
        pass

    assert found_dtypes(kernel, tensor(torch.bfloat16), 8) == {
        "a_ptr": "bfloat16", "bias_ptr": "none",
    }  # fmt: skip
    assert list(found_dtypes(kernel, A, 8, tensor(torch.float8_e5m2)).items()) == [
        ("a_ptr", "float16"), ("bias_ptr", "float8_e5m2"),
    ]  # fmt: skip


def test_a_tensor_descriptor_counts_with_its_bases_dtype():
    descriptor = TensorDescriptor.from_tensor(torch.empty(16, 16, dtype=torch.bfloat16), [8, 8])
    assert found_dtypes(gemm, descriptor, B, None, 1, 1) == {
        "a_ptr": "bfloat16", "b_ptr": "float16", "bias_ptr": "none",
    }  # fmt: skip


def test_a_tuple_counts_with_its_members_dtypes():
    """Nested ones too; a tuple without a tensor is no tensor argument."""
    pair = (tensor(torch.int32), None, 7, (tensor(torch.int8),))
    assert found_dtypes(gemm, pair, (1, 2), (None,), 1, 1) == {"a_ptr": ["int32", "none", "int8"]}


def test_stored_dtypes_serve_equal_ones_only():
    """Case 5: tuned in float16, launched in float32, is a miss."""
    stored = {"a": "float16", "b": "float16"}
    assert dtypes_serve(stored, {"b": "float16", "a": "float16"})
    assert not dtypes_serve(stored, {"a": "float16", "b": "float32"})
    assert not dtypes_serve(stored, {"a": "float16"})
    assert not dtypes_serve(stored, {"a": "float16", "b": "none"})
    assert dtypes_serve(stored, "float16") and not dtypes_serve(stored, "float32")
    assert dtypes_serve(stored, ("float16", "float16")) and not dtypes_serve(stored, ("float16",))
    assert dtypes_serve({}, None) and not dtypes_serve(stored, None)
    for asked in ({"a": "int8"}, "int8", ("int8",), None):
        assert dtypes_serve(None, asked)


def test_a_key_reads_as_words():
    key = Key({"N": 1, "act": "relu"}, {"a": "float16", "b": "float16"}, {"M": 3})
    assert str(key) == 'N=1, act="relu", dtypes=float16, M=3'
    assert str(Key({}, {}, {})) == "(no key)"


dtype_names = st.sampled_from(["float16", "int8", "none"])


@given(st.dictionaries(st.text(), dtype_names | st.lists(dtype_names, min_size=1), max_size=3))
def test_one_or_each_asks_for_the_very_dtypes(dtypes):
    """The shortest spelling that finds a file of these."""
    asked = asked_dtypes(one_or_each(dtypes))
    assert dtypes_text(asked) == dtypes_text(dtypes)
    if not any(isinstance(entry, list) for entry in dtypes.values()):
        assert dtypes_serve(dtypes, asked)
