"""A real IPython shell for learners' cells: magics, `!commands` and displays work, nothing is written to disk."""

from __future__ import annotations

import io
import subprocess
import sys

from IPython.core.error import UsageError
from IPython.core.interactiveshell import InteractiveShell

from . import shims

MAX_OUTPUT = 64_000  # characters kept of a cell's output


class BoundedText(io.TextIOBase):
    """A text stream that keeps its first MAX_OUTPUT characters and drops the rest."""

    encoding = "utf-8"

    def __init__(self):
        self.kept: list[str] = []
        self.room = MAX_OUTPUT
        self.buffer = BoundedBytes(self)

    def write(self, text) -> int:
        if not isinstance(text, str):
            raise TypeError(f"write() argument must be str, not {type(text).__name__}")
        if self.room > 0:
            self.kept.append(text[: self.room])
            self.room -= len(text)
        if self.room <= 0:
            shims.flags.add("output_dropped")
        return len(text)

    def writable(self) -> bool:
        return True

    def isatty(self) -> bool:
        return False

    def take(self) -> str:
        """What was kept since the last call."""
        text = "".join(self.kept)
        self.kept.clear()
        self.room = MAX_OUTPUT
        return text


class BoundedBytes(io.RawIOBase):
    """The `buffer` of a BoundedText."""

    def __init__(self, text: BoundedText):
        self._text = text

    def write(self, data) -> int:
        self._text.write(bytes(data).decode("utf-8", "replace"))
        return len(data)

    def writable(self) -> bool:
        return True


def make_shell() -> InteractiveShell:
    """The shell, made once in the zygote. No history file, no thread, no formatted traceback (0.1 s each)."""
    from traitlets.config import Config

    config = Config()
    config.HistoryManager.enabled = False
    config.HistoryManager.hist_file = ":memory:"
    config.InteractiveShell.ast_node_interactivity = "none"  # nobody looks at a last expression
    config.InteractiveShell.colors = "NoColor"
    config.InteractiveShell.cache_size = 0
    shell = InteractiveShell.instance(config=config)
    shell.showtraceback = lambda *arguments, **named: None
    shell.showsyntaxerror = lambda *arguments, **named: None
    shell.enable_gui = lambda *arguments, **named: None  # a kernel's business; %matplotlib asks for it
    shell.run_line_magic = forgiving(shell.run_line_magic)
    shell.system = run_command
    shell.getoutput = lambda command, *arguments, **named: run_command(command) or []
    return shell


def forgiving(run_line_magic):
    """Line magics of another platform, or for a display that is not there, are skipped: the cell goes on."""

    def run(name, line, *arguments, **named):
        try:
            return run_line_magic(name, line, *arguments, **named)
        except (UsageError, NotImplementedError, ImportError):
            shims.flags.add("magic_skipped")

    return run


def run_command(command: str, **named) -> None:
    """`!command` and `%system`: installers are skipped, other commands run in the box, their output is dropped."""
    if shims.is_install(command):
        shims.flags.add("install_skipped")
        return
    subprocess.run(command, shell=True, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def skip_installs(shell: InteractiveShell) -> None:
    """%pip, %conda and the like do nothing."""

    def skip(line, cell=None):
        shims.flags.add("install_skipped")

    for name in ("pip", "conda", "mamba", "micromamba", "uv"):
        shell.register_magic_function(skip, "line_cell", name)


def redirect() -> BoundedText:
    """Sends this process's output to one bounded stream; returns it."""
    sys.stdout = sys.stderr = stream = BoundedText()
    return stream
