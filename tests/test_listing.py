"""`shipconf list` and `shipconf show`."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from faulty import fill
from packages import FILE, record, write
from projects import project

from shipconf.cli import main

ROOT = Path(__file__).parents[1]
MEASURED = {
    "time_ms": {"median": 0.5}, "default_ms": 1.0, "rigor": "full", "triton": "3.6.0",
    "torch": "2.11.0", "tuned_at": "2026-11-01T00:00:00Z", "fingerprint": "1:0123456789abcdef",
}  # fmt: skip


def test_list_has_a_line_for_each_file(tmp_path, capsys):
    write(tmp_path, record(16, 1, **MEASURED), record(32, 64, **MEASURED))
    write(tmp_path / "other", record(16), kernel="soft[max]", key={"shape": {"tuple": [1, "a"]}})
    assert main(["list", str(tmp_path)]) == 0
    printed = capsys.readouterr()
    head, first, second = printed.out.splitlines()
    assert head.split() == [
        "kernel", "device", "key", "points", "tuned", "triton", "rigor", "speed-up",
    ]  # fmt: skip
    for words in ("told", "interpreter", "N=8 int32", "M=1, 64", "3.6.0", "full", "2.00"):
        assert words in first
    assert "soft[max]" in second and "shape=[1,a]" in second
    assert printed.err == ""


def test_show_has_a_line_for_each_record(tmp_path, capsys):
    write(tmp_path, record(16, 64, **MEASURED), record(32, 1))
    assert main(["show", str(tmp_path)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("told on interpreter (") and lines[1] == str(tmp_path / FILE)
    assert lines[3].split()[:2] == ["1", "BLOCK=32"] and lines[4].split()[:2] == ["64", "BLOCK=16"]
    assert "2.00" in lines[4] and "0.5" in lines[4]


def test_json_is_one_document_with_the_faults_in_it(tmp_path, capsys):
    write(tmp_path, record(16))
    (tmp_path / "bad.json").write_text("{}")
    assert main(["show", str(tmp_path), "--json"]) == 1
    printed = capsys.readouterr()
    content = json.loads(printed.out)
    assert content["source"] == {"kind": "folder", "path": str(tmp_path)}
    assert [file["records"] for file in content["files"]] == [[record(16)]]
    assert content["faults"][0] == {
        "path": str(tmp_path / "bad.json"), "where": "schema", "what": "is missing",
    }  # fmt: skip
    assert printed.err == ""


def test_only_what_is_asked_for_is_shown(tmp_path, capsys):
    write(tmp_path, record(16, **MEASURED))
    write(tmp_path / "b", record(32), key={"N": 9})
    assert main(["list", str(tmp_path), "-k", "N=9", "--json"]) == 0
    assert [file["key"] for file in json.loads(capsys.readouterr().out)["files"]] == [{"N": 9}]
    assert main(["list", str(tmp_path), "--rigor", "verified"]) == 0
    printed = capsys.readouterr()
    assert printed.out == "" and "2 files of records, and none is asked for" in printed.err


def test_five_hundred_broken_files_are_one_report_and_no_traceback(tmp_path, capsys):
    """All of them are named, the good one is listed, and every byte stays."""
    written = fill(tmp_path, many=23)
    assert len(written) > 500
    write(tmp_path / "good", record(16))
    assert main(["list", str(tmp_path)]) == 1
    printed = capsys.readouterr()
    assert "told" in printed.out and len(printed.out.splitlines()) == 2
    for path, data in written.items():
        assert f"{path}: " in printed.err and path.read_bytes() == data
    assert "Traceback" not in printed.err


@pytest.mark.parametrize("command", ["list", "show"])
def test_what_is_not_there_exits_with_2(command, capsys):
    assert main([command, "no.such.package"]) == 2
    printed = capsys.readouterr()
    assert printed.err.startswith("shipconf: ") and "no.such.package" in printed.err
    assert printed.out == ""


@pytest.mark.parametrize("words", [["--newer-than", "soon"], ["-k", "N"], ["--rigor", "high"]])
def test_a_bad_filter_exits_with_2(words, capsys):
    with pytest.raises(SystemExit) as ended:
        main(["list", *words])
    assert ended.value.code == 2 and words[0] in capsys.readouterr().err


def test_an_empty_user_store_is_no_fault(store, capsys):
    assert main(["list"]) == 0
    assert "no files of records" in capsys.readouterr().err


def test_which_records_are_stale_is_told_where_importing_is_asked_for(tmp_path, capsys):
    from test_declared import SOURCE

    package = project(tmp_path, name="staling")
    (package / "__init__.py").write_text("")
    (package / "tile.py").write_text(SOURCE.partition("class Layer")[0])
    folder = package / "configs" / "tile" / "plain"
    write(folder, record(16, 1, fingerprint="1:old"), record(16, 2), kernel="plain",
          key={"N": 8, "E": 1})  # fmt: skip
    assert main(["list", str(package), "--kernel", "plain", "--import", "--json"]) == 0
    printed = capsys.readouterr()
    assert json.loads(printed.out)["files"][0]["stale"] == 1
    assert printed.err == f"importing the kernels of {package}\n"
    assert main(["show", str(folder), "--import", str(package)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[3].endswith("stale") and lines[4].endswith("unknown")


# --- as a process -----------------------------------------------------------------------------


def shipconf(*words: str | Path, **more) -> subprocess.CompletedProcess:
    """The command in a process that fails if torch or triton is imported."""
    program = (
        "import sys\nsys.modules['torch'] = sys.modules['triton'] = None\n"
        "from shipconf.cli import main\nsys.exit(main())\n"
    )
    return subprocess.run(
        [sys.executable, "-c", program, *map(str, words)], capture_output=True, text=True,
        check=False, cwd=ROOT, **more,
    )  # fmt: skip


def test_list_and_show_import_neither_torch_nor_triton(tmp_path):
    """An import of either would raise here."""
    write(tmp_path, record(16))
    for command in ("list", "show"):
        done = shipconf(command, tmp_path)
        assert done.returncode == 0 and done.stderr == "" and "told" in done.stdout


def test_names_that_are_no_text_are_printed_all_the_same(tmp_path):
    (tmp_path / os.fsdecode(b"odd\xff.json")).write_text("{")
    done = shipconf("list", tmp_path)
    assert done.returncode == 1 and "odd" in done.stderr and "Traceback" not in done.stderr


def test_a_reader_that_has_seen_enough_is_no_error(tmp_path):
    for n in range(500):
        write(tmp_path, record(16), name=f"{n}.json", key={"N": n})
    command = f"{sys.executable} -m shipconf show {tmp_path}"
    done = subprocess.run(
        ["bash", "-c", f"{command} | head -1; exit ${{PIPESTATUS[0]}}"], capture_output=True,
        text=True, check=False, cwd=ROOT,
    )  # fmt: skip
    first = "told on interpreter (interpreter, interpreter): N=0 int32\n"
    assert (done.returncode, done.stdout, done.stderr) == (0, first, "")


def test_an_interrupt_exits_with_130(tmp_path):
    """In the middle of reading a file: a pipe that nothing is written to."""
    os.mkfifo(tmp_path / "pipe.json")
    done = subprocess.Popen(
        [sys.executable, "-m", "shipconf", "list", tmp_path], stderr=subprocess.PIPE, text=True,
        cwd=ROOT,
    )  # fmt: skip
    writer = os.open(tmp_path / "pipe.json", os.O_WRONLY)  # waits for the reader
    done.send_signal(signal.SIGINT)
    assert done.communicate()[1] == "interrupted\n" and done.returncode == 130
    os.close(writer)


@pytest.mark.parametrize("installed", [True, False])
def test_on_a_terminal_the_table_is_drawn_by_rich_where_it_is_installed(tmp_path, installed):
    write(tmp_path, record(16), kernel="soft[red]max")
    ours, theirs = pty.openpty()
    program = "import sys\n" + ("" if installed else "sys.modules['rich'] = None\n")
    program += "from shipconf.cli import main\nsys.exit(main())\n"
    done = subprocess.Popen(
        [sys.executable, "-c", program, "list", tmp_path], stdout=theirs, cwd=ROOT,
        env={**os.environ, "COLUMNS": "120", "TERM": "dumb"},
    )  # fmt: skip
    os.close(theirs)
    printed = b""
    try:
        while block := os.read(ours, 65536):
            printed += block
    except OSError:  # Linux's end of file on a terminal
        pass
    os.close(ours)
    assert done.wait() == 0
    assert ("───" in printed.decode()) == installed and "soft[red]max" in printed.decode()
