"""Make a class of submissions from the release notebook: `python samples/make_class.py --out DIR`.

Each learner gets a folder in DIR that is named by what it shows. What they wrote and what they should get stands in
learners.json; here is what platforms and people do to the file. The same release always gives the same bytes.
"""

import argparse
import copy
import json
import re
import shutil
from pathlib import Path

HERE = Path(__file__).resolve().parent
TABLE = json.loads((HERE / "learners.json").read_text("utf-8"))
LEARNERS = {learner["student"]: learner for learner in TABLE["learners"]}
MECHANISMS = ("propose", "accept", "verify", "decode")
STUB = re.compile(r'^(\s*)raise NotImplementedError\("TODO (\d+)：')


def expected(*, with_roster: bool = False) -> dict[str, dict[str, str]]:
    """What grading should say of each learner: status, and by mechanism full, lost (a part), zero or '' (no score).

    with_roster: whether the learner who is only on roster.csv counts.
    """
    out = {}
    for student, learner in LEARNERS.items():
        status = learner.get("status", "graded")
        out[student] = {"status": status}
        for mechanism in MECHANISMS:
            out[student][mechanism] = learner.get("lost", {}).get(mechanism, "full") if status == "graded" else ""
    if with_roster:
        out[TABLE["absent"]["student"]] = {"status": "missing"} | dict.fromkeys(MECHANISMS, "")
    return out


def bodies(learner: dict) -> dict[int, str | None]:
    """TODO number -> what the learner wrote there; None where the stub was left."""
    written = TABLE["right"] | learner.get("bodies", {})
    return {int(todo): None if lines is None else "\n".join(lines) for todo, lines in written.items()}


def solved(release: dict, learner: dict) -> dict:
    """The release notebook with the learner's bodies in place of the stubs."""
    notebook, written = copy.deepcopy(release), bodies(learner)
    for cell in notebook["cells"]:
        lines = []
        for line in _text(cell).split("\n"):
            stub = STUB.match(line)
            body = written[int(stub[2])] if stub else None
            lines += [line] if body is None else [stub[1] + part if part else "" for part in body.split("\n")]
        cell["source"] = "\n".join(lines)
    return notebook


def files(release: dict, name: str, learner: dict) -> dict[str, str]:
    """File name -> text of what the learner hands in."""
    notebook = solved(release, learner)
    match learner["form"]:
        case "plain":
            pass
        case "web_page":
            return {f"{name}.ipynb": "<!DOCTYPE html>\n<html><body><form>Sign in to continue</form></body></html>\n"}
        case "empty_file":
            return {f"{name}.ipynb": ""}
        case "renamed_file":
            return {f"“{name}.ipynb”的副本.ipynb": _written(notebook)}
        case "two_versions":
            return {f"{name}.ipynb": _written(release), f"{name} (1).ipynb": _written(notebook)}
        case "metadata_stripped":
            notebook["metadata"] = {}
            for cell in notebook["cells"]:
                cell["metadata"] = {}
        case "edited_tests":
            for cell in notebook["cells"]:
                if cell["metadata"].get("nbgrader", {}).get("grade"):
                    cell["source"] = 'print("✓ 全部通过")'
        case "copied_cell":
            position = _answer(notebook)
            twin = copy.deepcopy(notebook["cells"][position])
            twin["id"] += "-copy"
            notebook["cells"][position]["source"] = _text(release["cells"][position])
            notebook["cells"].insert(position + 1, twin)
        case "helper_cell":
            notebook["cells"].insert(_answer(notebook), _code("my-helper", "\n".join(learner["before"])))
        case "drive_cell":
            mount = "from google.colab import drive\n\ndrive.mount('/content/drive')"
            notebook["cells"].insert(0, _code("mount-drive", mount))
        case "colab_saved":
            _save_as_colab(notebook)
        case form:
            raise ValueError(f"learners.json: {learner['student']} has the unknown form {form!r}")
    return {f"{name}.ipynb": _written(notebook)}


def _save_as_colab(notebook: dict) -> None:
    """Format 4.0, ids moved into the metadata, Colab's own metadata, outputs kept."""
    notebook["nbformat_minor"] = 0
    kernel = {"name": "python3", "display_name": "Python 3"}
    colab = {"provenance": [], "toc_visible": True}
    notebook["metadata"] = {"colab": colab, "kernelspec": kernel, "language_info": {"name": "python"}}
    for number, cell in enumerate(notebook["cells"]):
        cell["metadata"]["id"] = cell.pop("id")
        if cell["cell_type"] == "code":
            cell["metadata"]["colab"] = {"base_uri": "https://localhost:8080/"}
            cell["metadata"]["outputId"] = f"{number:08x}-0000-4000-8000-000000000000"
            cell["metadata"]["executionInfo"] = {"status": "ok", "elapsed": 12, "user_tz": -480}
            cell["outputs"] = [{"output_type": "stream", "name": "stdout", "text": ["✓ 公开检查全部通过\n"]}]
            cell["execution_count"] = number + 1


def _answer(notebook: dict) -> int:
    return next(n for n, cell in enumerate(notebook["cells"]) if cell["metadata"].get("nbgrader", {}).get("solution"))


def _code(cell_id: str, source: str) -> dict:
    empty = {"metadata": {}, "execution_count": None, "outputs": []}
    return {"cell_type": "code", "id": cell_id, "source": source} | empty


def _text(cell: dict) -> str:
    return "".join(cell["source"])


def _written(notebook: dict) -> str:
    return json.dumps(notebook, ensure_ascii=False, indent=1, sort_keys=True) + "\n"


def make(release: Path, out: Path) -> list[Path]:
    """Writes the class's files below `out` and returns their paths; folders of these learners are made anew."""
    notebook, written = json.loads(release.read_text("utf-8")), []
    for student, learner in LEARNERS.items():
        folder = out / student
        if folder.exists():
            shutil.rmtree(folder)
        folder.mkdir(parents=True)
        for name, text in files(notebook, release.stem, learner).items():
            (folder / name).write_text(text, encoding="utf-8")
            written.append(folder / name)
    return written


def readme_table() -> str:
    """The table of README.md."""
    rows = ["| 学习者 | 展示什么 | 应当得到 |", "|---|---|---|"]
    for learner in [*LEARNERS.values(), TABLE["absent"]]:
        rows.append(f"| `{learner['student']}` | {learner['name']} | {learner['result']} |")
    return "\n".join(rows)


def roster() -> str:
    """The text of roster.csv: everyone above and one who handed in nothing."""
    people = [*LEARNERS.values(), TABLE["absent"]]
    return "".join(f"{line}\n" for line in ["student_id,name", *(f"{p['student']},{p['name']}" for p in people)])


def main() -> None:
    parser = argparse.ArgumentParser(description="make a class of sample submissions from the release notebook")
    parser.add_argument("--out", type=Path, required=True, help="folder for the submissions, one folder a learner")
    out = parser.parse_args().out
    (release,) = (HERE.parent / "release").glob("35_*/35_*.ipynb")
    count = len(make(release, out))
    print(f"{len(LEARNERS)} learners, {count} files in {out}")


if __name__ == "__main__":
    main()
