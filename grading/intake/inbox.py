"""Who handed in what: an inbox, in any of the shapes that learning platforms make, as one Handed for every learner.

Shapes, mixtures of them included: a folder for each learner; files whose names begin with the learner; Moodle's and
Canvas' names; a zip archive for a learner; a zip archive of any of these as the inbox.

An archive's single top folder that wraps everything is peeled off when it is not itself a learner's. The roster and the
platforms' names decide; without them it wraps if what it holds (folders with a notebook, archives, files whose names
begin with a learner) is of two or more learners, or is such a folder again, or if it is named as the archive. An inbox
that is a folder is taken as it stands, unless roster or platform say otherwise.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path

from grading import chapter
from grading.intake import archive, files, naming
from grading.intake.files import Entry
from grading.intake.naming import Owner
from grading.intake.roster import InboxError, Roster, load

__all__ = ["File", "Handed", "InboxError", "collect"]

MAX_OTHERS = 20
MAYBE_NOTEBOOK = ("", ".zip", ".json", ".txt")
DOCUMENTS = (".pdf", ".docx", ".doc", ".html", ".htm", ".py", ".md", ".wps", ".txt")


@dataclass(frozen=True)
class File:
    """A notebook, or what claims to be one. path: relative to the inbox, for display.

    problem: in words why it cannot even be read; '' if it could.
    """

    path: str
    data: bytes = b""
    problem: str = ""


@dataclass(frozen=True)
class Handed:
    """What one learner handed in. others: paths of files that are no notebooks, so that a reason can name them."""

    student_id: str
    files: tuple[File, ...] = ()
    flags: tuple[str, ...] = ()
    missing: bool = False
    others: tuple[str, ...] = ()


@dataclass
class _Pile:
    """All of one learner while an inbox is sorted. names: the ids that its files go by; listed: on the roster."""

    id: str
    listed: bool
    names: list[str] = field(default_factory=list)
    entries: list[Entry] = field(default_factory=list)
    flags: list[str] = field(default_factory=list)


def collect(inbox: Path, roster: Path | None = None) -> list[Handed]:
    """What every learner handed in, by student id. Raises InboxError for an inbox or a roster that cannot be used."""
    listed = load(roster) if roster is not None else None
    chapters = tuple(path.stem for path in chapter.find())
    entries = _peeled(_entries(inbox), listed, chapters, inbox)
    piles: dict[str, _Pile] = {}
    prefix = _common_prefix(entries, chapters)
    owned = []
    for entry in entries:
        owner = _owner(entry, listed, chapters)
        if owner is None:
            continue
        if prefix and owner.id == prefix and len(entry.parts) == 1:
            owner = replace(owner, id=owner.who)
        owned.append((entry, owner))
    owned = _agreed(owned)
    namesakes = _namesakes({owner for _, owner in owned}, listed)
    for entry, owner in owned:
        matched = listed.match(owner) if listed is not None and owner not in namesakes else None
        student = matched or owner.id
        pile = piles.setdefault(naming.same(student), _Pile(student, matched is not None))
        pile.entries.append(entry)
        if owner.id not in pile.names:
            pile.names.append(owner.id)
        if owner.late:
            pile.flags.append("late")
        if owner in namesakes:
            pile.flags.append("ambiguous_name")
        elif owner.typed and matched and listed.only_typed(owner):
            pile.flags.append("id_from_file_name")
    if not piles:
        raise InboxError(f"{inbox}: no submissions in it")
    missing = [one for one in listed.ids if naming.same(one) not in piles] if listed is not None else []
    ids = _ids([pile.id for pile in piles.values()] + missing)
    handed = [_handed(ids[pile.id], pile, listed is not None) for pile in piles.values()]
    handed += [Handed(ids[one], missing=True) for one in missing]
    return sorted(handed, key=lambda one: one.student_id)


def _agreed(owned: list[tuple[Entry, Owner]]) -> list[tuple[Entry, Owner]]:
    """All files of one whom a platform names with the number that these files' names agree on, or with none."""
    typed: dict[str, set[str]] = {}
    for _, owner in owned:
        if owner.platform:
            typed.setdefault(owner.id, set()).update(filter(None, [owner.typed]))
    one = {name: next(iter(found)) if len(found) == 1 else "" for name, found in typed.items()}
    return [(entry, replace(owner, typed=one[owner.id]) if owner.platform else owner) for entry, owner in owned]


def _namesakes(owners: set[Owner], roster: Roster | None) -> set[Owner]:
    """Learners whom a platform tells apart by number and who would be the same one on the roster, by a name that they
    share or by a number that one of them typed.

    None of them is then taken for the one on the roster, but for whom the roster knows by the platform's own number or
    id: two people's work is never put together.
    """
    claims: dict[str, set[Owner]] = {}
    for owner in owners:
        if roster is not None and owner.platform and (one := roster.match(owner)):
            claims.setdefault(one, set()).add(owner)
    several = [found for found in claims.values() if len({owner.id for owner in found}) > 1]
    return {owner for found in several for owner in found if not roster.knows(owner)}


def _common_prefix(entries: list[Entry], chapters: tuple[str, ...]) -> str:
    """The beginning that all loose notebooks have in common, if there are many: it tells no learner from another."""
    owners = [naming.file_owner(one.parts[0], chapters) for one in entries if len(one.parts) == 1 and _matters(one)]
    same = len({owner.id for owner in owners}) == 1 and len({owner.who for owner in owners}) > 2
    return owners[0].id if same and not owners[0].platform else ""


def _entries(inbox: Path) -> list[Entry]:
    try:
        if inbox.is_dir():
            found = list(files.of_folder(inbox))
        elif inbox.is_file():
            with inbox.open("rb") as file:
                if not archive.is_archive(inbox.name, file.read(files.HEAD)):
                    raise InboxError(f"{inbox}: neither a folder nor a zip archive")
            found = list(files.of_archive(inbox, archive.CLASS))
        else:
            raise InboxError(f"{inbox}: there is no such folder or zip archive")
    except archive.BadArchive as error:
        raise InboxError(f"{inbox}: {error}") from None
    except OSError as error:
        raise InboxError(f"{inbox}: {error.strerror or error}") from None
    return [part for entry in found for part in _class_archive(entry)]


def _class_archive(entry: Entry) -> list[Entry]:
    """An archive beside learners' folders that a platform made of several learners, as its entries; others as such."""
    if len(entry.parts) > 1 or not entry.data or not archive.is_archive(entry.path, entry.data):
        return [entry]
    try:
        inside = list(files.of_archive(entry.data, archive.CLASS, entry.path))
    except archive.BadArchive:
        return [entry]
    owners = [naming.platform_owner(part.parts[0]) for part in inside]
    several = None not in owners and len({owner.id for owner in owners if owner}) > 1
    return inside if several else [entry]


def _matters(entry: Entry) -> bool:
    """Whether a file is, or claims to be, a notebook or an archive."""
    if entry.folder:
        return False
    if entry.problem or entry.link:
        return files.claims_notebook(entry.path) or Path(entry.path).suffix.lower() == ".zip"
    if not entry.data:
        return files.claims_notebook(entry.path)
    return (
        archive.is_archive(entry.path, entry.data)
        or bool(files.closed_archive(entry.data))
        or files.is_candidate(entry.path, entry.data)
    )


def _peeled(entries: list[Entry], roster: Roster | None, chapters: tuple[str, ...], inbox: Path) -> list[Entry]:
    while True:
        folders = {entry.parts[0] for entry in entries if len(entry.parts) > 1 or entry.folder}
        loose = any(len(entry.parts) == 1 and _matters(entry) for entry in entries)
        if len(folders) != 1 or loose or not _wraps(next(iter(folders)), entries, roster, chapters, inbox):
            return entries
        entries = _below(entries)


def _below(entries: list[Entry]) -> list[Entry]:
    return [replace(entry, parts=entry.parts[1:]) for entry in entries if len(entry.parts) > 1]


def _wraps(
    top: str, entries: list[Entry], roster: Roster | None, chapters: tuple[str, ...], inbox: Path, levels: int = 3
) -> bool:
    """Whether the single top folder only holds the learners (see above); looked at are so many levels."""
    if naming.platform_owner(top) or (roster is not None and roster.match(naming.folder_owner(top))):
        return False
    below = [entry for entry in entries if len(entry.parts) > 1]
    folders = {entry.parts[1] for entry in below if len(entry.parts) > 2 or entry.folder}
    direct = {entry.parts[1] for entry in below if len(entry.parts) == 2 and _matters(entry)}
    owners = [naming.folder_owner(name) for name in folders] + [naming.file_owner(name, chapters) for name in direct]
    if any(owner.platform or (roster is not None and roster.match(owner)) for owner in owners):
        return True
    if inbox.is_dir():
        return False
    holding = {entry.parts[1] for entry in below if len(entry.parts) > 2 and _matters(entry)}
    archives = {e.parts[1] for e in below if len(e.parts) == 2 and e.data and archive.is_archive(e.path, e.data)}
    told = {name: naming.file_owner(name, chapters).id for name in direct - archives}
    if any(student == naming.bare(name) for name, student in told.items()):
        return False  # a notebook that lies in its learner's folder
    if len(holding | archives | set(told.values())) > 1 or (folders and top == inbox.stem):
        return True
    if len(folders) != 1 or direct or levels == 0:
        return False
    return _wraps(next(iter(folders)), _below(below), roster, chapters, inbox, levels - 1)


def _owner(entry: Entry, roster: Roster | None, chapters: tuple[str, ...]) -> Owner | None:
    """Whose an entry is; None for a loose file that nobody handed in."""
    top = entry.parts[0]
    if len(entry.parts) > 1 or entry.folder:
        return naming.folder_owner(top)
    if entry.link and not Path(top).suffix:
        return naming.folder_owner(top)
    owner = naming.file_owner(top, chapters)
    if _matters(entry) or owner.platform or entry.problem.startswith("the folder"):
        return owner
    listed = roster is not None and roster.match(owner) is not None
    numbered = sum(char.isdigit() for char in owner.id) >= 4
    return owner if (listed or numbered) and Path(top).suffix.lower() in DOCUMENTS else None


def _ids(raw: Iterable[str]) -> dict[str, str]:
    """A safe id for each raw one, all distinct, on a system that ignores case too; an id that is safe already stays."""
    out, taken = {}, set()
    for one in sorted(raw, key=lambda text: (naming.safe(text) != text, text)):
        name = naming.safe(one)
        if name.casefold() in taken:
            name = f"{name[: naming.MAX_ID - 9]}-{naming.digest(one)}"
        taken.add(name.casefold())
        out[one] = name
    return out


def _handed(student_id: str, pile: _Pile, roster: bool) -> Handed:
    found: dict[str, File] = {}
    others: list[str] = []
    flags = list(pile.flags)
    for entry in pile.entries:
        _sort(entry, found, others, flags)
    spellings = [name for name in pile.names if not pile.listed and name != pile.id]
    flags += [f"merged:{naming.safe(name)}" for name in spellings]
    if pile.listed and len({naming.same(name) for name in pile.names}) > 1:
        flags += [f"merged:{naming.safe(name)}" for name in pile.names if naming.same(name) != naming.same(pile.id)]
    if roster and not pile.listed:
        flags.append("not_on_roster")
    kept = tuple(found[path] for path in sorted(found))
    shown = tuple(naming.shown(name) for name in sorted(set(others))[:MAX_OTHERS])
    return Handed(student_id, kept, tuple(dict.fromkeys(flags)), others=shown)


def _sort(entry: Entry, found: dict[str, File], others: list[str], flags: list[str]) -> None:
    """Puts an entry where it belongs; an archive's own entries one by one."""
    path = naming.shown(entry.path)
    if entry.folder:
        return
    if entry.link:
        flags.append("link_ignored")
    if entry.problem:
        refused = "its name" in entry.problem or entry.problem.startswith(("the folder", "the archive"))
        if refused or files.claims_notebook(path) or Path(path).suffix.lower() in MAYBE_NOTEBOOK:
            while path in found:  # a second member of the same name
                path += " "
            if not (entry.link and not files.claims_notebook(path)):
                found[path] = File(path, problem=entry.problem)
    elif archive.is_archive(path, entry.data):
        before = len(found)
        try:
            for inner in files.of_archive(entry.data, base=entry.path):
                _sort(inner, found, others, flags)
            problem = "a zip archive without a notebook in it"
        except archive.BadArchive as error:
            problem = str(error)
        if len(found) == before:
            found[path] = File(path, problem=problem)
    elif kind := files.closed_archive(entry.data):
        found[path] = File(path, problem=kind)
    elif files.is_candidate(path, entry.data):
        found[path] = File(path, entry.data)
    else:
        others.append(path)
