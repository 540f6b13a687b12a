"""Run one notebook with the kernel of this very Python and say in one line of JSON what came of it.

    python clouds_execute.py NOTEBOOK

Runs in the environments of clouds.py, so it keeps to what Python 3.10 and nbclient have. A cell that fails does not
stop the rest: an unsolved notebook is to show each of its TODOs. Writes nothing.
"""

import json
import sys
import time

import nbformat
from jupyter_client.kernelspec import KernelSpec
from jupyter_client.manager import AsyncKernelManager
from nbclient import NotebookClient

CELL_SECONDS = 900


def own_kernel() -> AsyncKernelManager:
    """A kernel of this Python, whatever kernels the machine has registered."""
    manager = AsyncKernelManager()
    manager._kernel_spec = KernelSpec(argv=[sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"])
    return manager


def main(path: str) -> dict:
    """errors and stderr by cell id, how many pictures were shown, the cells that show one as text only, seconds."""
    notebook = nbformat.read(path, as_version=4)
    for cell in notebook.cells:
        if cell.cell_type == "code":
            cell.outputs = []
    started = time.monotonic()
    NotebookClient(notebook, km=own_kernel(), timeout=CELL_SECONDS, allow_errors=True).execute()
    report = {"errors": [], "stderr": [], "images": 0, "unseen": [], "seconds": time.monotonic() - started}
    for cell in notebook.cells:
        for output in cell.get("outputs", []):
            if output.output_type == "error":
                report["errors"].append({"cell": cell.id, "name": output.ename, "value": output.evalue})
            elif output.output_type == "stream" and output.name == "stderr":
                report["stderr"].append({"cell": cell.id, "text": output.text})
            elif "image/png" in output.get("data", {}):
                report["images"] += 1
            elif output.get("data", {}).get("text/plain", "").startswith("<Figure"):
                report["unseen"].append(cell.id)
    return report


if __name__ == "__main__":
    print(json.dumps(main(sys.argv[1])))
