"""The one form in which notebooks are kept, so that a change shows as a small diff.

`problems(nb_text, outputs=...)` names each deviation of one notebook in words; an empty list means that there is none.
"""

import ast
import json
import re

import nbformat

NOTEBOOK_METADATA = {
    "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
    "language_info": {"name": "python"},
}
CELL_METADATA = {"nbgrader", "tags", "deletable", "editable", "jupyter", "cellView"}
TAGS = {"import", "fixture", "instructor", "form", "nbval-ignore-output"}

MAX_ID_LENGTH = 40
WORDS = re.compile(r"[a-z0-9]+(?:[-_][a-z0-9]+)*")
# What editors make up: eight hexadecimal digits, or a UUID.
RANDOM_ID = re.compile(r"[0-9a-f]{8,}")

# Module-level calls after which a cell has something to show, as the text before the parenthesis.
SHOWING = {"print", "display", "plt.subplots", "plt.figure", "plt.show"}


def problems(nb_text: str, *, outputs: bool) -> list[str]:
    """Name what keeps a notebook's text from the normal form.

    `outputs` says which kind of notebook it is: True for one that is published executed, False for one that holds
    no outputs.
    """
    try:
        raw = json.loads(nb_text)
    except json.JSONDecodeError as error:
        return [f"not JSON: {error}"]
    if not isinstance(raw, dict) or (raw.get("nbformat"), raw.get("nbformat_minor")) != (4, 5):
        return ["not nbformat 4.5"]
    # First, since nbformat quietly makes up an id where one is missing or repeated.
    ids = [cell.get("id") for cell in raw["cells"]]
    found = [f"cell {number} has no id" for number, cell_id in enumerate(ids) if cell_id is None]
    repeated = [cell_id for cell_id in dict.fromkeys(ids) if cell_id is not None and ids.count(cell_id) > 1]
    found += [f"cell id {cell_id} is used twice" for cell_id in repeated]
    if found:
        return found
    notebook = nbformat.from_dict(raw)
    try:
        nbformat.validate(notebook)
    except nbformat.ValidationError as error:
        return [f"not a valid notebook: {str(error).splitlines()[0]}"]

    if raw["metadata"] != NOTEBOOK_METADATA:
        found.append(f"notebook metadata is not exactly {json.dumps(NOTEBOOK_METADATA)}")
    for cell in raw["cells"]:
        found += _id_problems(cell["id"])
        in_cell = _metadata_problems(cell["metadata"])
        if cell["cell_type"] == "code":
            in_cell += _published_problems(cell) if outputs else _blank_problems(cell)
        found += [f"cell {cell['id']}: {problem}" for problem in in_cell]
    if outputs:
        found += _order_problems(raw["cells"])
    if nb_text != nbformat.writes(notebook) + "\n":
        found.append("text is not what nbformat writes (indent 1, sorted keys, no escapes, a newline at the end)")
    return found


def _id_problems(cell_id: str) -> list[str]:
    found = []
    if len(cell_id) > MAX_ID_LENGTH:
        found.append(f"cell id {cell_id} is longer than {MAX_ID_LENGTH} characters")
    if not WORDS.fullmatch(cell_id):
        found.append(f"cell id {cell_id} is not lower-case words joined by - or _")
    elif RANDOM_ID.fullmatch(re.sub("[-_]", "", cell_id)):
        found.append(f"cell id {cell_id} looks random")
    return found


def _metadata_problems(metadata: dict) -> list[str]:
    found = [f"metadata key {key} is not allowed" for key in sorted(set(metadata) - CELL_METADATA)]
    return found + [f"tag {tag} is not allowed" for tag in metadata.get("tags", []) if tag not in TAGS]


def _blank_problems(cell: dict) -> list[str]:
    found = []
    if cell["outputs"]:
        found.append("has outputs")
    if cell["execution_count"] is not None:
        found.append("has an execution count")
    return found


def _published_problems(cell: dict) -> list[str]:
    source = "".join(cell["source"])
    if not source.strip():
        return []
    found = []
    if cell["execution_count"] is None:
        found.append("was not executed")
    elif not cell["outputs"] and _shows(source):
        found.append("prints or plots, but has no outputs")
    if any(output["output_type"] == "error" for output in cell["outputs"]):
        found.append("ended in an error")
    if any(output.get("name") == "stderr" for output in cell["outputs"]):
        found.append("wrote to stderr")
    return found


def _order_problems(cells: list[dict]) -> list[str]:
    # Gaps are fine: cells that ran may have been left out when the notebook was published.
    counts = [cell["execution_count"] for cell in cells if cell.get("execution_count") is not None]
    if all(earlier < later for earlier, later in zip(counts, counts[1:], strict=False)):
        return []
    return ["execution counts do not rise from top to bottom"]


def _shows(source: str) -> bool:
    """Whether running a cell surely prints or plots, from its module-level statements, loops and `with` included.

    What stands in a function, a class or behind a condition may not run, so it does not count.
    """
    # Magics and shell lines are not Python; `pass` keeps the block around them valid.
    plain = re.sub(r"^(\s*)[%!].*$", r"\1pass", source, flags=re.MULTILINE)
    try:
        statements = list(ast.parse(plain).body)
    except SyntaxError:
        return False
    calls = set()
    while statements:
        statement = statements.pop()
        if isinstance(statement, ast.For | ast.With):
            statements += statement.body
        elif isinstance(statement, ast.Expr | ast.Assign) and isinstance(statement.value, ast.Call):
            calls.add(ast.unparse(statement.value.func))
    return "plt.close" not in calls and bool(calls & SHOWING)
