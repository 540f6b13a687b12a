"""Every shape of inbox gives one Handed for every learner, and nothing that is in it goes unsaid."""

import os
from pathlib import Path

import pytest
from intake_cases import data, got, made, notebook, roster, shape, zipped

from grading.intake import files, naming
from grading.intake.inbox import InboxError, collect
from grading.intake.naming import Owner

NB = data()
CHAPTER = "35_multi_token_decoding"


# --- shapes ----------------------------------------------------------------------------------------------------------


def test_a_folder_for_each_learner_at_any_depth(tmp_path):
    tree = {"s2/x.ipynb": NB, "s1/homework/week 5/x.ipynb": NB, "张三/第35节.ipynb": NB, "empty/": b""}
    assert shape(made(tmp_path / "in", tree)) == {
        "empty": [],
        "s1": ["s1/homework/week 5/x.ipynb"],
        "s2": ["s2/x.ipynb"],
        "张三": ["张三/第35节.ipynb"],
    }
    assert list(got(tmp_path / "in")) == sorted(got(tmp_path / "in"))


@pytest.mark.parametrize(
    "name, student",
    [
        (f"20230001_{CHAPTER}.ipynb", "20230001"),
        (f"张三_{CHAPTER}.ipynb", "张三"),
        ("张三_35节作业.ipynb", "张三"),
        (f"zhang_san_{CHAPTER}.ipynb", "zhang_san"),
        (f"zhang_san_{CHAPTER.upper()} (1).IPYNB", "zhang_san"),
        (f"20230001-{CHAPTER}.ipynb.txt", "20230001"),
        (f"{CHAPTER}_李四.ipynb", "李四"),
        (f"{CHAPTER}-final.ipynb", f"{CHAPTER}-final"),
        (f"Copy of {CHAPTER}.ipynb", CHAPTER),
        ("20230001-张三-作业.ipynb", "20230001"),
        ("20230001.ipynb", "20230001"),
        ("张三.json", "张三"),
        ("alice_hw.zip", "alice"),
        ("hw35_alice.ipynb", "hw35_alice"),
        ("35_alice.ipynb", "35_alice"),
        ("第35节_张三.ipynb", "第35节_张三"),
        ("HW_35_alice_attempt_2026-05-01-10-20-30_my_hw.ipynb", "alice"),
    ],
)
def test_flat_files(tmp_path, name, student):
    content = zipped({"x.ipynb": NB}) if name.endswith(".zip") else NB
    assert list(shape(made(tmp_path / "in", {name: content}))) == [student]


MOODLE = "Zhang San_12345_assignsubmission_file"


@pytest.mark.parametrize(
    "name", [f"{MOODLE}_/x.ipynb", f"{MOODLE}/x.ipynb", f"{MOODLE}_x.ipynb", f"{MOODLE}_a_b.ipynb"]
)
def test_moodle_names(tmp_path, name):
    other = f"Zhang San_67890_assignsubmission_file_/{CHAPTER}.ipynb"
    tree = {name: NB, other: NB, "Zhang San_12345_assignsubmission_onlinetext_/onlinetext.html": b"<p>hi</p>"}
    learners = got(made(tmp_path / "in", tree))
    assert list(learners) == ["Zhang San_12345", "Zhang San_67890"]
    assert [file.path for file in learners["Zhang San_12345"].files] == [name]
    assert learners["Zhang San_12345"].flags == ()


@pytest.mark.parametrize(
    "name, student, flags",
    [
        ("lastfirst_123456_7890123_name.ipynb", "lastfirst_123456", ()),
        ("lastfirst_LATE_123456_7890123_my_name-2.ipynb", "lastfirst_123456", ("late",)),
        ("lastfirst_123_456_name.ipynb", "lastfirst_123", ()),
        ("张三_123456_7890123_作业.ipynb", "张三_123456", ()),
        ("lastfirst_123456_7890123_name.zip", "lastfirst_123456", ()),
        ("anon_aB3dE_LATE_7890_name.ipynb", "anon_aB3dE", ("late",)),
    ],
)
def test_canvas_names(tmp_path, name, student, flags):
    content = zipped({"deep/x.ipynb": NB}) if name.endswith(".zip") else NB
    (one,) = collect(made(tmp_path / "in", {name: content}))
    assert (one.student_id, one.flags) == (student, flags)
    assert len(one.files) == 1 and one.files[0].data == NB


def test_canvas_needs_two_numbers_behind_a_name():
    assert naming.platform_owner("20230001_35_multi_token.ipynb") is None
    assert naming.platform_owner("张三_35_2_x.ipynb") is None
    assert naming.platform_owner("lastfirst_123_456_x.ipynb") == Owner("lastfirst_123", "lastfirst", "123", True)


def test_a_beginning_that_all_names_share_is_no_learner(tmp_path):
    tree = {f"MTP_{name}.ipynb": NB for name in ("li", "wang", "zhao")}
    assert list(shape(made(tmp_path / "in", tree))) == ["MTP_li", "MTP_wang", "MTP_zhao"]
    tree = {"s1_a.ipynb": NB, "s1_b.ipynb": NB, "s1_c.ipynb": NB, "s2_a.ipynb": NB}
    assert list(shape(made(tmp_path / "other", tree))) == ["s1", "s2"]


def test_a_platforms_other_files_make_a_row_too(tmp_path):
    tree = {"lastfirst_123456_789012_report.pdf": b"%PDF-1", f"{MOODLE}_notes.docx": b"PK\x03\x04"}
    learners = got(made(tmp_path / "in", tree))
    assert [one.files for one in learners.values()] == [(), ()]
    assert learners["lastfirst_123456"].others == ("lastfirst_123456_789012_report.pdf",)


def test_mixtures(tmp_path):
    tree = {
        "s1/x.ipynb": NB,
        f"s2_{CHAPTER}.ipynb": NB,
        f"{MOODLE}_/x.ipynb": NB,
        "lee_LATE_123456_789012_x.ipynb": NB,
        "s3_hw.zip": zipped({"a/b/x.ipynb": NB}),
        "s4/hw.zip": zipped({"x.ipynb": NB}),
        "grades.csv": b"a,b",
        "readme.txt": b"read me",
        "readme_first.md": b"# hi",
    }
    assert shape(made(tmp_path / "in", tree)) == {
        "Zhang San_12345": [f"{MOODLE}_/x.ipynb"],
        "lee_123456": ["lee_LATE_123456_789012_x.ipynb"],
        "s1": ["s1/x.ipynb"],
        "s2": [f"s2_{CHAPTER}.ipynb"],
        "s3": ["s3_hw.zip/a/b/x.ipynb"],
        "s4": ["s4/hw.zip/x.ipynb"],
    }


def test_the_class_archive_of_a_platform_beside_other_learners(tmp_path):
    moodle = {f"{MOODLE}_/x.ipynb": NB, "Li Si_6_assignsubmission_file_/x.ipynb": NB}
    tree = {"Course-Assignment-123.zip": zipped(moodle), "s1/x.ipynb": NB}
    assert list(shape(made(tmp_path / "in", tree))) == ["Li Si_6", "Zhang San_12345", "s1"]


# --- an archive as the inbox -----------------------------------------------------------------------------------------

CLASS = {"s1/x.ipynb": NB, "s2/deep/x.ipynb": NB, f"s3_{CHAPTER}.ipynb": NB, "s4.zip": zipped({"x.ipynb": NB})}


def archive(tmp_path: Path, tree: dict, name: str = "class.zip", **more) -> Path:
    path = tmp_path / name
    path.write_bytes(zipped(tree, **more))
    return path


@pytest.mark.parametrize("top", ["", "submissions/", "作业/第35节/"])
def test_an_archive_with_and_without_a_folder_around_everything(tmp_path, top):
    inbox = archive(tmp_path, {top + name: content for name, content in CLASS.items()})
    assert shape(inbox) == {
        "s1": [f"{top}s1/x.ipynb"],
        "s2": [f"{top}s2/deep/x.ipynb"],
        "s3": [f"{top}s3_{CHAPTER}.ipynb"],
        "s4": [f"{top}s4.zip/x.ipynb"],
    }


@pytest.mark.parametrize(
    "tree, students",
    [
        ({"submissions/s1/x.ipynb": NB, "submissions/s2/x.ipynb": NB, "submissions/s3/": b""}, ["s1", "s2", "s3"]),
        ({"w/s1_35_x.ipynb": NB, "w/s2_35_x.ipynb": NB}, ["s1", "s2"]),
        ({"w/a_123456_789_x.ipynb": NB, "w/note.txt": b""}, ["a_123456"]),
        ({f"w/{MOODLE}_/x.ipynb": NB}, ["Zhang San_12345"]),
        ({"class/s1/x.ipynb": NB}, ["s1"]),  # named as the archive
        ({"s1/x.ipynb": NB}, ["s1"]),
        ({"s1/x.ipynb": NB, "s1/Copy of x.ipynb": NB}, ["s1"]),
        ({"s1/homework/x.ipynb": NB}, ["s1"]),
        ({"s1/src/x.ipynb": NB, "s1/images/a.png": b"", "s1/data/b.csv": b""}, ["s1"]),
        ({f"{MOODLE}_/a/x.ipynb": NB, f"{MOODLE}_/b/x.ipynb": NB}, ["Zhang San_12345"]),
        ({"__MACOSX/w/._x": b"", "w/s1/x.ipynb": NB, "w/s2/x.ipynb": NB}, ["s1", "s2"]),
    ],
)
def test_when_a_single_top_folder_is_peeled_off(tmp_path, tree, students):
    plain = {name: content for name, content in tree.items() if not name.endswith("/")}
    inbox = archive(tmp_path, plain, folders=[name for name in tree if name.endswith("/")])
    assert list(shape(inbox)) == students


def test_a_roster_decides_whether_the_top_folder_is_a_learner(tmp_path):
    inbox = archive(tmp_path, {"s1/a/x.ipynb": NB, "s1/b/x.ipynb": NB})
    assert list(shape(inbox)) == ["a", "b"]
    assert list(shape(inbox, roster(tmp_path, "id\ns1\n"))) == ["s1"]
    inbox = archive(tmp_path, {"w/s1/x.ipynb": NB})
    assert list(shape(inbox, roster(tmp_path, "id\ns1\n"))) == ["s1"]


def test_a_folder_as_the_inbox_is_not_peeled(tmp_path):
    tree = {"only/a/x.ipynb": NB, "only/b/x.ipynb": NB}
    assert list(shape(made(tmp_path / "in", tree))) == ["only"]
    assert list(shape(made(tmp_path / "in", tree), roster(tmp_path, "id\na\nb\n"))) == ["a", "b"]


@pytest.mark.parametrize("encoding", ["utf-8", "gb18030"])
def test_learners_names_in_an_archive_without_the_utf8_flag(tmp_path, encoding):
    tree = {"张三/作业.ipynb": NB, "李四/作业.ipynb": NB}
    assert list(shape(archive(tmp_path, tree, utf8_flag=False, encoding=encoding))) == ["张三", "李四"]


def test_what_an_archive_refuses_is_named_in_the_learners_row(tmp_path):
    tree = {
        "s1/x.ipynb": NB,
        "s1/../../evil.ipynb": NB,
        "s2/l.ipynb": b"/etc/passwd",
        "s3/bomb.ipynb": b"0" * (8 << 20),
    }
    learners = got(archive(tmp_path, tree, links=("s2/l.ipynb",)))
    assert list(learners) == ["s1", "s2", "s3"]
    problems = {name: [file.problem for file in one.files if file.problem] for name, one in learners.items()}
    assert "climbs out" in problems["s1"][0] and learners["s1"].files[-1].data == NB
    assert "link" in problems["s2"][0] and learners["s2"].flags == ("link_ignored",)
    assert "times its size" in problems["s3"][0]
    assert not any(file.data == b"/etc/passwd" for one in learners.values() for file in one.files)


def test_a_learners_archive_that_is_damaged_empty_or_of_another_kind(tmp_path):
    tree = {
        "s1/hw.zip": zipped({"x.ipynb": NB})[:-40],
        "s2/hw.zip": zipped({"report.pdf": b"%PDF"}),
        "s3/hw.rar": b"Rar!\x1a\x07\x00",
        "s4/hw.ipynb": zipped({"x.ipynb": NB}),
        "s5_hw.7z": b"7z\xbc\xaf\x27\x1c\x00",
        "s6/hw.docx": zipped({"[Content_Types].xml": b"", "word/x.ipynb": NB}),
        "s7/hw.zip": zipped({"a.zip": zipped({"b.zip": zipped({"c.zip": zipped({"x.ipynb": NB})})})}),
    }
    learners = got(made(tmp_path / "in", tree))
    reasons = {name: "".join(file.problem for file in one.files) for name, one in learners.items()}
    assert "cut off" in reasons["s1"] and "without a notebook" in reasons["s2"] and "RAR" in reasons["s3"]
    assert reasons["s4"] == "" and learners["s4"].files[0].data == NB
    assert "7-Zip" in reasons["s5"] and learners["s6"].files == () and learners["s6"].others == ("s6/hw.docx",)
    assert "archive in an archive" in reasons["s7"]


# --- which files -----------------------------------------------------------------------------------------------------


def test_notebooks_are_known_by_content_whatever_their_name(tmp_path):
    names = ["a.IPYNB", "b.ipynb.txt", "c.json", "d", "e.dat", "f.ipynb.download", ".ipynb"]
    one = got(made(tmp_path / "in", {f"s1/{name}": NB for name in names}))["s1"]
    assert sorted(file.path for file in one.files) == sorted(f"s1/{name}" for name in names)


def test_other_files_are_no_candidates_but_named(tmp_path):
    others = {
        "data.json": b'{"rows": []}',
        "note.txt": b"hello",
        "a.py": b"import torch",
        "b.csv": b"1,2",
        "c.png": b"\x89PNG",
    }
    one = got(made(tmp_path / "in", {f"s1/{name}": content for name, content in others.items()}))["s1"]
    assert one.files == ()
    assert set(one.others) == {f"s1/{name}" for name in others}


def test_what_claims_to_be_a_notebook_stays_a_candidate(tmp_path):
    tree = {"s1/a.ipynb": b"", "s1/b.ipynb": b"<html>", "s1/c.txt": NB[: len(NB) // 2], "s1/d.ipynb.html": b"<html>"}
    assert len(got(made(tmp_path / "in", tree))["s1"].files) == 4


def test_utf16_without_a_telling_name(tmp_path):
    tree = {"s1/notebook": NB.decode().encode("utf-16"), "s1/note": "{other".encode("utf-16")}
    assert [file.path for file in got(made(tmp_path / "in", tree))["s1"].files] == ["s1/notebook"]


def test_leftovers_are_ignored(tmp_path):
    left = [".ipynb_checkpoints/x-checkpoint.ipynb", "__MACOSX/x.ipynb", "._x.ipynb", ".git/x.ipynb", "Thumbs.db"]
    left += ["desktop.ini", ".DS_Store", "sub/.ipynb_checkpoints/x.ipynb", "~$x.docx", "SUB/__macosx/x.ipynb"]
    tree = {f"s1/{name}": NB for name in left} | {"__MACOSX/s1/x.ipynb": NB, ".DS_Store": b"x", ".hidden/x.ipynb": NB}
    learners = got(made(tmp_path / "in", tree | {"s1/x.ipynb": NB}))
    assert list(learners) == ["s1"]
    assert [file.path for file in learners["s1"].files] == ["s1/x.ipynb"] and learners["s1"].others == ()


def test_links_are_never_followed(tmp_path):
    secret = made(tmp_path / "elsewhere", {"x.ipynb": NB})
    inbox = made(tmp_path / "in", {"s1/x.ipynb": NB, "s3/": b""})
    (inbox / "s1" / "more.ipynb").symlink_to(secret / "x.ipynb")
    (inbox / "s2").symlink_to(secret)
    (inbox / "s3" / "folder").symlink_to(secret)
    (inbox / "s4_x.ipynb").symlink_to(secret / "x.ipynb")
    learners = got(inbox)
    assert list(learners) == ["s1", "s2", "s3", "s4"]
    assert all(one.flags == ("link_ignored",) for one in learners.values())
    assert sum(file.data == NB for one in learners.values() for file in one.files) == 1
    assert "link" in learners["s4"].files[0].problem


def test_pipes_are_not_opened(tmp_path):
    inbox = made(tmp_path / "in", {"s1/x.ipynb": NB})
    os.mkfifo(inbox / "s1" / "pipe.ipynb")
    assert [file.path for file in got(inbox)["s1"].files] == ["s1/x.ipynb"]


def test_too_large_and_unreadable_files_are_named(tmp_path, monkeypatch):
    monkeypatch.setattr(files, "MAX_FILE", 1000)
    inbox = made(
        tmp_path / "in", {"s1/x.ipynb": b"{" + b" " * 2000, "s2/x.ipynb": b"{}", "s3/data.json": b"{" + b" " * 2000}
    )
    real = os.open

    def refuse(path, *arguments, **named):
        if "s2" in str(path):
            raise PermissionError(13, "Permission denied")
        return real(path, *arguments, **named)

    monkeypatch.setattr(os, "open", refuse)
    learners = got(inbox)
    assert "too large" in learners["s1"].files[0].problem and not learners["s1"].files[0].data
    assert learners["s2"].files[0].problem == "it cannot be read: permission denied"
    assert learners["s3"].files == ()


def test_names_in_gbk_bytes_on_disk(tmp_path):
    folder = os.fsencode(tmp_path / "in") + "/张三".encode("gb18030")
    os.makedirs(folder)
    Path(os.fsdecode(folder + b"/x.ipynb")).write_bytes(NB)
    assert shape(tmp_path / "in") == {"张三": ["张三/x.ipynb"]}


# --- inboxes that cannot be used -------------------------------------------------------------------------------------


def test_inboxes_that_cannot_be_used(tmp_path):
    for path, words in [
        (tmp_path / "nowhere", "no such folder"),
        (made(tmp_path / "empty", {}), "no submissions"),
        (made(tmp_path / "loose", {"grades.csv": b"", ".DS_Store": b""}), "no submissions"),
        (archive(tmp_path, {}), "no submissions"),
    ]:
        with pytest.raises(InboxError, match=words) as caught:
            collect(path)
        assert str(path) in str(caught.value)
    (tmp_path / "x.txt").write_text("hello")
    with pytest.raises(InboxError, match="neither a folder nor a zip"):
        collect(tmp_path / "x.txt")
    (tmp_path / "cut.zip").write_bytes(zipped({"s/x.ipynb": NB})[:-40])
    with pytest.raises(InboxError, match="cut off or damaged"):
        collect(tmp_path / "cut.zip")


def test_data_comes_as_it_is(tmp_path):
    content = data(notebook("x = '变量'"))
    assert got(made(tmp_path / "in", {"s/x.ipynb": content}))["s"].files[0].data == content


def test_namesakes_on_a_platform_are_never_put_together(tmp_path):
    for number in (12345, 12346):
        folder = tmp_path / "inbox" / f"张三_{number}_assignsubmission_file_"
        folder.mkdir(parents=True)
        (folder / "hw.ipynb").write_text('{"cells": [], "nbformat": 4}', "utf-8")
    roster = tmp_path / "roster.csv"
    roster.write_text("学号,姓名\n2026001,张三\n2026002,李四\n", "utf-8")
    found = {one.student_id: one for one in collect(tmp_path / "inbox", roster)}
    handed = [one for one in found.values() if not one.missing]
    assert len(handed) == 2 and all(len(one.files) == 1 and "ambiguous_name" in one.flags for one in handed)
    assert {one.student_id for one in found.values() if one.missing} == {"2026001", "2026002"}
