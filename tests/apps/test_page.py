"""The web page's files: served without a key, small, from this host only, and built from the sources beside them."""

import hashlib
import json
import re
from typing import Any

import pytest

from tests.apps.serving import KEY, Running

# isort: split
from edgedecode import SessionDetails, SessionOptions
from edgedecode.apps.serve.guards import Limits
from edgedecode.apps.serve.page import PAGE
from edgedecode.apps.serve.rounds import RoundLog
from edgedecode.testing import toy_pair

SOURCES = PAGE.parent / "web"
LIMIT = 300_000


SERVER = {"limits": Limits(key=KEY)}


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
    reply = server.get(path, Accept="text/html,*/*")
    assert reply.status == 200
    rules = reply.headers["Content-Security-Policy"]
    assert "default-src 'none'" in rules
    assert "unsafe" not in rules
    assert "http" not in rules
    again = server.get(path, **{"Accept": "text/html", "If-None-Match": reply.headers["ETag"]})
    assert again.status == 304


@pytest.mark.parametrize(
    "path", ["/props", "/memory", "/metrics", "/v1/models", "/assets/../props", "/assets/%2e%2e/props"]
)
def test_other_paths_need_the_key(path: str, server: Running) -> None:
    assert server.get(path).status in (401, 404)
    assert server.get(path, Host="evil.example").status == 421


def test_props_and_memory_describe_the_server(server: Running) -> None:
    key = {"Authorization": f"Bearer {KEY}"}
    props = json.loads(server.get("/props", **key).text)
    assert (props["name"], props["modes"], props["engine"]) == ("demo", ["plain", "switch"], "onnx")
    assert props["library"] is False  # the page offers downloads where it is
    memory = json.loads(server.get("/memory", **key).text)
    assert memory["leased_nbytes"] == server.pair.budget.used_nbytes == sum(h["nbytes"] for h in memory["holders"])
    assert memory["resident_nbytes"] > 0


@pytest.mark.parametrize("options", [{}, {"drafter": "none"}, {"draft_max": 3}])
def test_reports_add_up_to_the_statistics(options: dict[str, Any]) -> None:
    with (
        toy_pair() as pair,
        pair.session(SessionOptions(seed=1, details=SessionDetails(ignore_eos=True), **options)) as session,
    ):
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
