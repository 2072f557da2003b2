"""The web page's files: served without a key, small, from this host only, and built from the sources beside them."""

import hashlib
import http.client
import re
from collections.abc import Iterator

import pytest

pytest.importorskip("openai", reason="the test extra is not installed")
pytest.importorskip("uvicorn", reason="the serve extra is not installed")
pytest.importorskip("onnxruntime", reason="the onnx extra is not installed")

import edgedecode
from edgedecode import Pair, SessionOptions
from edgedecode.apps.serve.application import Limits
from edgedecode.apps.serve.page import PAGE
from edgedecode.apps.serve.rounds import RoundLog
from edgedecode.pack.hub import BUNDLED_PACK
from edgedecode.testing import toy_pair
from tests.apps.test_serve import KEY, Running

SOURCES = PAGE.parent / "web"
LIMIT = 300_000


@pytest.fixture(scope="module")
def server() -> Iterator[Running]:
    with edgedecode.load(BUNDLED_PACK, runtime="onnx") as pair:
        running = Running(pair, Limits(key=KEY))
        yield running
        running.close()


def get(server: Running, path: str, **headers: str) -> http.client.HTTPResponse:
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=30)
    connection.request("GET", path, headers=headers)
    reply = connection.getresponse()
    reply.body = reply.read()  # type: ignore[attr-defined]
    connection.close()
    return reply


def test_built_files_are_those_of_the_sources() -> None:
    """`make page` after any change of `web/` writes the digest again."""
    names = ["index.html", "package-lock.json", "package.json", "tsconfig.json", "vite.config.ts"]
    names += [f"src/{path.name}" for path in (SOURCES / "src").iterdir()]
    digest = hashlib.sha256()
    for name in sorted(names):
        digest.update(f"{name}\0".encode() + (SOURCES / name).read_bytes() + b"\0")
    assert (PAGE / "assets" / "sources.sha256").read_text(encoding="utf-8").strip() == digest.hexdigest()


def test_the_page_is_small_and_names_its_licenses() -> None:
    files = {path.name: path for path in PAGE.rglob("*") if path.is_file()}
    assert {*files} == {"index.html", "page.css", "page.js", "licenses.md", "sources.sha256"}
    assert sum(files[name].stat().st_size for name in ("index.html", "page.css", "page.js")) < LIMIT
    licenses = files["licenses.md"].read_text(encoding="utf-8")
    for name in ("preact", "marked", "dompurify", "highlight.js"):
        assert f"## {name}" in licenses


def test_the_page_names_no_file_of_another_host() -> None:
    index = (PAGE / "index.html").read_text(encoding="utf-8")
    links = re.findall(r'(?:src|href)="([^"]+)"', index)
    assert links
    assert all(link.startswith(("./assets/", "data:")) for link in links)
    assert "@import" not in (PAGE / "assets" / "page.css").read_text(encoding="utf-8")


@pytest.mark.parametrize("path", ["/", "/assets/page.js", "/assets/page.css"])
def test_the_page_needs_no_key_and_has_strict_rules(path: str, server: Running) -> None:
    reply = get(server, path)
    assert reply.status == 200
    rules = reply.headers["Content-Security-Policy"]
    assert "default-src 'none'" in rules
    assert "unsafe" not in rules
    assert "http" not in rules
    again = get(server, path, **{"If-None-Match": reply.headers["ETag"]})
    assert again.status == 304


@pytest.mark.parametrize(
    "path", ["/props", "/memory", "/metrics", "/v1/models", "/assets/../props", "/assets/%2e%2e/props"]
)
def test_other_paths_need_the_key(path: str, server: Running) -> None:
    assert get(server, path).status in (401, 404)
    assert get(server, path, Host="evil.example").status == 421


def test_props_and_memory_describe_the_server(server: Running) -> None:
    import json

    key = {"Authorization": f"Bearer {KEY}"}
    props = json.loads(get(server, "/props", **key).body)  # type: ignore[attr-defined]
    assert (props["name"], props["modes"], props["engine"]) == ("demo", ["plain", "switch"], "onnx")
    memory = json.loads(get(server, "/memory", **key).body)  # type: ignore[attr-defined]
    assert memory["leased_nbytes"] == server.pair.budget.used_nbytes == sum(h["nbytes"] for h in memory["holders"])
    assert memory["resident_nbytes"] > 0


@pytest.mark.parametrize("options", [{}, {"drafter": "none"}, {"draft_max": 3}])
def test_reports_add_up_to_the_statistics(options: dict[str, object]) -> None:
    with toy_pair() as pair:
        check_reports(pair, SessionOptions(seed=1, ignore_eos=True, **options))  # type: ignore[arg-type]


def check_reports(pair: Pair, options: SessionOptions) -> None:
    with pair.session(options) as session:
        answer = session.stream("abcabcabc", max_tokens=60)
        log = RoundLog(answer.stats)
        reports = [log.report(chunk) for chunk in answer]
    rounds = [report["round"] for report in reports if "round" in report]
    stats = session.stats
    assert len(rounds) == stats.rounds
    assert sum(each["proposed"] for each in rounds) == stats.proposed
    assert sum(each["accepted"] for each in rounds) == stats.accepted
    assert sum(report["tokens"] for report in reports) == stats.tokens == 60
    assert all((each["drafter"] == "none") == (each["proposed"] == 0) for each in rounds)
    last = reports[-1]["stats"]
    assert (last["rounds"], last["accepted"], last["verified_tokens"]) == (stats.rounds, stats.accepted, 60)
    plain = stats.plain_tokens_per_second
    assert last["plain_tokens_per_second"] == (None if plain is None else round(plain, 6))
