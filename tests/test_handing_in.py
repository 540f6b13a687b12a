"""The notebook's last cell: what it finds missing, wherever the notebook runs, and the file that intake recognises."""

import contextlib
import json
import os
import re
import sys
import time
import types
import zipfile
from copy import deepcopy
from pathlib import Path

import pytest
from answers import CHAPTER, CLASS_CELL, REFERENCE, STUBS

from grading.chapter import ROOT, without_hidden
from grading.intake.inbox import collect
from grading.intake.rebuild import rebuild
from grading.release.check import fill_stubs

CELL = next(cell for cell in CHAPTER.cells if cell.id == "handin-check")
CODE = CELL.source[: CELL.source.index("still_missing = ")]
RELEASE = json.loads((ROOT / "release" / CHAPTER.name / f"{CHAPTER.name}.ipynb").read_text("utf-8"))
NAME = f"20230001_张三_{CHAPTER.name}.ipynb"
WHO = ("20230001", "张三")


def notebook_with(bodies=REFERENCE, extra=(), without=()):
    """The released notebook with TODO bodies, the learner's own cells before the class, and cells taken out."""
    notebook = deepcopy(RELEASE)
    for cell in notebook["cells"]:
        cell["source"] = "".join(cell["source"])
    at = next(n for n, cell in enumerate(notebook["cells"]) if cell["id"] == CLASS_CELL.id)
    cell = notebook["cells"][at]
    cell["source"] = fill_stubs(cell["source"], CHAPTER, CLASS_CELL, bodies)
    own = {"cell_type": "code", "metadata": {}, "execution_count": None, "outputs": []}
    notebook["cells"][at:at] = [own | {"id": f"own-{n}", "source": source} for n, source in enumerate(extra)]
    notebook["cells"] = [cell for cell in notebook["cells"] if cell["id"] not in without]
    return notebook


def code_of(notebook):
    return [cell["source"] for cell in notebook["cells"] if cell["cell_type"] == "code"]


class Desk:
    """Where a learner sits: an empty working folder and no platform, unless told."""

    def __init__(self, folder: Path, capsys):
        self.folder, self._capsys = folder, capsys
        self.names = {"__name__": "__main__"}
        exec(CODE, self.names)

    def save(self, notebook, name="homework.ipynb", when=None):
        path = self.folder / name
        path.write_text(json.dumps(notebook, ensure_ascii=False), "utf-8")
        if when is not None:
            os.utime(path, (when, when))
        return path

    def hand_in(self, who=WHO, history=()):
        """(what is missing, all that was printed)"""
        missing = self.names["check_handin"](*who, list(history))
        return missing, self._capsys.readouterr().out


@pytest.fixture
def desk(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("JPY_SESSION_NAME", raising=False)
    for module in [name for name in sys.modules if name == "IPython" or name.startswith("google.colab")]:
        monkeypatch.delitem(sys.modules, module)
    return Desk(tmp_path, capsys)


@pytest.fixture
def colab(monkeypatch):
    """Colab's modules: what they were asked for, and the notebook that they give."""
    asked = types.SimpleNamespace(notebook=None, downloads=[], error=None)

    def blocking_request(what, request, timeout_sec):
        assert what == "get_ipynb" and timeout_sec > 0
        if asked.error:
            raise asked.error
        return {"ipynb": asked.notebook}

    def module(name, **names):
        fake = types.ModuleType(name)
        vars(fake).update(names)
        monkeypatch.setitem(sys.modules, name, fake)
        return fake

    monkeypatch.setitem(sys.modules, "google", types.ModuleType("google"))
    module("google.colab")
    module("google.colab._message", blocking_request=blocking_request)
    module("google.colab.files", download=asked.downloads.append)
    return asked


# --- what is missing --------------------------------------------------------------------------------------------------


def test_a_finished_notebook_is_ready_and_lies_there_under_its_name(desk):
    desk.save(notebook_with())
    missing, said = desk.hand_in()
    assert missing == [] and "都齐了" in said and "5 格通过 5 格" in said
    assert code_of(json.loads((desk.folder / NAME).read_text("utf-8"))) == code_of(notebook_with())


def test_an_untouched_notebook_lacks_everything_and_makes_no_file(desk):
    desk.save(notebook_with({}))
    missing, said = desk.hand_in(("", ""))
    assert [item[:6] for item in missing] == ["学号：在上一", "姓名：在上一", "TODO 1", "TODO 2", "TODO 3"]
    assert "写了 0 处" in said and len(list(desk.folder.iterdir())) == 1


def test_unfinished_work_can_be_handed_in_too(desk):
    desk.save(notebook_with({1: REFERENCE[1], 3: REFERENCE[3]}))
    missing, said = desk.hand_in()
    assert missing == ["TODO 2：还没有写"] and "写了 2 处" in said and (desk.folder / NAME).exists()


@pytest.mark.parametrize("body", [f"{REFERENCE[2]}\n{STUBS[2]}", f"{STUBS[2]}\n{REFERENCE[2]}"], ids=["above", "below"])
def test_a_placeholder_left_beside_the_answer_is_told_from_an_unwritten_one(desk, body):
    desk.save(notebook_with(REFERENCE | {2: body}))
    assert desk.hand_in()[0] == ["TODO 2：写了，但占位的 raise 还在，删掉那一行"]
    desk.save(notebook_with(REFERENCE | {2: f"# {REFERENCE[2]}\n{STUBS[2]}"}))
    assert desk.hand_in()[0] == ["TODO 2：还没有写"]


def test_a_rule_with_a_number_of_one_s_own_is_not_all_green(desk):
    desk.save(notebook_with(REFERENCE | {3: "accepted = target_prob >= draft_prob * 0.6"}))
    missing, _ = desk.hand_in()
    assert [item.split("：")[0] for item in missing] == ["公开检查 verify", "公开检查 decode"]


def test_a_wrong_answer_is_named_by_its_check_with_expected_and_got(desk):
    desk.save(notebook_with(REFERENCE | {1: "proposed = list(draft_tokens)"}))
    missing, _ = desk.hand_in()
    assert missing[0] == "公开检查 propose：没有通过，期望 [10, 20, 30]，得到 [10, 20, 30, 31]"


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ("proposed = draft_tokens[99]", "IndexError：list index"),
        ("raise SystemExit", "SystemExit"),
        ("1 +", "SyntaxError"),
    ],
)
def test_an_answer_that_breaks_is_said_and_does_not_stop_the_cell(desk, body, says):
    desk.save(notebook_with(REFERENCE | {1: body}))
    missing, said = desk.hand_in()
    assert says in said
    assert missing and "都齐了" not in said


def test_a_helper_that_only_the_old_kernel_knows_is_found_out(desk):
    """Run in order in a fresh namespace: what was deleted or moved below the class is not there."""
    late = notebook_with(REFERENCE | {1: "proposed = first(draft_tokens, self.max_proposal_len)"})
    desk.save(late)
    missing, _ = desk.hand_in()
    assert any("propose" in item and "NameError" in item for item in missing)
    helper = "def first(tokens, count):\n    return list(tokens)[:count]"
    desk.save(notebook_with(REFERENCE | {1: "proposed = first(draft_tokens, self.max_proposal_len)"}, [helper]))
    assert desk.hand_in()[0] == []


def test_magics_plots_and_failing_cells_of_one_s_own_do_no_harm(desk):
    extra = ["%matplotlib inline\n!pip list", "%%bash\nexit 1", "1 / 0", "import matplotlib.pyplot as plt\nprint(1)"]
    desk.save(notebook_with(extra=extra))
    missing, said = desk.hand_in()
    assert missing == [] and said.count("留意") == 1 and "“1 / 0”这一格抛出了 ZeroDivisionError" in said


def test_a_deleted_check_is_named(desk):
    desk.save(notebook_with(without=["test-verify-inputs"]))
    missing, _ = desk.hand_in()
    assert missing == ["公开检查 verify：空草稿与不合法的输入：没有找到这一格"]


def test_a_deleted_class_is_named(desk):
    desk.save(notebook_with(without=[CLASS_CELL.id]))
    assert any("没有找到定义 MultiTokenDecoderSim" in item for item in desk.hand_in()[0])


def test_the_checks_that_it_expects_are_the_notebook_s(desk):
    titles = [desk.names["title_of"](source) for source in code_of(notebook_with())]
    assert [title for title in titles if title] == desk.names["TITLES"]
    public = [cell for cell in CHAPTER.tests if not cell.hidden]
    assert len(public) == len(desk.names["TITLES"])


@pytest.mark.parametrize("number", ["", " ", "张三", "12/34", "abc", "1" * 40, "a b1"])
def test_a_number_that_is_none_is_refused(desk, number):
    desk.save(notebook_with())
    missing, said = desk.hand_in((number, "张三"))
    assert missing[0].startswith("学号") and "补好学号" in said and not (desk.folder / NAME).exists()


@pytest.mark.parametrize(
    ("who", "name"),
    [
        (("２０２３０００１", " 张三 "), NAME),
        (("pb2023-01", "Anna  Maria"), f"pb2023-01_Anna-Maria_{CHAPTER.name}.ipynb"),
        (("20230001", "../阿依·古丽?*"), f"20230001_..阿依·古丽_{CHAPTER.name}.ipynb"),
    ],
)
def test_number_and_name_become_a_file_s_name(desk, who, name):
    desk.save(notebook_with())
    assert desk.hand_in(who)[0] == []
    assert (desk.folder / name).is_file()


# --- where the notebook is --------------------------------------------------------------------------------------------


def test_colab_gives_the_open_notebook_and_downloads_the_copy(desk, colab):
    colab.notebook = notebook_with()
    missing, said = desk.hand_in()
    assert missing == [] and "Colab" in said
    assert colab.downloads == [str(desk.folder / NAME)] and Path(colab.downloads[0]).is_file()


def test_colab_that_does_not_answer_falls_back_to_what_was_run(desk, colab):
    colab.error = TimeoutError("no front end")
    missing, said = desk.hand_in(history=code_of(notebook_with()))
    assert missing == [] and "没有核对的" in said and f"改名为 {NAME}" in said and colab.downloads == []


def test_vs_code_and_jupyter_say_where_the_file_is(desk, tmp_path, monkeypatch):
    elsewhere = tmp_path / "deep"
    elsewhere.mkdir()
    path = elsewhere / "mine.ipynb"
    path.write_text(json.dumps(notebook_with()), "utf-8")
    desk.save(notebook_with({}), "untouched.ipynb")
    monkeypatch.setenv("JPY_SESSION_NAME", str(path))
    missing, said = desk.hand_in()
    assert missing == [] and str(path) in said
    monkeypatch.delenv("JPY_SESSION_NAME")
    desk.names["__vsc_ipynb_file__"] = str(path)
    assert desk.hand_in()[0] == []


def test_a_stale_hint_falls_back_to_the_folder(desk, monkeypatch):
    monkeypatch.setenv("JPY_SESSION_NAME", "/nowhere/renamed.ipynb")
    desk.save(notebook_with())
    assert desk.hand_in()[0] == []


def test_of_several_files_the_one_with_the_code_that_was_run_counts(desk):
    desk.save(notebook_with(), "finished.ipynb", when=1_000)
    desk.save(notebook_with({}), "newer.ipynb", when=2_000)
    desk.save({"cells": [], "nbformat": 4}, "another_chapter.ipynb", when=3_000)
    (desk.folder / "broken.ipynb").write_text("{", "utf-8")
    missing, said = desk.hand_in(history=code_of(notebook_with()))
    assert missing == [] and "finished.ipynb（这里有 2 份" in said
    assert "newer.ipynb" in desk.hand_in()[1], "nothing was run: the latest"


@pytest.mark.parametrize("cut", [0, 100])
def test_a_file_that_is_just_being_saved_is_read_when_it_is_whole(desk, monkeypatch, cut):
    path = desk.save(notebook_with())
    whole = path.read_bytes()
    path.write_bytes(whole[:cut])
    monkeypatch.setattr(time, "sleep", lambda seconds: path.write_bytes(whole))
    missing, said = desk.hand_in()
    assert missing == [] and path.name in said and (desk.folder / NAME).exists()


def test_last_time_s_copy_is_not_taken_for_the_notebook(desk):
    desk.save(notebook_with({}), when=2_000)
    assert desk.hand_in()[0] != []
    desk.save(notebook_with(), when=1_000)
    assert desk.hand_in()[0] == []


def test_a_file_that_was_not_saved_is_not_offered(desk):
    desk.save(notebook_with({}))
    missing, said = desk.hand_in(history=code_of(notebook_with()))
    assert missing[0].startswith("保存") and "Ctrl+S" in missing[0] and not (desk.folder / NAME).exists()
    assert "要交的文件：" not in said


def test_without_a_file_what_was_run_is_checked_and_the_rest_is_told(desk):
    history = ["x = 1", "import torch", *code_of(notebook_with({})), *code_of(notebook_with())]
    missing, said = desk.hand_in(history=history)
    assert missing == [] and "检查的是：这次运行过的格子" in said
    assert "没有核对的" in said and f"改名为 {NAME}" in said and list(desk.folder.iterdir()) == []


def test_without_a_file_what_was_not_run_is_named(desk):
    history = [source for source in code_of(notebook_with()) if "公开检查 · accept" not in source]
    assert desk.hand_in(history=history)[0] == ["公开检查 accept：没有找到这一格，先运行它"]
    assert "没有找到定义" in desk.hand_in(history=[])[0][0]


def test_a_helper_that_was_run_counts_without_a_file(desk):
    helper = "def first(tokens, count):\n    return list(tokens)[:count]\n\nfirst([], undefined)"
    body = "proposed = first(draft_tokens, self.max_proposal_len)"
    history = code_of(notebook_with(REFERENCE | {1: body}, [helper]))
    assert desk.hand_in(history=history)[0] == []


def test_where_nothing_can_be_written_the_menu_is_the_way(desk, monkeypatch):
    desk.save(notebook_with())

    def refuse(*arguments, **options):
        raise OSError(30, "Read-only file system")

    monkeypatch.setattr(Path, "write_text", refuse)
    missing, said = desk.hand_in()
    assert missing == [] and "不能写文件" in said and f"改名为 {NAME}" in said


def test_jupyter_gets_a_link_that_downloads(desk, monkeypatch):
    shown = []
    fake = types.ModuleType("IPython.display")
    fake.HTML, fake.display = str, shown.append
    monkeypatch.setitem(sys.modules, "IPython", types.ModuleType("IPython"))
    monkeypatch.setitem(sys.modules, "IPython.display", fake)
    desk.save(notebook_with())
    desk.hand_in()
    (link,) = shown
    assert f'href="{NAME}"' in link and f'download="{NAME}"' in link


def test_history_is_what_was_typed(desk):
    assert desk.names["history_of"]({}) == []
    assert desk.names["history_of"]({"In": ["", "a"]}) == ["", "a"]
    manager = types.SimpleNamespace(input_hist_raw=["", "%time a"])
    shell = types.SimpleNamespace(history_manager=manager)
    assert desk.names["history_of"]({"In": ["", "get_ipython()…"], "get_ipython": lambda: shell}) == ["", "%time a"]


# --- the file at the instructor's -------------------------------------------------------------------------------------


def handed(folder, roster=None):
    return {one.student_id: one for one in collect(folder, roster)}


@pytest.mark.parametrize("name", ["张三", "阿依·古丽", "Anna-Maria", "欧阳 锋"])
def test_intake_takes_the_number_from_the_file_s_name(desk, tmp_path, name):
    desk.save(notebook_with())
    desk.hand_in(("20230001", name))
    inbox = tmp_path / "inbox"
    inbox.mkdir()
    (made,) = [path for path in desk.folder.glob("2023*.ipynb")]
    made.rename(inbox / made.name)
    assert list(handed(inbox)) == ["20230001"]


@pytest.mark.parametrize("decorated", ["{} (1).ipynb", "“{}.ipynb”的副本.ipynb", "{}.ipynb.txt", "{}.IPYNB"])
def test_a_decorated_name_is_recognised_too(tmp_path, decorated):
    stem = NAME.removesuffix(".ipynb")
    (tmp_path / decorated.format(stem)).write_text(json.dumps(notebook_with()), "utf-8")
    assert list(handed(tmp_path)) == ["20230001"]


def test_from_a_zip_and_with_a_roster(tmp_path):
    archive = tmp_path / "class.zip"
    with zipfile.ZipFile(archive, "w") as file:
        for number, name in (("20230001", "张三"), ("PB20230002", "李四"), ("20230003", "张三")):
            file.writestr(f"{number}_{name}_{CHAPTER.name}.ipynb", json.dumps(notebook_with()))
    assert list(handed(archive)) == ["20230001", "20230003", "PB20230002"]
    roster = tmp_path / "roster.csv"
    roster.write_text("学号,姓名\n20230001,张三\n20230003,张三\npb20230002,李四\n20230004,王五\n", "utf-8")
    found = handed(archive, roster)
    assert list(found) == ["20230001", "20230003", "20230004", "pb20230002"] and found["20230004"].missing
    assert all(one.flags == () for one in found.values())


def test_a_number_before_other_words_than_the_chapter_s_is_as_before(tmp_path):
    for name in (f"zhang_san_{CHAPTER.name}.ipynb", f"li4_{CHAPTER.name}.ipynb", f"2_班_{CHAPTER.name}.ipynb"):
        (tmp_path / name).write_text("{}", "utf-8")
    assert set(handed(tmp_path)) == {"zhang_san", "li4", "2_班"}


def filled(notebook, number="20230001"):
    cell = next(cell for cell in notebook["cells"] if cell["id"] == "handin-who")
    cell["source"] = cell["source"].replace('student_id = ""', f'student_id = "{number}"')
    assert number in cell["source"]
    return notebook


def test_a_filled_in_form_is_no_edited_cell():
    release = json.loads(json.dumps(RELEASE))
    flags = rebuild(CHAPTER, release, filled(notebook_with())).plan.flags
    assert flags == ()
    edited = filled(notebook_with())
    next(cell for cell in edited["cells"] if cell["id"] == "handin-who")["source"] += "\nsecret = 1"
    assert "instructor_cell_edited:handin-who" in rebuild(CHAPTER, release, edited).plan.flags


def test_the_cell_runs_by_itself_in_a_plain_namespace(desk, capsys):
    with contextlib.suppress(NameError):
        exec(without_hidden(CELL.source), {"__name__": "__main__"})
    assert "还缺" in capsys.readouterr().out


def test_public_titles_are_unique():
    titles = re.findall(r"^# 公开检查 · ([^（\n]+)（", "\n".join(cell.source for cell in CHAPTER.tests), re.MULTILINE)
    assert len(titles) == len(set(titles)) == 5
