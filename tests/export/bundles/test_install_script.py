"""`install.sh` of an Android bundle, run against a stand-in for adb whose device is a folder."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the script needs a Unix shell and sha256sum")

# Words after `shell` are run by this machine's shell, with the device's folder for /data/local/tmp. Old versions of
# adb end lines with CR LF.
ADB = r"""#!/bin/sh
here() { printf '%s' "$1" | sed "s#/data/local/tmp#$DEVICE#g"; }
case "$1 ${2:-} ${3:-}" in
  "get-state"*) [ -n "${CONNECTED-yes}" ] ;;
  *" ro.product.cpu.abilist") printf '%s\r\n' "${ABIS:-arm64-v8a,armeabi-v7a}" ;;
  *" ro.build.version.sdk") printf '%s\r\n' "${SDK:-34}" ;;
  *" ro.soc.model") printf 'SM8650\r\n' ;;
  "shell df"*) printf 'Filesystem 1K-blocks Used Available\r\n/dev/x 1 1 %s\r\n' "${FREE:-9999999}" ;;
  "shell "*) sh -c "$(here "$2")" ;;
  "push "*) cp -r "$2" "$(here "$3")" && [ -z "${BROKEN:-}" ] || exit 1
    [ -z "${DAMAGED:-}" ] || echo x >> "$(here "$3")/bundle.json" ;;
esac
"""


def installed(bundle: Path, place: Path, **device: str) -> tuple[int, str, Path]:
    """Run the script; return its exit status, its last line, and the device's folder."""
    folder = place / "device"
    folder.mkdir(exist_ok=True)
    adb = place / "bin" / "adb"
    adb.parent.mkdir()
    adb.write_text(ADB, encoding="utf-8")
    adb.chmod(0o755)
    environment = {**os.environ, "PATH": f"{adb.parent}:{os.environ['PATH']}", "DEVICE": str(folder), **device}
    words = ["sh", str(bundle / "install.sh"), "serial 1"]
    found = subprocess.run(words, env=environment, capture_output=True, text=True, check=False)
    return found.returncode, (found.stdout + found.stderr).strip().splitlines()[-1], folder


def test_install_script_copies_the_bundle_in_place_of_an_earlier_one(cpu: Path, tmp_path: Path) -> None:
    earlier = tmp_path / "device" / "com.example.edgedecode" / "demo" / "earlier"
    earlier.mkdir(parents=True)
    status, line, folder = installed(cpu, tmp_path)
    assert (status, line) == (0, "copied to /data/local/tmp/com.example.edgedecode/demo")
    copied = folder / "com.example.edgedecode" / "demo"
    assert {path.relative_to(copied) for path in copied.rglob("*")} == {
        path.relative_to(cpu) for path in cpu.rglob("*")
    }


@pytest.mark.parametrize(
    ("device", "said"),
    [
        ({"CONNECTED": ""}, "no device answers"),
        ({"ABIS": "x86"}, "the device runs x86, this bundle is for arm64-v8a x86_64"),
        ({"SDK": "25"}, "the device has Android API level 25, this bundle needs 26"),
        ({"FREE": "100"}, "the device has 100 kB free"),
        ({"BROKEN": "yes"}, "the copy failed"),
        ({"DAMAGED": "yes"}, "the copy on the device is damaged"),
    ],
    ids=["none", "other ABI", "old", "full", "push", "damaged"],
)
def test_install_script_refuses_in_one_line_and_leaves_nothing(
    device: dict[str, str], said: str, cpu: Path, tmp_path: Path
) -> None:
    status, line, folder = installed(cpu, tmp_path, **device)
    assert status == 1
    assert line.startswith(f"install.sh: {said}")
    assert [path for path in folder.rglob("*") if path.is_file()] == []


def test_install_script_refuses_a_damaged_bundle(cpu: Path, tmp_path: Path) -> None:
    broken = tmp_path / "broken"
    shutil.copytree(cpu, broken)
    with (broken / "native" / "native.json").open("a", encoding="utf-8") as file:
        file.write("x")
    status, line, folder = installed(broken, tmp_path)
    assert (status, line) == (1, "install.sh: this bundle is damaged: make it again")
    assert [*folder.iterdir()] == []
