"""One suite for the library and for the module that `shipconf vendor` writes: the same lookups.

The library runs offline here; the vendored module always does.
"""

from __future__ import annotations

import json
import os
import pickle
import shutil
import sys
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import kernels
import pytest
import torch
import triton
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from packages import FILE, TOLD, document, files_in, package, record, shelf, user_folder, write
from test_validation import BROKEN, UNFIT

import shipconf
from shipconf import vendor

CODE = compile(vendor.source(), vendor.FILE, "exec")


def vendored() -> ModuleType:
    """The vendored module as a new process has it."""
    module = ModuleType("hub_kernel_shipconf")
    sys.modules[module.__name__] = module
    exec(CODE, module.__dict__)
    return module


@pytest.fixture(params=["library", "vendored"])
def library(request, monkeypatch) -> Iterator[Any]:
    """What offers `shipped_autotune`."""
    if request.param == "vendored":
        yield vendored()
        del sys.modules["hub_kernel_shipconf"]
    else:
        monkeypatch.setenv("SHIPCONF_OFFLINE", "1")
        yield shipconf


class Reader:
    """A kernel with no memory of others, of the library or of a vendored module."""

    def __init__(
        self, library: Any, fn: Any = kernels.told, *, key: Any = ("N",), nearest: Any = ("M",),
        **options: Any,
    ) -> None:  # fmt: skip
        options.setdefault("configs", kernels.configs())
        self.out = torch.zeros(1, dtype=torch.int32)
        self.kernel = library.shipped_autotune(key=key, nearest=nearest, **options)(fn)

    def launch(self, *args: Any, **kwargs: Any) -> int:
        self.out.zero_()
        self.kernel[(1,)](self.out, *args, **kwargs)
        return int(self.out[0])

    def resolve(self, *args: Any) -> Any:
        return self.kernel.resolve(self.out, *args)


# --- exact, nearest, default ------------------------------------------------------------------


def test_an_exact_record_serves(library, tmp_path):
    module = package(tmp_path)
    path = write(shelf(module), record(32))
    reader = Reader(library, module.told)
    assert [reader.launch(8, 8), reader.launch(N=8, M=8)] == [32, 32]
    match = reader.resolve(8, 8)
    assert (match.source, match.rule, match.path) == ("package", "exact", path)
    assert isinstance(match, library.Match) and isinstance(match.record, library.Record)
    assert reader.kernel.resolve_for(dtypes=torch.int32, N=8, M=8) == match


@pytest.mark.parametrize(
    ("m", "block"), [(36, 64), (31, 32), (32, 64), (1, 16), (0, 16), (256, 64)]
)
def test_the_nearest_record_serves_in_octaves(library, tmp_path, m, block):
    """Case 14: of {1, 16, 64}; 32 is as far from both, and goes to the larger."""
    module = package(tmp_path)
    write(shelf(module), record(64, M=64), record(16, M=1), record(32, M=16))
    assert Reader(library, module.told).launch(8, m) == block


def test_a_far_record_serves_with_a_warning_and_not_under_strict(library, tmp_path, monkeypatch):
    """Case 13."""
    module = package(tmp_path)
    write(shelf(module), record(32, M=8))
    reader = Reader(library, module.told)
    with pytest.warns(library.ShipconfWarning, match=r"9\.0 octaves away"):
        assert [reader.launch(8, 4096) for _ in range(2)] == [32, 32]
    assert Reader(library, module.told, max_distance=9).launch(8, 4096) == 32
    monkeypatch.setenv("SHIPCONF_OFFLINE", "strict")
    with pytest.raises(library.OfflineError, match="strict"):
        reader.launch(8, 4096)
    with library.offline(strict=True), pytest.raises(library.OfflineError):
        Reader(library, module.told).launch(8, 4096)


@pytest.mark.parametrize("strict", [False, True])
def test_the_default_serves_where_nothing_is_stored(library, strict):
    default = triton.Config({"BLOCK": 128}, num_warps=8)
    with library.offline(strict=strict):
        reader = Reader(library, default=default)
        with pytest.warns(library.ShipconfWarning, match="default config is used"):
            assert [reader.launch(8, 8), reader.launch(9, 8)] == [128, 128]
        assert reader.resolve(8, 8).source == "default"
        function = Reader(library, default=lambda a: triton.Config({"BLOCK": a["M"]}))
        assert function.launch(8, 16) == 16  # warned of above: once for a kernel and device


def test_where_nothing_serves_the_error_says_where_it_looked(library, tmp_path):
    """And it pickles: ranks send their errors home."""
    module = package(tmp_path)
    write(shelf(module), record(32))
    reader = Reader(library, module.told)
    with pytest.raises(library.OfflineError) as caught:
        reader.launch(9, 8)
    error = pickle.loads(pickle.dumps(caught.value))
    assert error.kernel == "told" and "N=9" in error.key and "shipconf tune" in error.command
    assert any(str(shelf(module)) in line for line in error.looked)
    assert "N is 8" in str(error) and "tuning is forbidden" in str(error)
    assert "N is 8" in reader.kernel.explain_for(dtypes="int32", N=9, M=8)


def test_a_kernel_pickles_by_its_import_path(library, tmp_path):
    module = package(tmp_path)
    kernel = module.told = Reader(library, module.told).kernel  # as a decorator leaves it
    assert pickle.loads(pickle.dumps(kernel)) is kernel


def test_one_config_needs_nothing_stored_and_a_size_of_zero_no_tuning(library):
    assert Reader(library, configs=kernels.configs([16])).launch(8, 8) == 16
    assert Reader(library).launch(8, 0) == 16


def test_only_the_right_dtype_key_and_type_serve(library, tmp_path):
    """Cases 5 and 8."""
    module = package(tmp_path)
    write(shelf(module), record(32))
    reader = Reader(library, module.told)
    ask = reader.kernel.resolve_for
    assert ask(dtypes="int32", N=8, M=8) is not None
    for values in ({"dtypes": "int64", "N": 8}, {"dtypes": "int32", "N": 8.0},
                   {"dtypes": "int32", "N": "8"}, {"dtypes": None, "N": 8}):  # fmt: skip
        assert ask(M=8, **values) is None
    with pytest.raises(TypeError, match="nearest value M"):
        ask(dtypes="int32", N=8, M=8.0)
    with pytest.raises(ValueError, match="X"):
        Reader(library, key=["X"])


@pytest.mark.parametrize("value", [None, True, 1, 1.5, "a b/c", torch.float16, (128, "x")])
def test_a_key_of_any_type_is_found_by_its_file(library, tmp_path, value):
    from shipconf import keys, stores

    key = keys.Key({"V": keys.canonical(value)}, {"out_ptr": "int32"}, {})
    name = stores.file_name(key, shipconf.Device("", "interpreter", "interpreter"))
    documents = {name: keys.to_json(v) for name, v in key.values.items()}
    module = package(tmp_path, kernels_source())
    write(shelf(module, "told_value"), record(32, M=None), name=f"{name}.json", key=documents,
          nearest=[], kernel="told_value")  # fmt: skip
    reader = Reader(library, module.told_value, key=["V"], nearest=[])
    assert reader.kernel.resolve_for(dtypes="int32", V=value).config["BLOCK"] == 32


def kernels_source() -> str:
    return TOLD + (
        "@triton.jit\ndef told_value(out_ptr, V: tl.constexpr, BLOCK: tl.constexpr):\n"
        "    tl.store(out_ptr, BLOCK)\n"
    )


# --- places -----------------------------------------------------------------------------------


def test_the_path_comes_before_the_package_and_that_before_the_user(library, tmp_path, monkeypatch):
    """And a user's forced record before the package's."""
    monkeypatch.setenv("SHIPCONF_CONFIG_PATH", str(tmp_path / "path"))
    module = package(tmp_path / "package")
    user = write(user_folder(Reader(shipconf, module.told).kernel), record(64))

    def found() -> Any:
        match = Reader(library, module.told).resolve(8, 8)
        return match.source, match.config["BLOCK"]

    assert found() == ("user", 64)
    write(shelf(module), record(32))
    assert found() == ("package", 32)
    user.write_text(json.dumps(document([record(64, supersedes=True)])))
    assert found() == ("user", 64)
    write(tmp_path / "path" / "told", record(16))
    assert found() == ("path", 16)


def test_a_device_is_matched_by_its_whole_name_or_by_an_alias(library, tmp_path):
    """Case 3."""
    module = package(tmp_path)
    write(shelf(module), record(32), device={"name": "NVIDIA H200", "arch": "sm_90"},
          name="N=8,dtypes=int32,device_name=NVIDIA_H200,arch=sm_90,mp=0.json")  # fmt: skip
    (tmp_path / "configs" / "aliases.json").write_text('{"NVIDIA H200 NVL": "NVIDIA H200"}')
    ask = Reader(library, module.told).kernel.resolve_for
    for name, arch, served in (
        ("NVIDIA H200", "sm_90", True), ("NVIDIA H20", "sm_90", False),
        ("NVIDIA H200 NVL", "sm_90", True), ("NVIDIA H200 NVL", "sm_100", False),
    ):  # fmt: skip
        device = library.Device("cuda", name, arch, 132)
        assert (ask(dtypes="int32", N=8, M=8, device=device) is not None) is served


def test_the_flat_form_is_read_where_the_author_named_the_folder(library, tmp_path):
    """Cases 16 and 17: with `triton_version`, and options of another backend."""
    module = package(tmp_path)
    folder = tmp_path / "flat"
    folder.mkdir()
    flat = {"triton_version": "3.5.0", "1": {"BLOCK": 16}, "64": {"BLOCK": 32, "kpack": 2}}
    (folder / "N=8,device_name=NVIDIA_L4.json").write_text(json.dumps(flat))
    (folder / "N=8,K=1,device_name=NVIDIA_L4.json").write_text(json.dumps({"64": {"BLOCK": 64}}))
    ask = Reader(library, module.told, configs_dir="flat").kernel.resolve_for
    device = library.Device("cuda", "NVIDIA L4", "sm_89", 58)
    with pytest.warns(library.ShipconfWarning, match="kpack"):
        match = ask(dtypes="float16", N=8, M=70, device=device)
    assert match.config == {"BLOCK": 32} and match.record.triton == "3.5.0"


# --- what must not serve ----------------------------------------------------------------------


@pytest.mark.parametrize("config", UNFIT.values(), ids=UNFIT)
def test_an_unfit_record_does_not_serve_and_is_warned_of_once(library, config, tmp_path):
    """Case 15."""
    module = package(tmp_path)
    write(shelf(module), {"at": {"M": 8}, "config": config}, record(32, M=16))
    reader = Reader(library, module.told)
    with pytest.warns(library.ShipconfWarning, match="is stale and does not serve") as caught:
        assert [reader.launch(8, m) for m in (8, 8, 7)] == [32, 32, 32]
    assert len(caught) == 1


@pytest.mark.parametrize("data", BROKEN.values(), ids=BROKEN)
def test_a_broken_file_is_a_miss_with_one_warning_and_stays(library, data, tmp_path):
    """Case 21."""
    module = package(tmp_path)
    path = write(shelf(module))
    path.write_bytes(data)
    write(shelf(module), record(32, M=16), name=FILE.replace(".json", "~2.json"))
    with pytest.warns(library.ShipconfWarning, match="bad file") as caught:
        assert [Reader(library, module.told).launch(8, 8) for _ in range(2)] == [32, 32]
    assert len(caught) == 1
    assert path.read_bytes() == data


@pytest.mark.parametrize("warps", ["4", 3, 64, 0, True, 4.0])
def test_a_bad_launch_option_makes_a_bad_file(library, warps, tmp_path):
    module = package(tmp_path)
    write(shelf(module), {"at": {"M": 8}, "config": {"BLOCK": 16, "num_warps": warps}})
    with pytest.warns(library.ShipconfWarning, match=r"records\[0\]\.config\.num_warps"):
        assert Reader(library, module.told).resolve(8, 8) is None


def test_a_newer_schema_and_unknown_fields(library, tmp_path):
    """Case 18: refused by name; ignored."""
    module = package(tmp_path)
    write(shelf(module), record(16), schema=99)
    write(shelf(module), record(32, mood="good"), name=FILE.replace(".json", "~2.json"), more=[1])
    with pytest.warns(library.ShipconfWarning, match="99 is newer than 1"):
        assert Reader(library, module.told).launch(8, 8) == 32


def test_a_stale_package_record_comes_after_the_users_and_is_warned_of(library, tmp_path):
    module = package(tmp_path)
    user = user_folder(Reader(shipconf, module.told).kernel)
    write(shelf(module), record(32, fingerprint="1:0123456789abcdef"))
    with pytest.warns(library.ShipconfWarning, match="the kernel has changed"):
        assert Reader(library, module.told).launch(8, 8) == 32
    write(user, record(64))
    assert Reader(library, module.told).launch(8, 8) == 64


def test_a_config_that_fails_at_launch_is_passed_over(library, tmp_path):
    module = package(tmp_path)
    write(shelf(module, "picky"), record(16), record(32, M=16), kernel="picky")
    reader = Reader(library, module.picky, default=triton.Config({"BLOCK": 64}))
    with pytest.warns(library.ShipconfWarning, match="is not used again") as caught:
        assert [reader.launch(8, 8, BAD=16) for _ in range(2)] == [32, 32]
    assert len(caught) == 1


def test_a_config_dropped_by_early_config_prune_does_not_serve_from_afar(library, tmp_path):
    module = package(tmp_path)
    write(shelf(module), record(16, M=8), record(32, M=32))

    def drop(configs: list[Any], named: Mapping[str, Any], **kwargs: Any) -> list[Any]:
        return [config for config in configs if config.kwargs["BLOCK"] != 16]

    reader = Reader(library, module.told, prune_configs_by={"early_config_prune": drop})
    assert reader.launch(8, 9) == 32
    assert reader.launch(8, 8) == 16  # tuned for this very point


def test_a_configs_own_hook_runs_with_its_record(library, tmp_path):
    """Case 35."""
    seen: list[int] = []
    module = package(tmp_path)
    write(shelf(module), record(32))
    configs = [triton.Config({"BLOCK": b}, num_stages=3, num_warps=4,
               pre_hook=lambda named, b=b: seen.append(b)) for b in (16, 32)]  # fmt: skip
    reader = Reader(library, module.told, configs=configs)
    assert [reader.launch(8, 8), reader.launch(8, 8)] == [32, 32]
    assert seen == [32, 32]


def test_an_override_beats_what_is_stored(library, tmp_path):
    module = package(tmp_path)
    write(shelf(module), record(32))
    reader = Reader(library, module.told)
    with library.override(reader.kernel, {"BLOCK": 128}):
        assert reader.launch(8, 8) == 128
    assert reader.launch(8, 8) == 32


# --- all of it at once ------------------------------------------------------------------------


blocks_at = st.dictionaries(
    st.sampled_from([1, 8, 64, 1024]), st.sampled_from([16, 32, 64, 8, 7.5]), max_size=2
)


@pytest.fixture(scope="module")
def shipped(tmp_path_factory):
    """One package whose shelf the examples below fill anew."""
    return package(tmp_path_factory.mktemp("shipped"))


@settings(
    max_examples=60, deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)  # fmt: skip
@given(
    path=blocks_at, ships=blocks_at, kept=blocks_at, default=st.sampled_from([None, 128]),
    stale=st.booleans(), strict=st.booleans(), m=st.sampled_from([0, 1, 5, 33, 64, 4096]),
)  # fmt: skip
def test_both_find_the_same_in_every_situation(
    shipped, tmp_path, path, ships, kept, default, stale, strict, m
):
    """Records in three places, some stale, some unfit: one match, or one error, and no file."""
    shutil.rmtree(shelf(shipped), ignore_errors=True)
    for folder in ("path", "user"):
        shutil.rmtree(tmp_path / folder, ignore_errors=True)
    with pytest.MonkeyPatch.context() as patch, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        patch.setenv("SHIPCONF_CACHE_DIR", str(tmp_path / "user"))
        patch.setenv("SHIPCONF_CONFIG_PATH", str(tmp_path / "path"))
        patch.setenv("SHIPCONF_OFFLINE", "strict" if strict else "1")
        mark = {"fingerprint": "1:0123456789abcdef"} if stale else {}
        options = {"default": default and triton.Config({"BLOCK": default})}
        user = user_folder(Reader(shipconf, shipped.told).kernel)
        for folder, blocks in ((tmp_path / "path" / "told", path), (shelf(shipped), ships),
                               (user, kept)):  # fmt: skip
            if blocks:
                fields = {} if folder == user else mark
                write(folder, *(record(b, M=at, **fields) for at, b in blocks.items()))
        before = files_in(tmp_path)
        seen = []
        for library in (shipconf, vendored()):
            reader = Reader(library, shipped.told, **options)
            match = reader.resolve(8, m)
            words = reader.kernel.explain(reader.out, 8, m)
            try:
                launched: Any = reader.launch(8, m)
            except (shipconf.OfflineError, library.OfflineError) as error:
                launched = str(error)
            told = match and (dict(match.config), match.source, match.rule, match.distance,
                              match.path, match.record and dict(vars(match.record)))  # fmt: skip
            seen.append((told, words, launched))
        assert seen[0] == seen[1]
        assert files_in(tmp_path) == before


# --- what the vendored module does not do -----------------------------------------------------


def test_the_vendored_module_tunes_nothing_and_writes_nothing(store, tmp_path, monkeypatch):
    """Whatever the environment asks for; not even a list of misses, a lock or a folder."""
    monkeypatch.setenv("SHIPCONF_OFFLINE", "0")
    monkeypatch.setenv("SHIPCONF_MISSES", str(tmp_path / "misses.jsonl"))
    library: Any = vendored()
    measured: list[Any] = []
    reader = Reader(library, do_bench=lambda fn, quantiles: measured.append(fn))
    reader.kernel.workload(lambda N, M, dtypes: library.Launch((1,), (reader.out, N, M)))
    for ask in (
        lambda: reader.launch(8, 8),
        lambda: reader.kernel.tune(N=8, M=8, dtypes="int32"),
        lambda: reader.kernel.prepare(reader.out, 8, 8, grid=(1,)),
    ):
        with pytest.raises(library.OfflineError):
            ask()
    assert measured == [] and os.listdir(store) == [] and os.listdir(tmp_path) == []


def test_the_vendored_module_finds_the_users_store_without_platformdirs(monkeypatch, tmp_path):
    monkeypatch.delenv("SHIPCONF_CACHE_DIR")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    write(user_folder(Reader(shipconf).kernel), record(64))
    monkeypatch.setitem(sys.modules, "platformdirs", None)
    assert Reader(vendored()).launch(8, 8) == 64


def test_a_warning_of_the_vendored_module_points_at_the_launch():
    """Not into the module itself."""
    reader = Reader(vendored(), default=kernels.configs([32])[0])
    with pytest.warns(UserWarning, match="default config is used") as caught:
        reader.launch(8, 8)
    assert Path(caught[0].filename) == Path(__file__)
