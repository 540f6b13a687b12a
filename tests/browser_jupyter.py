"""A JupyterLab server of a test's own: a free port, a token, and a home apart from the user's."""

import contextlib
import json
import os
import secrets
import subprocess
import sys
import time
import urllib.error
import urllib.request
from dataclasses import dataclass
from pathlib import Path

START_SECONDS = 90  # a busy machine with two cores imports for half a minute
APPUTILS = "lab/user-settings/@jupyterlab/apputils-extension"


@dataclass
class Jupyter:
    """A running server: its address (no slash at the end), its token, its log file, its home folder."""

    address: str
    token: str
    log: Path
    home: Path

    def url(self, path: str) -> str:
        return f"{self.address}/{path}?token={self.token}"

    def get(self, path: str):
        """What the server's REST API answers, from JSON."""
        with urllib.request.urlopen(self.url(path), timeout=30) as answer:
            return json.load(answer)

    def set_theme(self, theme: str) -> None:
        """The theme of every page opened from now on, such as `JupyterLab Dark`."""
        _write(self.home / "config" / APPUTILS / "themes.jupyterlab-settings", {"theme": theme})


def _write(path: Path, content: dict) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content), "utf-8")


def _environment(home: Path) -> dict[str, str]:
    """This process's environment with every folder that Jupyter and IPython may use below `home`."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("JUPYTER", "IPYTHON", "XDG_"))}
    folders = {
        "HOME": home,
        "JUPYTER_CONFIG_DIR": home / "config",
        "JUPYTER_DATA_DIR": home / "data",
        "JUPYTER_RUNTIME_DIR": home / "runtime",
        "IPYTHONDIR": home / "ipython",
        "MPLCONFIGDIR": home / "matplotlib",
    }
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"  # nbgrader starts `alembic`
    return kept | {name: str(folder) for name, folder in folders.items()} | {"PATH": path}


@contextlib.contextmanager
def serve(folder: Path, home: Path):
    """JupyterLab on `folder`, ended with the block. Yields a Jupyter; raises RuntimeError if it does not come up."""
    token, log = secrets.token_hex(16), home / "jupyter.log"
    # No announcements over the page, no questions to other hosts.
    quiet = {"fetchNews": "false", "checkForUpdates": False}
    _write(home / "config" / APPUTILS / "notification.jupyterlab-settings", quiet)
    command = [sys.executable, "-m", "jupyterlab", "--no-browser", "--ip=127.0.0.1", "--port=0"]
    command += [f"--IdentityProvider.token={token}", f"--ServerApp.root_dir={folder}"]
    command.append("--LanguageServerManager.autodetect=False")  # it would start npm to look for language servers
    if os.geteuid() == 0:
        command.append("--allow-root")
    with log.open("wb") as output:
        process = subprocess.Popen(
            command, cwd=folder, env=_environment(home), stdout=output, stderr=subprocess.STDOUT, start_new_session=True
        )
    try:
        yield Jupyter(_address(process, home / "runtime", token, log), token, log, home)
    finally:
        process.terminate()  # the server ends its kernels
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _address(process: subprocess.Popen, runtime: Path, token: str, log: Path) -> str:
    """Where the server listens, once it answers: it chose the port, and wrote it into its runtime folder."""
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline and process.poll() is None:
        with contextlib.suppress(OSError, ValueError, urllib.error.URLError):
            port = json.loads((runtime / f"jpserver-{process.pid}.json").read_text("utf-8"))["port"]
            address = f"http://127.0.0.1:{port}"
            urllib.request.urlopen(f"{address}/api/status?token={token}", timeout=5).close()
            return address
        time.sleep(0.2)
    ended = f"ended with status {process.poll()}" if process.poll() is not None else f"not up in {START_SECONDS} s"
    raise RuntimeError(f"JupyterLab {ended}; the end of its log, {log}:\n{log.read_text('utf-8', 'replace')[-2000:]}")
