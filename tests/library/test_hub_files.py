"""Downloads of GGUF files from a hub on this machine: choice, resumption, digests, refusals."""

import json
from collections import namedtuple
from collections.abc import Callable, Collection
from pathlib import Path

import pytest

from edgedecode.errors import ManifestError
from edgedecode.library import offers
from edgedecode.library.hub_files import choose_file
from edgedecode.library.offers import downloading
from edgedecode.runtimes.onnx.gguf.opening import served_types

from .conftest import HubServer, Say

MODEL = b"GGUF" + bytes(range(256)) * 400
LARGE = MODEL * 250
"""Larger than the pieces in which huggingface_hub writes."""
CUT = len(LARGE) - 9


def content(tmp_path: Path) -> list[str]:
    """Return the files in the library, also unfinished ones."""
    root = tmp_path / "cache" / "models"
    return sorted(path.relative_to(root).as_posix() for path in root.rglob("*") if path.is_file())


def test_the_preferred_file_is_pulled_and_has_its_digest_checked(server: HubServer, say: Say, tmp_path: Path) -> None:
    server.files["owner/tiny-GGUF"] = {"tiny-F16.gguf": MODEL, "tiny-Q8_0.gguf": MODEL[:-9], "README.md": b"text"}
    done = say("pull", "owner/tiny-GGUF", "--json")
    assert done.returncode == 0, done.stderr
    path = tmp_path / "cache" / "models" / "owner--tiny-GGUF" / "tiny-Q8_0.gguf"
    answer = json.loads(done.stdout)
    assert answer == {"name": "owner/tiny-GGUF:Q8_0", "path": str(path), "nbytes": len(MODEL) - 9, "downloaded": True}
    assert path.read_bytes() == MODEL[:-9]
    assert "it has no Q4_K_M; of F16, Q8_0" in done.stderr
    assert content(tmp_path) == ["owner--tiny-GGUF/tiny-Q8_0.gguf"]
    server.status = 500
    again = say("pull", "owner/tiny-GGUF:q8_0")
    assert "here already (library)" in again.stdout


@pytest.mark.parametrize(
    ("name", "file"),
    [
        ("owner/m:q8_0", "sub/m-Q8_0.gguf"),
        ("owner/m/m-F16.gguf", "m-F16.gguf"),
        ("owner/m", "sub/m-Q8_0.gguf"),
        ("hf.co/owner/m:F16", "m-F16.gguf"),
        ("https://huggingface.co/owner/m", "sub/m-Q8_0.gguf"),
    ],
)
def test_a_type_or_a_file_is_named(name: str, file: str, server: HubServer, say: Say, tmp_path: Path) -> None:
    names = ("sub/m-Q8_0.gguf", "m-F16.gguf", "m-IQ2_XXS.gguf", "mmproj-m-Q4_K_M.gguf", "m-Q4_K_M-00002-of-00002.gguf")
    server.files["owner/m"] = dict.fromkeys(names, MODEL)
    done = say("pull", name)
    assert done.returncode == 0, done.stderr
    assert content(tmp_path) == [f"owner--m/{file}"]


def test_a_suffix_in_capitals_is_one(server: HubServer, say: Say) -> None:
    server.files["owner/m"] = {"M-Q8_0.GGUF": MODEL}
    assert say("pull", "owner/m").returncode == 0
    assert "here already" in say("pull", "owner/m:Q8_0").stdout


def test_a_token_is_sent_where_one_is_set(server: HubServer, say: Say) -> None:
    server.files["owner/m"] = {"m-Q8_0.gguf": MODEL}
    assert say("pull", "owner/m").returncode == 0
    assert server.tokens == {None}
    assert say("rm", "owner/m").returncode == 0
    assert say("pull", "owner/m", HF_TOKEN="hf_abc").returncode == 0
    assert "Bearer hf_abc" in server.tokens


def _status(status: int) -> Callable[[HubServer], None]:
    def change(server: HubServer) -> None:
        server.status = status

    return change


def _only(*names: str) -> Callable[[HubServer], None]:
    def change(server: HubServer) -> None:
        server.files["owner/m"] = dict.fromkeys(names, MODEL)

    return change


def _other_digest(server: HubServer) -> None:
    server.digests["m-Q8_0.gguf"] = "0" * 64


REFUSALS: dict[str, tuple[str, Callable[[HubServer], None], str]] = {
    "401": ("owner/m", _status(401), "set HF_TOKEN"),
    "403": ("owner/m", _status(403), "ask for access"),
    "404": ("owner/other", _status(200), "404: it does not exist"),
    "429": ("owner/m", _status(429), "429: too many requests"),
    "no such type": ("owner/m:Q2_K", _status(200), "no file of type 'Q2_K': it has Q8_0"),
    "no such file": ("owner/m/x.gguf", _status(200), "has no file 'x.gguf': it has Q8_0"),
    "no GGUF": ("owner/m", _only("model.safetensors"), "no GGUF file and is no pack of edgedecode"),
    "only a projector": ("owner/m", _only("mmproj-m-F16.gguf"), "no GGUF file"),
    "outside": ("owner/m", _only("../m-Q8_0.gguf", "a/../../m-Q4_0.gguf", "C:/m.gguf"), "no GGUF file"),
    "split": ("owner/m", _only("m-Q8_0-00001-of-00003.gguf", "m-Q8_0-00002-of-00003.gguf"), "is split into 3 files"),
    "digest": ("owner/m", _other_digest, "its digest differs"),
}


def _page(server: HubServer) -> None:
    server.page = b"<!doctype html><html><body>Sign in</body></html>"


def _no_page(server: HubServer) -> None:
    server.page = b"[1, 2]"


def _file_page(server: HubServer) -> None:
    server.file_page = b"<!doctype html><html><body>Sign in</body></html>"


def _file_status(status: int) -> Callable[[HubServer], None]:
    def change(server: HubServer) -> None:
        server.file_status = status

    return change


REFUSALS |= {
    "a page": ("owner/m", _page, "is not the hub's"),
    "not the hub's": ("owner/m", _no_page, "is not the hub's"),
    "a page as file": ("owner/m", _file_page, "is not the hub's"),
    "a file's 401": ("owner/m", _file_status(401), "set HF_TOKEN"),
    "a file's 403": ("owner/m", _file_status(403), "ask for access"),
    "a file's 404": ("owner/m", _file_status(404), "404: it does not exist"),
}


@pytest.mark.parametrize("case", REFUSALS)
def test_a_refusal_is_one_line_and_leaves_nothing(case: str, server: HubServer, say: Say, tmp_path: Path) -> None:
    name, change, message = REFUSALS[case]
    server.files["owner/m"] = {"m-Q8_0.gguf": MODEL}
    change(server)
    done = say("pull", name)
    lines = [line for line in done.stderr.splitlines() if not line.startswith("edgedecode: downloading")]
    assert (done.returncode, done.stdout, len(lines)) == (1, "", 1), done.stderr
    assert message in lines[0]
    assert not [file for file in content(tmp_path) if not file.startswith(".")]


def test_half_a_file_is_continued(server: HubServer, say: Say, tmp_path: Path) -> None:
    server.files["owner/m"] = {"m-Q8_0.gguf": LARGE}
    server.ends_after = CUT
    done = say("pull", "owner/m")
    assert done.returncode == 1
    assert "it continues where it stopped" in done.stderr.splitlines()[-1]
    assert all(line.startswith("edgedecode: ") for line in done.stderr.splitlines()), done.stderr
    assert all(file.startswith(".owner--m.part/") for file in content(tmp_path))
    server.ends_after, server.range_status = None, 206
    server.ranges.clear()
    assert say("pull", "owner/m").returncode == 0
    (given,) = server.ranges
    assert 0 < int(given.removeprefix("bytes=").removesuffix("-")) <= CUT
    assert content(tmp_path) == ["owner--m/m-Q8_0.gguf"]
    assert (tmp_path / "cache" / "models" / "owner--m" / "m-Q8_0.gguf").read_bytes() == LARGE


def test_a_range_that_cannot_be_satisfied_begins_again(server: HubServer, say: Say, tmp_path: Path) -> None:
    server.files["owner/m"] = {"m-Q8_0.gguf": LARGE}
    server.ends_after = CUT
    assert say("pull", "owner/m").returncode == 1
    server.ends_after, server.range_status = None, 416
    (line,) = [each for each in say("pull", "owner/m").stderr.splitlines() if "downloading" not in each]
    assert "pull it again: it starts from the beginning" in line
    assert content(tmp_path) == []
    done = say("pull", "owner/m")
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "cache" / "models" / "owner--m" / "m-Q8_0.gguf").read_bytes() == LARGE


def test_a_full_disk_is_said_before_the_download(
    server: HubServer, home: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(offers.shutil, "disk_usage", lambda _: namedtuple("Usage", "free")(10**6))
    with pytest.raises(ManifestError, match=r"needs 77 MB and .* has 1 MB left: make room"):
        offers.check_room("owner/m", 10**7, tmp_path)


def test_a_disk_that_becomes_full_leaves_nothing_half(home: Path, tmp_path: Path) -> None:
    def fill() -> None:
        with downloading(tmp_path / "cache" / "models" / "owner--m") as part:
            (part / "half").write_bytes(b"1")
            raise OSError(28, "No space left on device")

    with pytest.raises(ManifestError, match="No space left on device"):
        fill()
    assert content(tmp_path) == []


ALL = ("Q4_K", "Q5_K", "Q6_K", "Q8_0", "Q4_0", "F16")


def test_a_chosen_file_is_noted() -> None:
    names = [f"m-{kind}.gguf" for kind in ("F16", "Q6_K", "Q4_0", "Q4_K_S")]

    def chosen(names: list[str], run: Collection[str] = ALL) -> tuple[str, str]:
        return choose_file("o/m", names, kind="", name="", run=run)

    assert chosen(names) == ("m-Q4_K_S.gguf", "it has no Q4_K_M; of F16, Q6_K, Q4_0, Q4_K_S")
    assert chosen([*names, "m.Q4_K_M.gguf"]) == ("m.Q4_K_M.gguf", "of F16, Q6_K, Q4_0, Q4_K_S, Q4_K_M")
    assert chosen([*names, "m.Q4_K_M.gguf"], ("Q4_0", "F16", "Q6_K"))[0] == "m-Q4_0.gguf"
    note = "our kernels do not run the preferred type; of F16, Q6_K, Q4_0, Q4_K_S"
    assert chosen(names, ("Q4_0", "F16")) == ("m-F16.gguf", note)
    assert chosen(names, ())[0] == "m-Q4_K_S.gguf"
    assert chosen(["m-UD-Q4_K_XL.gguf", "m-BF16.gguf"])[0] == "m-UD-Q4_K_XL.gguf"
    assert chosen(["strange.gguf"]) == ("strange.gguf", "")


def test_our_kernels_run_what_is_preferred() -> None:
    names = [f"m-{kind}.gguf" for kind in ("Q4_0", "Q8_0", "Q4_K_M", "IQ2_XXS")]
    assert choose_file("o/m", names, kind="", name="", run=served_types())[0] == "m-Q4_K_M.gguf"
