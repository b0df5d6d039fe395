"""A report: bounded, masked, and it names missing parts."""

from __future__ import annotations

import json
from io import BytesIO
from zipfile import ZipFile

import pytest

from shardbus.admin.diagnosis import Finding, Picture
from shardbus_cli import report_bundle
from shardbus_cli.report_bundle import MISSING, ReportBundle, Subject, folder_of, subjects_of

NODE = "10.0.0.1:7355#0a"


def files_of(bundle: ReportBundle) -> dict[str, str]:
    with ZipFile(BytesIO(bundle.zipped())) as archive:
        assert archive.testzip() is None
        return {name: archive.read(name).decode() for name in archive.namelist()}


def test_files_and_what_is_missing_are_in_the_zip() -> None:
    bundle = ReportBundle()
    bundle.add("a.txt", "text é")
    bundle.add_json("b.json", {"x": [1]})
    bundle.miss("c.json", "no answer")
    files = files_of(bundle)
    assert files["a.txt"] == "text é"
    assert json.loads(files["b.json"]) == {"x": [1]}
    assert json.loads(files[MISSING]) == {"c.json": "no answer"}


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("redis://user:hunter2@store:6379/0", "redis://user:***@store:6379/0"),
        ("a redis://:hunter2@store/0, and", "a redis://:***@store/0, and"),
        (
            '"postgresql://u:hunter2@h/db?password=hunter2"',
            '"postgresql://u:***@h/db?password=***"',
        ),
        ("Bearer a-token-of-mine", "Bearer ***"),
        ("http://10.0.0.1:8558/v1/cluster", "http://10.0.0.1:8558/v1/cluster"),
    ],
)
def test_secrets_are_masked_wherever_they_stand(text: str, shown: str) -> None:
    bundle = ReportBundle(["a-token-of-mine", ""])
    bundle.add("file", text)
    bundle.add_json("json", {"deep": [text]})
    bundle.miss("other", text)
    files = files_of(bundle)
    assert files["file"] == shown
    assert "hunter2" not in str(files)
    assert "a-token-of-mine" not in str(files)
    assert json.loads(files[MISSING])["other"] == shown


def test_a_long_file_is_cut_and_a_full_report_takes_no_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(report_bundle, "FILE_BYTES", 100)
    monkeypatch.setattr(report_bundle, "BUNDLE_BYTES", 250)
    bundle = ReportBundle()
    for name in "abcd":
        bundle.add(name, name * 101)
    bundle.add("e", "fits")
    files = files_of(bundle)
    assert files["a"] == "a" * 100
    assert set(files) == {"a", "b", "e", MISSING}
    assert json.loads(files[MISSING]) == {
        "a": "cut at 100 of 101 bytes",
        "b": "cut at 100 of 101 bytes",
        "c": "left out: the report has 250 bytes",
        "d": "left out: the report has 250 bytes",
    }


def test_a_node_has_a_folder_of_harmless_letters() -> None:
    assert folder_of(NODE) == "nodes/10.0.0.1_7355_0a"
    assert folder_of("[::1]:1#2") == "nodes/_1_1_2"
    assert folder_of("a/../b\n") == "nodes/a_.._b_"


def test_the_entities_and_shards_that_findings_name_are_explained() -> None:
    picture = Picture(shards={"page": {}}, checkup={"members": [{"node": NODE, "answered": True}]})
    places = [
        Finding("hot-entity", "page", "p", "..."),
        Finding("backlog", "page", "p", "..."),
        Finding("backlog", "page", NODE, "..."),
        Finding("moving", "page", "7", "..."),
        Finding("late", "members", NODE, "..."),
        Finding("waiting", "page", NODE, "..."),
        Finding("hot-shard", "page", "8", "..."),
    ]
    subjects = [Subject("page", "p"), Subject("page", shard="7"), Subject("page", shard="8")]
    assert subjects_of(places, picture, 9) == subjects
    assert subjects_of(places, picture, 2) == subjects[:2]
