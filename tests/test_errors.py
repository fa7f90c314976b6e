"""The error tree: attributes, pickling, messages, and warnings given once."""

from __future__ import annotations

import copy
import pickle
import threading
import warnings

import pytest
from forked import Child

import shipconf
from shipconf.errors import (
    ConfigFileError,
    LockTimeout,
    OfflineError,
    ShipconfError,
    ShipconfWarning,
    TuningError,
    forget_warnings,
    warn_once,
)
from shipconf.records import NewerSchema

EXAMPLES = [
    ShipconfError("plain", subject=1),
    OfflineError(
        "no config\nlooked in:", kernel="gemm", device="NVIDIA L4", key="N=1", looked=["user: /x"],
        command="shipconf tune m:gemm",
    ),
    TuningError(
        "all failed", kernel="gemm", device="NVIDIA L4", key="N=1", reasons={"A=1": "oom"},
        fatal=True,
    ),
    ConfigFileError("/x.json", [("records[3].config.num_warps", "must be 4"), ("", "bad")]),
    NewerSchema("/x.json", [("schema", "2 is newer")]),
    LockTimeout("held", path="/x.lock", holder="pid 1 on host", timeout_s=1.5),
]  # fmt: skip


@pytest.mark.parametrize("error", EXAMPLES, ids=lambda error: type(error).__name__)
@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_errors_pickle_with_their_subjects(error, protocol):
    """Through every protocol, and with notes: type, message and attributes are the same."""
    back = pickle.loads(pickle.dumps(error, protocol))
    assert type(back) is type(error)
    assert str(back) == str(error) != ""
    assert vars(back) == vars(error)
    assert back.args == error.args


@pytest.mark.parametrize("error", EXAMPLES, ids=lambda error: type(error).__name__)
def test_errors_copy_and_come_back_from_other_processes(error):
    assert vars(copy.copy(error)) == vars(error)
    back = Child(lambda: error).result()
    assert type(back) is type(error) and vars(back) == vars(error)


def test_a_files_error_says_where():
    """`where` and `what` are of the first fault; the message has all of them, with the path."""
    error = EXAMPLES[3]
    assert (error.path, error.where, error.what) == (
        "/x.json", "records[3].config.num_warps", "must be 4",
    )  # fmt: skip
    assert str(error) == "/x.json: records[3].config.num_warps: must be 4\n/x.json: bad"
    back = pickle.loads(pickle.dumps(error))
    assert (back.where, back.faults) == (error.where, error.faults)


def test_the_tree_of_the_design():
    """Each is also the standard error that a caller without shipconf would catch."""
    for kind, standard in (
        (OfflineError, LookupError), (TuningError, RuntimeError), (ConfigFileError, ValueError),
        (LockTimeout, TimeoutError),
    ):  # fmt: skip
        assert issubclass(kind, ShipconfError) and issubclass(kind, standard)
    assert issubclass(ShipconfWarning, UserWarning)
    assert shipconf.OfflineError is OfflineError and shipconf.ShipconfWarning is ShipconfWarning


def test_a_lookup_errors_message_is_not_quoted():
    """`str(KeyError("a"))` is `'a'` with its line breaks escaped; an OfflineError's is not."""
    assert str(EXAMPLES[1]).splitlines() == ["no config", "looked in:"]


def test_warnings_are_given_once_for_each_subject_and_cause():
    with pytest.warns(ShipconfWarning) as caught:
        for _ in range(3):
            warn_once("gemm", "miss", "first")
            warn_once("gemm", "stale", "second")
            warn_once("gemv", "miss", "third")
    assert [str(w.message) for w in caught] == ["first", "second", "third"]
    forget_warnings()
    with pytest.warns(ShipconfWarning, match="first"):
        warn_once("gemm", "miss", "first")


def test_threads_give_a_warning_once():
    start = threading.Barrier(8)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")

        def warn() -> None:
            start.wait()
            warn_once("gemm", "miss", "once")

        threads = [threading.Thread(target=warn) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert [str(w.message) for w in caught] == ["once"]


def test_a_warning_points_at_the_users_line():
    """Not at shipconf's own frames, nor at Triton's, however many lie between."""
    ours = {"__name__": "shipconf.example", "warn_once": warn_once}
    exec("def inner(): warn_once('gemm', 'miss', 'here')\ndef outer(): inner()", ours)
    tritons = {"__name__": "triton.runtime.example", "outer": ours["outer"]}
    exec("def launch(): outer()", tritons)
    with pytest.warns(ShipconfWarning) as caught:
        tritons["launch"]()
    assert caught[0].filename == __file__
