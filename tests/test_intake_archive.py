"""Zip archives from strangers: each member that is refused is named with a reason, and the others go on."""

import io
import struct
import zipfile

import pytest
from intake_cases import zipped

from grading.intake import archive
from grading.intake.archive import BadArchive, Limits, read

GOOD = {"a/good.ipynb": b"{}"}


def by_name(data: bytes, **limits) -> dict[str, archive.Member]:
    return {member.name: member for member in read(data, Limits(**limits))}


@pytest.mark.parametrize(
    "name, reason",
    [
        ("../evil.ipynb", "climbs out"),
        ("a/../../evil.ipynb", "climbs out"),
        ("..\\evil.ipynb", "climbs out"),
        ("a\\..\\..\\evil.ipynb", "climbs out"),
        ("/etc/evil.ipynb", "absolute"),
        ("\\\\host\\share\\evil.ipynb", "absolute"),
        ("C:\\evil.ipynb", "absolute"),
        ("c:evil.ipynb", "absolute"),
        ("x" * 2000 + ".ipynb", "too long"),
    ],
)
def test_names_that_climb_out_are_refused_and_the_rest_goes_on(name, reason):
    members = by_name(zipped({name: b"{}"} | GOOD))
    (bad,) = [member for member in members.values() if member.problem]
    assert reason in bad.problem and bad.data == b"" and bad.name == name.replace("\\", "/")
    assert members["a/good.ipynb"] == archive.Member("a/good.ipynb", b"{}")


def test_backslashes_that_stay_inside_are_folders():
    """Windows PowerShell writes them."""
    assert by_name(zipped({"s1\\hw\\x.ipynb": b"{}"}))["s1/hw/x.ipynb"].data == b"{}"


def test_links_are_refused():
    members = by_name(zipped({"l.ipynb": b"/etc/passwd"} | GOOD, links=("l.ipynb",)))
    assert members["l.ipynb"].problem == archive.LINK and not members["l.ipynb"].data
    assert not members["a/good.ipynb"].problem


def test_encrypted_members_are_refused():
    data = bytearray(zipped({"secret.ipynb": b"{}"} | GOOD))
    data[6] |= 1  # the local header's flags
    data[data.index(b"PK\x01\x02") + 8] |= 1  # the directory's
    members = by_name(bytes(data))
    assert members["secret.ipynb"].problem == "encrypted" and not members["a/good.ipynb"].problem


def test_a_wrong_checksum_costs_one_member():
    stored = io.BytesIO()
    with zipfile.ZipFile(stored, "w", zipfile.ZIP_STORED) as made:
        made.writestr("bad.ipynb", b"AAAA")
        made.writestr("good.ipynb", b"BBBB")
    members = by_name(stored.getvalue().replace(b"AAAA", b"AXAA"))
    assert "checksum" in members["bad.ipynb"].problem and members["good.ipynb"].data == b"BBBB"


def test_an_unknown_method_costs_one_member():
    data = bytearray(zipped({"odd.ipynb": b"{}"} | GOOD))
    at = data.index(b"PK\x01\x02") + 10
    data[at : at + 2] = struct.pack("<H", 97)
    members = by_name(bytes(data))
    assert "method" in members["odd.ipynb"].problem and not members["a/good.ipynb"].problem


@pytest.mark.parametrize(
    "data", [b"PK\x03\x04 nonsense", zipped(GOOD)[:-30], zipped(GOOD)[: len(zipped(GOOD)) // 2], b""]
)
def test_cut_off_archives_are_refused_whole(data):
    with pytest.raises(BadArchive, match="cut off or damaged"):
        read(data)


def test_bombs_by_ratio_size_total_and_count():
    big = b"0" * (6 << 20)
    members = by_name(zipped({"bomb.ipynb": big} | GOOD))
    assert "times its size" in members["bomb.ipynb"].problem and not members["a/good.ipynb"].problem
    assert "too large" in by_name(zipped({"x": b"0" * 5000}), member_bytes=4096)["x"].problem
    members = by_name(zipped({name: b"0" * 900 for name in "abc"} | GOOD), total_bytes=2000)
    assert [bool(members[name].problem) for name in ("a", "b", "c", "a/good.ipynb")] == [False, False, True, False]
    members = read(zipped({f"{n}": b"" for n in range(10)}), Limits(members=4))
    assert len(members) == 5 and "more than 4 members" in members[-1].problem


def test_repeated_output_is_no_bomb():
    text = b'{"cells": []}' + b"x" * 3_000_000
    assert by_name(zipped({"x.ipynb": text}))["x.ipynb"].data == text


def test_archives_in_archives_down_to_the_second():
    one = zipped(GOOD)
    two, three = zipped({"one.zip": one}), zipped({"two.zip": zipped({"one.zip": one})})
    assert by_name(two)["one.zip/a/good.ipynb"].data == b"{}"
    assert by_name(three)["two.zip/one.zip/a/good.ipynb"].data == b"{}"
    (member,) = read(zipped({"three.zip": three}))
    assert member.name == "three.zip/two.zip/one.zip" and "archive in an archive" in member.problem


def test_limits_count_over_nested_archives():
    inner = zipped({f"{n}.ipynb": b"0" * 900 for n in range(3)})
    members = read(zipped({"a.zip": inner, "b.zip": inner}), Limits(total_bytes=len(inner) * 2 + 4000))
    assert [bool(member.problem) for member in members] == [False] * 4 + [True] * 2


def test_a_damaged_inner_archive_is_named():
    members = by_name(zipped({"in.zip": zipped(GOOD)[:-30]} | GOOD))
    assert "cut off" in members["in.zip"].problem and not members["a/good.ipynb"].problem


def test_of_two_members_with_one_name_the_first_counts():
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w") as out, pytest.warns(UserWarning, match="Duplicate"):
        out.writestr("x.ipynb", b"first")
        out.writestr("x.ipynb", b"second")
    first, second = read(made.getvalue())
    assert first.data == b"first" and second.problem == archive.DOUBLE and not second.data


@pytest.mark.parametrize("encoding, flag", [("utf-8", True), ("utf-8", False), ("gb18030", False)])
def test_names_in_utf8_and_gbk(encoding, flag):
    names = ["张三/第35节作业.ipynb", "李四/答案（最终版）.ipynb", "plain.ipynb"]
    members = by_name(zipped(dict.fromkeys(names, b"{}"), utf8_flag=flag, encoding=encoding))
    assert sorted(members) == sorted(names)


def test_gbk_names_whose_second_byte_is_a_backslash_stay_whole():
    name = "誠/x.ipynb"  # its second byte in GBK is 0x5C
    assert b"\\" in name.encode("gb18030")
    assert list(by_name(zipped({name: b"{}"}, utf8_flag=False, encoding="gb18030"))) == [name]


def test_unicode_path_field_wins_over_the_plain_name():
    import zlib

    raw = "ZhangSan.ipynb"
    field = b"\x01" + struct.pack("<L", zlib.crc32(raw.encode())) + "张三.ipynb".encode()
    info = zipfile.ZipInfo(raw)
    info.extra = struct.pack("<HH", 0x7075, len(field)) + field
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w") as out:
        out.writestr(info, b"{}")
    assert [member.name for member in read(made.getvalue())] == ["张三.ipynb"]


def test_only_what_is_wanted_is_read_beyond_its_head():
    data = zipped({"big.csv": b"1," * 10_000, "x.ipynb": b"{}" * 5_000})
    members = {m.name: m for m in read(data, None, lambda name, head: name.endswith(".ipynb"))}
    assert len(members["big.csv"].data) == archive.HEAD and not members["big.csv"].whole
    assert len(members["x.ipynb"].data) == 10_000


def test_documents_in_zip_form_are_not_archives():
    word = zipped({"[Content_Types].xml": b"<x/>", "word/document.xml": b"<x/>"})
    assert not archive.is_archive("homework.docx", word)
    with pytest.raises(BadArchive, match="Word"):
        read(word)


def test_folders_are_named_with_a_slash():
    assert [m.name for m in read(zipped({}, folders=("s1/",)))] == ["s1/"]
