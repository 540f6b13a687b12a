"""Answers for what a notebook may ask of its platform and a sandbox has not got: the cell goes on, a flag says so."""

from __future__ import annotations

import builtins
import getpass
import re
import sys
import types

flags: set[str] = set()  # what was asked for, reported to the judge

INSTALLER = re.compile(r"^\s*(?:sudo\s+)?(?:\S*python\S*\s+-m\s+)?(?:pip3?|uv|conda|mamba|apt|apt-get)\b")
PLATFORMS = ("google.colab", "modelscope_studio", "kaggle_secrets")


class Anything:
    """Stands for any object of a platform: every attribute and every call gives another one; it is empty and false."""

    def __getattr__(self, name):
        if name.startswith("__") and name.endswith("__"):
            raise AttributeError(name)
        return Anything()

    def __call__(self, *arguments, **named):
        return Anything()

    def __iter__(self):
        return iter(())

    def __len__(self):
        return 0

    def __bool__(self):
        return False

    def __getitem__(self, key):
        return Anything()

    def __str__(self):
        return ""

    def __enter__(self):
        return self

    def __exit__(self, *error):
        return False


class PlatformModule(types.ModuleType):
    """A platform's module: whatever is imported from it is an Anything."""

    __path__: list[str] = []

    def __getattr__(self, name):
        if name.startswith("__") and name.endswith("__"):
            raise AttributeError(name)
        flags.add("platform_call")
        return Anything()


class PlatformFinder:
    """Finds the platforms' modules, submodules included; asked last, so that a module that is installed wins."""

    def find_spec(self, name, path=None, target=None):
        if name.startswith(PLATFORMS) or name == "google":
            from importlib.machinery import ModuleSpec

            return ModuleSpec(name, self, is_package=True)
        return None

    def create_module(self, spec):
        return PlatformModule(spec.name)

    def exec_module(self, module):
        return None


def no_input(prompt=""):
    """input() and getpass() without anybody there: an empty line."""
    flags.add("input")
    return ""


def is_install(command: str) -> bool:
    """Whether a shell command installs packages, which needs a network; such a command is skipped."""
    return INSTALLER.match(command) is not None


def cuda_as_cpu() -> None:
    """Makes torch take "cuda" for "cpu" from here on; costs a little on every call, so only where cuda is named."""
    import torch
    from torch.overrides import TorchFunctionMode

    def on_cpu(value):
        if isinstance(value, str) and value.startswith("cuda"):
            flags.add("cuda_as_cpu")
            return "cpu"
        if isinstance(value, torch.device) and value.type == "cuda":
            flags.add("cuda_as_cpu")
            return torch.device("cpu")
        return value

    class OnCpu(TorchFunctionMode):
        def __torch_function__(self, function, kinds, args=(), kwargs=None):
            named = {key: on_cpu(value) for key, value in (kwargs or {}).items()}
            return function(*map(on_cpu, args), **named)

    def stay(self, *arguments, **named):
        flags.add("cuda_as_cpu")
        return self

    torch.Tensor.cuda = stay
    torch.nn.Module.cuda = stay
    OnCpu().__enter__()


def install() -> None:
    builtins.input = no_input
    getpass.getpass = no_input
    sys.meta_path.append(PlatformFinder())
