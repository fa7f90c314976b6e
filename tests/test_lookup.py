"""What a lookup finds: the nearest record, `resolve`, and `resolve_for`."""

from __future__ import annotations

import itertools
import json
import shutil
import warnings
from pathlib import Path
from typing import Any

import kernels
import pytest
import torch
import triton
import triton.language as tl
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from kernels import BLOCKS, Trial, configs
from packages import (
    INTERPRETER,
    document,
    files_in,
    package,
    record,
    records_in,
    shelf,
    user_folder,
    write,
)

import shipconf
from shipconf import Device, OfflineError, ShipconfWarning

# --- nearest ----------------------------------------------------------------------------------


def test_the_nearest_record_is_that_of_the_least_distance_in_octaves(tmp_path):
    """Case 14: of {1, 16, 64}, 36 is nearest to 64, whatever the order in the file."""
    module = package(tmp_path)
    records = [record(16, M=1), record(32, M=16), record(64, M=64)]
    for ordered in itertools.permutations(records):
        write(shelf(module), *ordered)
        trial = Trial(module.told)
        assert trial.launch(8, 36) == 64
        assert trial.resolve(8, 36).distance == pytest.approx(0.830, abs=1e-3)
        assert trial.launch(8, 31) == 32
        assert trial.launch(8, 32) == 64  # as far from 16 as from 64: the larger
        assert trial.measured == []


def test_distances_of_several_nearest_values_add_up(tmp_path):
    module = package(tmp_path)
    records = [
        {"at": {"N": 8, "M": 8}, "config": {"BLOCK": 16}},
        {"at": {"N": 16, "M": 32}, "config": {"BLOCK": 32}},
    ]
    name = "dtypes=int32,device_name=interpreter,arch=interpreter,mp=0.json"
    write(shelf(module), *records, name=name, key={}, nearest=["N", "M"])
    trial = Trial(module.told, key=[], nearest=["N", "M"], max_distance=3)
    assert trial.launch(8, 16) == 16
    assert trial.launch(16, 16) == 32
    assert trial.resolve(16, 8).distance == 1.0
    # 1.5 octaves from both: the one with the larger value of the first declared entry
    assert trial.resolve(11, 16).record.at == {"N": 8, "M": 8}


def test_within_the_limit_is_served_and_beyond_it_is_tuned(tmp_path):
    """Case 13: only {1, 2, 4, 8} tuned. 32 is two octaves away, 33 is more."""
    module = package(tmp_path)
    write(shelf(module), *(record(16, M=m) for m in (1, 2, 4, 8)))
    trial = Trial(module.told)
    assert trial.launch(8, 32) == 16 and trial.measured == []
    assert trial.resolve(8, 33) is None
    with pytest.warns(ShipconfWarning, match="no shipped record of told fits"):
        assert trial.launch(8, 4096) == 64
    assert trial.measured == list(BLOCKS)
    assert trial.launch(8, 4095) == 64  # near to what was just tuned
    assert trial.measured == list(BLOCKS)


def test_max_distance_is_the_author_s(tmp_path):
    module = package(tmp_path)
    write(shelf(module), record(16, M=8))
    assert Trial(module.told, max_distance=9).launch(8, 4096) == 16
    assert Trial(module.told, max_distance=0).resolve(8, 9) is None
    assert Trial(module.told, max_distance=0).launch(8, 8) == 16


def test_beyond_the_limit_offline_the_record_is_used_with_a_warning_that_names_the_distance(
    tmp_path,
):
    """Case 13: one warning for the key, not one for each launch or shape."""
    module = package(tmp_path)
    write(shelf(module), *(record(16, M=m) for m in (1, 2, 4, 8)))
    trial = Trial(module.told)
    with shipconf.offline(), pytest.warns(ShipconfWarning, match=r"9\.0 octaves away") as caught:
        assert [trial.launch(8, m) for m in (4096, 4096, 4095)] == [16, 16, 16]
    assert len(caught) == 1
    assert trial.measured == []


def test_a_tuning_that_fails_falls_back_on_a_record_beyond_the_limit(tmp_path):
    module = package(tmp_path)
    write(shelf(module), record(32, M=8))
    trial = Trial(module.told, times={block: OSError("no clock") for block in BLOCKS})
    with pytest.warns(ShipconfWarning) as caught:
        assert trial.launch(8, 4096) == 32
    text = "\n".join(str(warning.message) for warning in caught)
    assert "9.0 octaves away" in text and "no candidate works" in text


def test_a_stored_nearest_value_below_one_counts_as_one(tmp_path):
    module = package(tmp_path)
    write(shelf(module), record(16, M=-4))
    assert Trial(module.told).resolve(8, 2).distance == 1.0


def test_a_nearest_value_that_is_no_integer_raises_and_names_it():
    for value in (8.0, True, None, "8"):
        with pytest.raises(TypeError, match="nearest value M must be an integer"):
            Trial().kernel.resolve_for(dtypes="int32", N=8, M=value)
    with pytest.raises(TypeError, match="nearest value M must be an integer"):
        Trial().launch(8, 8.5)


def test_ties_go_to_the_larger_point_then_to_store_order(tmp_path):
    """8 is an octave from 4 and from 16; both stores have 16."""
    module = package(tmp_path)
    write(shelf(module), record(16, M=4), record(32, M=16))
    write(user_folder(Trial(module.told).kernel), record(64, M=16))
    trial = Trial(module.told)
    assert trial.launch(8, 8) == 32
    assert trial.resolve(8, 8).source == "package"


# --- resolve ----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def module(tmp_path_factory):
    """One package whose shelf the examples below fill anew."""
    return package(tmp_path_factory.mktemp("package"))


blocks_at = st.dictionaries(
    st.sampled_from([1, 8, 64, 1024]), st.sampled_from([16, 32, 64, 128, 8]), max_size=2
)


@settings(
    max_examples=120, deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)  # fmt: skip
@example(shipped={1: 8}, kept={}, default=None, one=True, policy=1, m=1024, bad=False)
@example(shipped={}, kept={}, default=32, one=False, policy=2, m=0, bad=False)
@given(
    shipped=blocks_at, kept=blocks_at, default=st.sampled_from([None, 32, 128]),
    one=st.booleans(), policy=st.sampled_from([0, 1, 2]),
    m=st.sampled_from([0, 1, 5, 8, 33, 64, 4096]), bad=st.booleans(),
)  # fmt: skip
def test_resolve_is_what_the_launch_then_uses(
    module, tmp_path, shipped, kept, default, one, policy, m, bad
):
    """In every situation: stores, default, policy, size, one candidate or several, bad files.
    And it never writes, tunes or launches; `resolve_for` says the same without tensors."""

    def trial() -> Trial:
        return Trial(
            module.told, blocks=BLOCKS[:1] if one else BLOCKS,
            default=None if default is None else configs([default])[0],
        )  # fmt: skip

    shutil.rmtree(shelf(module), ignore_errors=True)
    shutil.rmtree(tmp_path / "user", ignore_errors=True)
    with pytest.MonkeyPatch.context() as patch, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        patch.setenv("SHIPCONF_CACHE_DIR", str(tmp_path / "user"))
        patch.setenv("SHIPCONF_OFFLINE", ("0", "1", "strict")[policy])
        if shipped:
            write(shelf(module), *(record(b, M=at) for at, b in shipped.items()))
        if kept:
            write(user_folder(trial().kernel), *(record(b, M=at) for at, b in kept.items()))
        if bad:
            write(shelf(module), name="N=8,dtypes=int32,device_name=interpreter~2.json", schema=9)
        before = files_in(tmp_path)
        one_trial = trial()
        match = one_trial.resolve(8, m)
        assert one_trial.kernel.resolve_for(dtypes=torch.int32, N=8, M=m) == match
        assert "uses: " in one_trial.kernel.explain(one_trial.out, 8, m)
        assert int(one_trial.out[0]) == 0 and one_trial.measured == []
        assert files_in(tmp_path) == before
        if match is None and policy > 0:
            with pytest.raises(OfflineError):
                one_trial.launch(8, m)
        elif match is None:
            assert one_trial.launch(8, m) == max(one_trial.measured)
            assert len(one_trial.measured) > 1
        else:
            assert one_trial.launch(8, m) == match.config["BLOCK"]
            assert one_trial.measured == []
            assert one_trial.resolve(8, m) == match
        if policy > 0 or match is not None:
            assert files_in(tmp_path) == before


def test_resolve_is_none_where_a_launch_would_tune_and_then_what_was_tuned():
    trial = Trial()
    assert trial.resolve(8, 8) is None
    trial.launch(8, 8)
    match = trial.resolve(8, 8)
    assert (match.source, match.rule, match.distance) == ("tuned", "exact", 0.0)
    assert match.record.at == {"M": 8} and match.path.name.startswith("N=8,")
    assert trial.resolve(8, 9).rule == "nearest"
    assert trial.resolve(9, 8) is None


def test_resolve_takes_a_grid_as_a_launch_does_and_ignores_it():
    trial = Trial()
    trial.launch(8, 8)
    assert trial.resolve(8, 8, grid=(1,)) == trial.resolve(8, 8)


def test_resolve_tells_the_default_where_that_would_serve():
    trial = Trial(default=configs([32], num_warps=8)[0])
    assert trial.resolve(8, 8) is None
    with shipconf.offline(), pytest.warns(ShipconfWarning):
        match = trial.resolve(8, 8)
    assert (match.source, match.rule) == ("default", "default")
    assert match.record is None and match.path is None
    assert match.config == {"BLOCK": 32, "num_warps": 8, "num_stages": 3, "num_ctas": 1}


def test_a_default_may_be_a_function_of_the_named_arguments():
    trial = Trial(default=lambda a: configs([32 if a["M"] > 100 else 16])[0])
    with shipconf.offline(), pytest.warns(ShipconfWarning, match="default config is used"):
        assert trial.launch(8, 8) == 16
        assert trial.launch(8, 101) == 32
        assert trial.resolve(8, 8).config["BLOCK"] == 16


def test_resolve_raises_what_binding_raises():
    with pytest.raises(TypeError):
        Trial().resolve(8, 8, nothing=1, N=8)
    with pytest.raises(ValueError, match=r"'BLOCK'"):
        Trial().resolve(8, 8, BLOCK=16)


def test_resolve_says_what_a_capture_would_use(monkeypatch):
    trial = Trial(default=configs([32])[0])
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    with pytest.warns(ShipconfWarning):
        assert trial.resolve(8, 8).config["BLOCK"] == trial.launch(8, 8) == 32


# --- resolve_for ------------------------------------------------------------------------------


def spelt(**options: Any) -> Trial:
    """A kernel with two tensor arguments, of which one is optional."""
    return Trial(kernels.told_spelt, key=["N"], nearest=[], **options)


def test_resolve_for_takes_one_dtype_for_all_tensors():
    """Of torch, of Triton, or by name."""
    trial = Trial()
    trial.launch(8, 8)
    for dtype in (torch.int32, tl.int32, "int32", "torch.int32", [torch.int32]):
        match = trial.kernel.resolve_for(dtypes=dtype, N=8, M=8)
        assert match is not None and match.rule == "exact", dtype
    for dtype in (torch.int64, "float16", [torch.int32, torch.int32], None):
        assert trial.kernel.resolve_for(dtypes=dtype, N=8, M=8) is None, dtype


def test_resolve_for_takes_one_dtype_for_each_tensor():
    trial = spelt()
    trial.launch(8, bias_ptr=torch.zeros(1, dtype=torch.float16))
    kernel = trial.kernel
    assert kernel.resolve_for(dtypes=(torch.int32, torch.float16), N=8) is not None
    assert kernel.resolve_for(dtypes=(torch.float16, torch.int32), N=8) is None
    assert kernel.resolve_for(dtypes=(torch.int32, None), N=8) is None
    assert kernel.resolve_for(dtypes=torch.int32, N=8) is None
    trial.launch(8)
    assert kernel.resolve_for(dtypes=(torch.int32, None), N=8) is not None


def test_resolve_for_another_device_needs_no_such_device(tmp_path):
    """A caller on a machine without the GPU asks what a launch there would use."""
    module = package(tmp_path)
    h200 = Device("cuda", "NVIDIA H200", "sm_90", 132, 232448)
    h20 = Device("cuda", "NVIDIA H20", "sm_90", 78, 232448)
    name = "N=8,dtypes=int32,device_name=NVIDIA_H200,arch=sm_90,mp=132.json"
    device = {"backend": "cuda", "name": "NVIDIA H200", "arch": "sm_90", "multiprocessors": 132}
    write(shelf(module), record(16), name=name, device=device)
    kernel = Trial(module.told).kernel
    match = kernel.resolve_for(dtypes=torch.int32, N=8, M=8, device=h200)
    assert match is not None and match.config["BLOCK"] == 16
    assert kernel.resolve_for(dtypes=torch.int32, N=8, M=8, device=h20) is None
    assert kernel.resolve_for(dtypes=torch.int32, N=8, M=8) is None
    mig = Device("cuda", "NVIDIA H200", "sm_90", 16, 232448)
    assert kernel.resolve_for(dtypes=torch.int32, N=8, M=8, device=mig) is None


def test_resolve_for_missing_or_unknown_values_says_what_it_needs():
    kernel = Trial().kernel
    for values in ({"N": 8}, {"N": 8, "M": 8, "K": 8}, {}):
        with pytest.raises(TypeError, match="told is looked up by N, M"):
            kernel.resolve_for(dtypes="int32", **values)


def test_resolve_for_a_kernel_with_one_config_is_that_config():
    trial = Trial(blocks=[16])
    match = trial.kernel.resolve_for(dtypes="int32", N=8, M=8)
    assert match is not None and match.config["BLOCK"] == trial.launch(8, 8) == 16
    assert match.source == "default"


def test_resolve_for_with_a_default_that_wants_more_than_the_key_is_none():
    """Its function cannot be asked without the arguments; the rest can."""
    trial = spelt(default=lambda a: configs([32 if a["bias_ptr"] is None else 16])[0])
    with shipconf.offline():
        assert trial.kernel.resolve_for(dtypes=("int32", None), N=8) is None
        with pytest.warns(ShipconfWarning):
            assert trial.launch(8) == 32


def test_the_device_name_can_be_replaced_under_the_interpreter(monkeypatch, tmp_path):
    """`SHIPCONF_DEVICE_NAME`: its records are then another device's."""
    module = package(tmp_path)
    named = {**INTERPRETER, "name": "Toaster"}
    write(
        shelf(module), record(16), device=named,
        name="N=8,dtypes=int32,device_name=Toaster,arch=interpreter,mp=0.json",
    )  # fmt: skip
    write(shelf(module), record(32))
    assert Trial(module.told).launch(8, 8) == 32
    monkeypatch.setenv("SHIPCONF_DEVICE_NAME", "Toaster")
    assert Trial(module.told).launch(8, 8) == 16
    monkeypatch.setenv("SHIPCONF_DEVICE_NAME", "Toast")
    assert Trial(module.told).resolve(8, 8) is None


def test_one_device_borrows_from_another_only_where_the_author_says_so(monkeypatch, tmp_path):
    module = package(tmp_path)
    write(shelf(module), record(16))
    monkeypatch.setenv("SHIPCONF_DEVICE_NAME", "interpreter NVL")
    assert Trial(module.told).resolve(8, 8) is None
    aliases = json.dumps({"interpreter NVL": "interpreter"})
    (shelf(module).parent.parent / "aliases.json").write_text(aliases)
    match = Trial(module.told).resolve(8, 8)
    assert (match.source, match.config["BLOCK"]) == ("package", 16)


# --- tune, through a workload -----------------------------------------------------------------


def with_workload(**options: Any) -> Trial:
    trial = Trial(**options)

    @trial.kernel.workload
    def build(N: int, M: int, dtypes: torch.dtype) -> shipconf.Launch:
        trial.out = torch.zeros(1, dtype=dtypes)
        return shipconf.Launch((1,), (trial.out, N), {"M": M})

    return trial


def test_tune_builds_a_launch_tunes_and_keeps_the_record(store):
    trial = with_workload()
    found = trial.kernel.tune(N=8, M=16, dtypes=torch.int32)
    assert found.config["BLOCK"] == 64 and found.at == {"M": 16}
    assert [kept["at"] for kept in records_in(store)] == [{"M": 16}]
    assert trial.launch(8, 16) == 64
    assert len(trial.measured) == 3


@pytest.mark.parametrize("dtypes", [torch.int32, tl.int32, "int32"])
def test_a_workload_is_given_torch_dtypes(dtypes):
    assert with_workload().kernel.tune(N=8, M=16, dtypes=dtypes).config["BLOCK"] == 64


def test_tune_returns_an_exact_record_as_it_is_and_tunes_beside_a_near_one(store):
    trial = with_workload()
    first = trial.kernel.tune(N=8, M=16, dtypes=torch.int32)
    assert trial.kernel.tune(N=8, M=16, dtypes=torch.int32) == first
    again = with_workload()
    assert again.kernel.tune(N=8, M=16, dtypes=torch.int32) == first
    assert again.measured == []
    again.kernel.tune(N=8, M=17, dtypes=torch.int32)
    assert again.measured == list(BLOCKS)
    assert [kept["at"] for kept in records_in(store)] == [{"M": 16}, {"M": 17}]


def test_a_forced_tuning_supersedes_what_the_package_ships(tmp_path):
    """And the launch of this process uses it from now on."""
    module = package(tmp_path)
    write(shelf(module), record(16))
    trial = Trial(module.told)

    @trial.kernel.workload
    def build(N: int, M: int, dtypes: torch.dtype) -> shipconf.Launch:
        return shipconf.Launch((1,), (trial.out, N, M))

    assert trial.launch(8, 8) == 16
    assert trial.kernel.tune(N=8, M=8, dtypes=torch.int32).config["BLOCK"] == 16
    assert trial.measured == []
    forced = trial.kernel.tune(N=8, M=8, dtypes=torch.int32, force=True)
    assert forced.config["BLOCK"] == 64 and forced.supersedes is True
    assert trial.launch(8, 8) == 64
    assert Trial(module.told).launch(8, 8) == 64


def test_a_forced_tuning_measures_the_incumbent_too(tmp_path):
    """A shipped config that is no candidate any more is replaced only by a faster one."""
    module = package(tmp_path)
    write(shelf(module), record(128))
    trial = Trial(module.told)
    trial.kernel.workload(lambda N, M, dtypes: shipconf.Launch((1,), (trial.out, N, M)))
    assert trial.kernel.tune(N=8, M=8, dtypes="int32", force=True).config["BLOCK"] == 128
    assert trial.measured == [128, *BLOCKS]


def test_what_serves_from_another_point_is_a_candidate_preferred_to_none(tmp_path):
    """So a new record is no worse than what launches took before."""
    module = package(tmp_path)
    write(shelf(module), record(128, M=8), record(32, M=64))
    times = {16: 1.0, 32: 4.0, 64: 1.0, 128: 1.0}
    trial = Trial(module.told, default=configs([16])[0], times=times)
    trial.kernel.workload(lambda N, M, dtypes: shipconf.Launch((1,), (trial.out, N, M)))
    assert trial.kernel.tune(N=8, M=16, dtypes="int32").config["BLOCK"] == 16
    assert trial.measured == [*BLOCKS, 128]


def test_tune_without_a_workload_says_how_to_register_one():
    with pytest.raises(ValueError, match=r"told has no workload.*@told\.workload"):
        Trial().kernel.tune(N=8, M=8, dtypes="int32")


@pytest.mark.parametrize("wrong", [(9, 8), (8, 9)])
def test_a_workload_that_builds_another_launch_is_refused(wrong, store):
    """Case 4: the writer and the reader build one key."""
    trial = Trial()
    trial.kernel.workload(lambda N, M, dtypes: shipconf.Launch((1,), (trial.out, *wrong)))
    with pytest.raises(ValueError, match=r"the workload of told built .* when asked for N=8"):
        trial.kernel.tune(N=8, M=8, dtypes="int32")
    assert trial.measured == [] and records_in(store) == []


def test_a_workload_that_builds_another_dtype_is_refused(store):
    trial = Trial()
    trial.kernel.workload(lambda N, M, dtypes: shipconf.Launch((1,), (trial.out, N, M)))
    with pytest.raises(ValueError, match="float16"):
        trial.kernel.tune(N=8, M=8, dtypes="float16")
    assert trial.measured == [] and records_in(store) == []


def test_tune_offline_is_refused():
    trial = with_workload()
    with shipconf.offline(), pytest.raises(OfflineError, match="forbidden"):
        trial.kernel.tune(N=8, M=8, dtypes="int32")
    assert trial.measured == []


def test_tune_takes_dtypes_as_key_values():
    """A dtype among the key's values reaches the workload as torch's."""
    trial = Trial(kernels.told_value, key=["V"], nearest=[])
    seen: list[Any] = []

    @trial.kernel.workload
    def build(V: Any, dtypes: Any) -> shipconf.Launch:
        seen.append((V, dtypes))
        return shipconf.Launch((1,), (trial.out, V))

    trial.kernel.tune(V=torch.float16, dtypes="int32")
    assert seen == [(torch.float16, torch.int32)]


def test_tune_of_a_kernel_with_one_config_measures_and_writes_nothing(store):
    trial = with_workload(blocks=[16])
    found = trial.kernel.tune(N=8, M=8, dtypes="int32")
    assert found.config == {"BLOCK": 16, "num_warps": 4, "num_stages": 3, "num_ctas": 1}
    assert trial.measured == [] and records_in(store) == []


def test_the_record_that_a_tuning_writes_is_what_the_format_says(store):
    trial = Trial(default=triton.Config({"BLOCK": 32}))
    trial.launch(8, 8)
    (path,) = Path(store).rglob("*.json")
    assert path.parent.name.startswith("told-") and path.parent.parent.name == "v1"
    written = json.loads(path.read_text())
    (kept,) = written.pop("records")
    assert written.pop("module") == "kernels"
    device = {**INTERPRETER, "shared_memory": 0}
    assert written == {k: v for k, v in document([], device=device).items() if k != "records"}
    assert kept["at"] == {"M": 8} and kept["config"] == record(64)["config"]
    assert kept["time_ms"] == {"median": 1.0, "p20": 1.0, "p80": 1.0}
    assert kept["default_ms"] == 2.0 and kept["candidates"] == 3
    assert kept["triton"] == triton.__version__ and kept["torch"] == torch.__version__
    assert kept["fingerprint"].startswith("1:") and kept["tuned_at"].endswith("Z")
    assert "supersedes" not in kept
