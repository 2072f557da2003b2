"""Builds a signed APK without code that carries a bundle's models, with Android's own tools."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterable, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

from edgedecode.errors import ExportError, InputError, RuntimeUnavailable

from .bundle import Bundle

APK = "models.apk"
UNCOMPRESSED = ("onnx", "data", "bin", "gguf")
"""Suffixes that stay uncompressed, so that the app maps them."""
_TOOLS = ("aapt2", "zipalign", "apksigner")
_FRAMEWORKS = ("platforms/*/android.jar",)
_DEBIAN_FRAMEWORK = Path("/usr/share/android-framework-res/framework-res.apk")
_TARGET_SDK = 36
_LEFT_OUT = ("gradle", "install.sh", "SHA256SUMS", APK)
_PASSWORD = "EDGEDECODE_KEYSTORE_PASSWORD"
_MANIFEST = """<?xml version="1.0" encoding="utf-8"?>
<manifest xmlns:android="http://schemas.android.com/apk/res/android" package="{package}.models"
    android:versionCode="1" android:versionName="{name}">
  <uses-sdk android:minSdkVersion="{min_sdk}" android:targetSdkVersion="{target_sdk}"/>
  <application android:hasCode="false" android:label="{name}"/>
</manifest>
"""


class Tools(NamedTuple):
    """Paths of Android's tools, and the framework that manifests are compiled against."""

    aapt2: str
    zipalign: str
    apksigner: str
    framework: str


class Keystore(NamedTuple):
    """A Java keystore whose first key signs."""

    path: Path
    password: str


def find_tools() -> Tools:
    """Find the tools on PATH or in ANDROID_HOME. Raises RuntimeUnavailable with what installs them."""
    home = Path(os.environ.get("ANDROID_HOME") or os.environ.get("ANDROID_SDK_ROOT") or "/nonexistent")
    found = {name: shutil.which(name) or _newest(home.glob(f"build-tools/*/{name}")) for name in _TOOLS}
    framework = _newest(path for pattern in _FRAMEWORKS for path in home.glob(pattern))
    if framework is None and _DEBIAN_FRAMEWORK.is_file():
        framework = str(_DEBIAN_FRAMEWORK)
    aapt2, zipalign, apksigner = found.values()
    if aapt2 is None or zipalign is None or apksigner is None or framework is None:
        missing = [name for name, path in found.items() if path is None]
        missing += ["a platform's android.jar"] if framework is None else []
        raise RuntimeUnavailable(
            f"--apk needs Android's build tools, and {', '.join(missing)} cannot be found: set ANDROID_HOME, or on "
            f"Debian `apt install aapt zipalign apksigner android-framework-res`, or leave --apk out"
        )
    return Tools(aapt2, zipalign, apksigner, framework)


def find_keystore(path: Path | None) -> Keystore:
    """Return the keystore, by default Android's debug one, which is made if it is missing.

    The password is that of the variable EDGEDECODE_KEYSTORE_PASSWORD, by default the debug one's. Raises InputError.
    """
    password = os.environ.get(_PASSWORD, "android")
    if path is not None:
        if not path.is_file():
            raise InputError(f"--keystore {path}: there is no such file")
        return Keystore(path, password)
    debug = Path.home() / ".android" / "debug.keystore"
    if not debug.exists():
        keytool = shutil.which("keytool")
        if keytool is None:
            raise RuntimeUnavailable("--apk needs a key, and keytool is missing: install Java, or give --keystore")
        debug.parent.mkdir(parents=True, exist_ok=True)
        words = ["-genkeypair", "-alias", "androiddebugkey", "-keyalg", "RSA", "-keysize", "2048", "-validity", "10950"]
        name = "CN=Android Debug,O=Android,C=US"
        passwords = ["-storepass", "android", "-keypass", "android"]
        _run([keytool, *words, "-dname", name, "-keystore", str(debug), *passwords], "keytool")
    return Keystore(debug, "android")


def build_apk(root: Path, bundle: Bundle, *, package: str, tools: Tools, keystore: Keystore) -> None:
    """Write `models.apk` into the bundle at `root`: its models and self-test as assets. Raises ExportError."""
    with TemporaryDirectory(prefix="apk", dir=root.parent) as name:
        work = Path(name)
        assets = work / "assets"
        for file in (*bundle.files, "bundle.json"):
            if is_carried(file):
                (assets / file).parent.mkdir(parents=True, exist_ok=True)
                _link(root / file, assets / file)
        manifest = work / "AndroidManifest.xml"
        values = {"package": package, "name": bundle.name, "min_sdk": bundle.min_sdk, "target_sdk": _TARGET_SDK}
        manifest.write_text(_MANIFEST.format_map(_escaped(values)), encoding="utf-8")
        plain = [word for suffix in UNCOMPRESSED for word in ("-0", f".{suffix}")]
        unsigned, aligned = str(work / "unsigned.apk"), str(work / "aligned.apk")
        link = [tools.aapt2, "link", "-o", unsigned, "--manifest", str(manifest), "-I", tools.framework]
        _run([*link, "-A", str(assets), *plain], "aapt2")
        _run([tools.zipalign, "-f", "-p", "4", unsigned, aligned], "zipalign")
        sign = [tools.apksigner, "sign", "--ks", str(keystore.path), "--ks-pass", f"env:{_PASSWORD}"]
        signed = str(root / APK)
        _run([*sign, "--min-sdk-version", str(bundle.min_sdk), "--out", signed, aligned], "apksigner", keystore)
        (root / f"{APK}.idsig").unlink(missing_ok=True)
        _run([tools.apksigner, "verify", "--min-sdk-version", str(bundle.min_sdk), signed], "apksigner")


def is_carried(name: str) -> bool:
    """Return whether a file of the bundle goes into the APK."""
    return name.split("/", maxsplit=1)[0] not in _LEFT_OUT


def _newest(paths: Iterable[Path]) -> str | None:
    found = sorted(paths, key=lambda path: [int(part) if part.isdigit() else 0 for part in path.parent.name.split(".")])
    return str(found[-1]) if found else None


def _escaped(values: Mapping[str, object]) -> dict[str, str]:
    from xml.sax.saxutils import escape

    texts = {name: escape(str(value), {'"': "&quot;"}) for name, value in values.items()}
    return {name: f"\\{text}" if text[:1] in ("@", "?") else text for name, text in texts.items()}  # else references


def _link(source: Path, target: Path) -> None:
    try:
        os.link(source, target)
    except OSError:
        shutil.copyfile(source, target)


def _run(command: list[str], name: str, keystore: Keystore | None = None) -> None:
    environment = os.environ | ({_PASSWORD: keystore.password} if keystore is not None else {})
    try:
        done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    except OSError as error:
        raise ExportError(f"{name} could not be started: {error.strerror or error}") from None
    if done.returncode:
        lines = (done.stderr.strip() or done.stdout.strip() or f"exit code {done.returncode}").splitlines()
        raise ExportError(f"{name} failed: {lines[0].strip()}")
