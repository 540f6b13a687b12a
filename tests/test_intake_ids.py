"""Student ids are safe and distinct; a roster names the learners, those included who handed in nothing."""

import pytest
from intake_cases import data, got, made, roster, zipped

from grading.intake import naming
from grading.intake.inbox import InboxError, collect

NB = data()


# --- ids -------------------------------------------------------------------------------------------------------------


def test_spellings_of_one_learner_are_merged_and_flagged(tmp_path):
    tree = {"Alice/a.ipynb": NB, "alice_35.ipynb": NB, "Jose\u0301/a.ipynb": NB, "Jos\u00e9/b.ipynb": NB}
    learners = got(made(tmp_path / "in", tree))
    assert list(learners) == ["Alice", "José"]
    assert learners["Alice"].flags == ("merged:alice",) and len(learners["Alice"].files) == 2
    assert len(learners["José"].files) == 2


def test_one_learner_in_folder_and_file_needs_no_flag(tmp_path):
    one = got(made(tmp_path / "in", {"s1/a.ipynb": NB, "s1_35.ipynb": NB}))["s1"]
    assert len(one.files) == 2 and one.flags == ()


@pytest.mark.parametrize(
    "raw, clean",
    [
        ("张三", "张三"),
        ("a:b", "a_b"),
        ("a\\b*c?", "a_b_c_"),
        ("a\nb\x7f", "a_b_"),
        ("a\u202eb", "a_b"),
        ("..", "unnamed"),
        ("..a", "__a"),
        (" a. ", "a"),
        ("", "unnamed"),
        ("con", "_con"),
    ],
)
def test_safe_ids(raw, clean):
    assert naming.safe(raw) == clean


def test_long_ids_are_short_and_distinct():
    ids = {naming.safe(name) for name in ("x" * 150, "x" * 151, "张" * 150, "张" * 151)}
    assert len(ids) == 4
    assert all(len(one) <= 100 and len(one.encode()) <= 200 for one in ids)


def test_ids_that_collide_after_cleaning_stay_distinct(tmp_path):
    inbox = made(tmp_path / "in", {"a:b/x.ipynb": NB, "a_b/x.ipynb": NB, "a*b/x.ipynb": NB})
    learners = got(inbox)
    assert len(learners) == 3 and "a_b" in learners
    assert [file.path for file in learners["a_b"].files] == ["a_b/x.ipynb"]
    assert all(one.startswith("a_b") and not set(one) & set("/\\:*") for one in learners)


# --- roster ----------------------------------------------------------------------------------------------------------


def test_missing_and_unlisted_learners(tmp_path):
    inbox = made(tmp_path / "in", {"s1/x.ipynb": NB, "s9/x.ipynb": NB})
    learners = got(inbox, roster(tmp_path, "name,student_id\nA,s1\nB,s2\n"))
    assert {name: (one.missing, one.flags) for name, one in learners.items()} == {
        "s1": (False, ()),
        "s2": (True, ()),
        "s9": (False, ("not_on_roster",)),
    }


@pytest.mark.parametrize(
    "text",
    [
        "student_id\n20230001\n",
        "\ufeffid,name\n20230001,x\n",
        "姓名;学号\n张三;20230001\n".encode("gbk"),
        "name\tID\nx\t20230001\n",
        "20230001,张三\n",
        'name,student_id\n"a,\nb",20230001\n\n',
        "sep=;\r\nStudent ID;x\r\n20230001;1\r\n",
        "学号\t姓名\n20230001\t张三\n".encode("utf-16"),
        "２０２３０００１\n",
        "姓名,证件\n张三,20230001\n",
        "Student,ID,SIS User ID\n    Points Possible,,\n张三,20230001,9\n",
        "2026 秋 投机解码班,,\n\n学号,姓名,组\n20230001,张三,1\n",
        "学号,姓名\n20230001.0,张三\n",
    ],
)
def test_rosters_of_many_kinds(tmp_path, text):
    inbox = made(tmp_path / "in", {"20230001/x.ipynb": NB})
    (one,) = collect(inbox, roster(tmp_path, text))
    assert not one.missing and one.flags == ()


@pytest.mark.parametrize(
    "name",
    [
        "20230001 /x.ipynb",
        "20230001_张三/x.ipynb",
        "张三(20230001)/x.ipynb",
        "张三20230001.ipynb",
        "作业35_20230001.ipynb",
        "张三_20230001_assignsubmission_file_/x.ipynb",
        "张三 20230001_77_assignsubmission_file_x.ipynb",
        "zhangsan_20230001_456789_x.ipynb",
        "zhangsan_LATE_20230001_456789_x.ipynb",
        "Zhang San_77_assignsubmission_file_/x.ipynb",
    ],
)
def test_a_submission_gets_the_rosters_id(tmp_path, name):
    inbox = made(tmp_path / "in", {name: NB})
    text = "id,name\n20230001,Zhang San\n2023,\n1,\n35,\n456789,\n"
    found = {one.student_id: one for one in collect(inbox, roster(tmp_path, text))}
    assert not found["20230001"].missing and "not_on_roster" not in found["20230001"].flags
    assert all(one.missing for student, one in found.items() if student != "20230001")


def test_roster_ids_with_separators_and_case(tmp_path):
    tree = {"Zhang_San_35_x.ipynb": NB, "zhang_sanfeng_35_x.ipynb": NB}
    learners = got(made(tmp_path / "in", tree), roster(tmp_path, "id\nzhang_san\nzhang_sanfeng\n"))
    assert {name: len(one.files) for name, one in learners.items()} == {"zhang_san": 1, "zhang_sanfeng": 1}


CANVAS = "wangwu_125_4569_20230003_王五_35_multi_token_decoding.ipynb"


@pytest.mark.parametrize(
    ("text", "flags"),
    [
        ("学号,Canvas ID\n20230003,125\n20230004,126\n", ()),  # the platform's own number in another column
        ("student_id,login\n20230003,wangwu\n", ()),
        ("学号,姓名\n20230003,王五\n", ("id_from_file_name",)),  # nothing but what the learner typed
        ("学号,Canvas ID\n20230003,7\n20230004,7\n", ("id_from_file_name",)),  # a number that tells nobody apart
    ],
)
def test_a_platform_s_own_names_are_found_on_the_roster(tmp_path, text, flags):
    inbox = made(tmp_path / "in", {CANVAS: NB})
    found = {one.student_id: one for one in collect(inbox, roster(tmp_path, text))}
    assert "wangwu_125" not in found and not found["20230003"].missing
    assert tuple(flag for flag in found["20230003"].flags if not flag.startswith("merged")) == flags


def test_a_number_that_was_typed_takes_nobody_s_place(tmp_path):
    """Two of a platform's learners with one number in their files' names, or one with two: all stay apart."""
    twice = {CANVAS: NB, CANVAS.replace("wangwu_125", "liu_126"): NB}
    found = got(made(tmp_path / "a", twice), roster(tmp_path, "学号,姓名\n20230003,王五\n"))
    assert set(found) == {"wangwu_125", "liu_126", "20230003"} and found["20230003"].missing
    assert all("ambiguous_name" in found[one].flags for one in ("wangwu_125", "liu_126"))
    known = roster(tmp_path, "学号,Canvas ID\n20230003,125\n")
    found = got(made(tmp_path / "b", twice), known)
    assert set(found) == {"20230003", "liu_126"} and len(found["20230003"].files) == 1
    both = {CANVAS: NB, CANVAS.replace("4569_20230003", "4570_20230004"): NB}
    text = "学号,姓名\n20230003,王五\n20230004,刘\n"
    found = got(made(tmp_path / "c", both), roster(tmp_path, text))
    assert len(found["wangwu_125"].files) == 2 and found["20230003"].missing and found["20230004"].missing


def test_what_is_no_notebook_has_its_row_with_a_roster_too(tmp_path):
    tree = {
        "20230018_py.py": b"x = 1",
        "20230019_许.pdf": b"%PDF-1.4",
        "20230001/x.ipynb": NB,
        "notes.pdf": b"%PDF-1.4",
    }
    found = got(made(tmp_path / "in", tree), roster(tmp_path, "id\n20230001\n"))
    assert set(found) == {"20230001", "20230018", "20230019"}
    assert found["20230018"].others == ("20230018_py.py",) and "not_on_roster" in found["20230018"].flags


def test_an_ambiguous_name_is_not_guessed(tmp_path):
    inbox = made(tmp_path / "in", {"20230001 and 20230002/x.ipynb": NB})
    learners = got(inbox, roster(tmp_path, "id\n20230001\n20230002\n"))
    assert learners["20230001"].missing and learners["20230002"].missing
    assert learners["20230001 and 20230002"].flags == ("not_on_roster",)


def test_two_submissions_of_one_on_the_roster_are_merged(tmp_path):
    inbox = made(tmp_path / "in", {"20230001/a.ipynb": NB, "张三_20230001.ipynb": NB})
    (one,) = collect(inbox, roster(tmp_path, "id\n20230001\n"))
    assert len(one.files) == 2 and one.flags == ("merged:张三",)


@pytest.mark.parametrize(
    "text, words",
    [
        (b"", "line 1: the file is empty"),
        (b"student_id,name\n", "line 1: a heading"),
        (b"id,name\ns1,A\n,B\n", "line 3: no student id"),
        (b'id,name\ns1,A\n"s2,B\n', "line 3"),
        (b"id\ns1\nab\xff\xff\xfe\n", "line 3: neither UTF-8 nor GBK"),
        (b"id\ns1\n\0\0", "line 3: binary"),
        (zipped({"xl/x": b""}), "an Excel workbook"),
        ("序号,班级,证件号\n1,A,20230001\n2,A,20230002\n".encode(), "line 1: no column .*序号, 班级, 证件号.*Rename"),
        ("姓名,班级,证件号\n张三,A,20230001\n".encode(), "line 1: no column is called student_id"),
    ],
)
def test_bad_rosters_name_file_and_line(tmp_path, text, words):
    path = roster(tmp_path, text)
    with pytest.raises(InboxError, match=words) as caught:
        collect(made(tmp_path / "in", {"s1/x.ipynb": NB}), path)
    assert str(path) in str(caught.value)


def test_a_roster_that_does_not_exist(tmp_path):
    with pytest.raises(InboxError, match="roster .*nowhere.csv"):
        collect(made(tmp_path / "in", {"s1/x.ipynb": NB}), tmp_path / "nowhere.csv")
