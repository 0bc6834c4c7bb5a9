"""The authors' code, read from clones of their repositories and imported from memory.

Nothing of it is written anywhere. A module that was made for Python 2 or an old torch is mended in
memory: `Mends` maps a regular expression to what takes its place in every file that is imported.
"""

from __future__ import annotations

import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

Mends = dict[str, str]

ON_CPU: Mends = {r"\.cuda\(\)": ""}
WHOLE_NUMBERS: Mends = {r"(size\(2\)) ?/ ?2": r"\1 // 2", r"(shape\[0\]) / 5": r"\1 // 5"}
"""Divisions that were of integers in Python 2."""


@dataclass(frozen=True)
class Repository:
    """A repository at the commit that is the judge."""

    owner: str
    name: str
    commit: str

    @property
    def address(self) -> str:
        return f"https://github.com/{self.owner}/{self.name}"


VSEPP = Repository("fartashf", "vsepp", "abe382fd9c751d1b92c95030df8fb804a7d5ef53")
VSRN = Repository("KunpengLi1994", "VSRN", "777ae74326fdb6abe69dbd3911d0e545322520d1")
VSE_INFTY = Repository("woodfrog", "vse_infty", "29df9d65f0e0b5bac3b6f6e6697a285ff89f52dc")
BIGRU = Repository("woodfrog", "vse_infty", "8600f891e143bda1a33d2228999d0d4c63acd4fd")
SCAN = Repository("kuanghuei", "SCAN", "806355736e3c9158c9bcf2f0501ed1e961a893e9")
BFAN = Repository("CrossmodalGroup", "BFAN", "c5c2d2aa46b09639b0ba227c14fbc4cbb6b7e4e0")
AOQ = Repository("sunnychencool", "AOQ", "5bfe6209223cac4c671c2e659009729cdd6c9a2f")
ICR = Repository(
    "MauritsBleeker",
    "ecir-2022-reproducibility-bleeker",
    "9800594c0fa31c44d8f7434f3d0be25732589aef",
)
GOAL = Repository("microsoft", "VSE_Gradient", "3db6c6de69ee3bd36b6e59c478c056c106a2dbb3")


@dataclass
class Authors:
    """A folder with a clone of every repository, each under the repository's name."""

    folder: Path
    read: list[dict[str, Any]] = field(default_factory=list)
    """What was imported since it was last emptied, for the record of a reference file."""

    @contextmanager
    def code(
        self,
        repository: Repository,
        *,
        mends: Mends | None = None,
        absent: Sequence[str] = (),
        given: Mapping[str, ModuleType] | None = None,
    ) -> Iterator[Code]:
        """Import from a repository inside the `with`; its modules are forgotten afterwards.

        `absent` modules are empty, whatever is imported from them; `given` ones are those.
        """
        known = set(sys.modules)
        hidden = {name: sys.modules.get(name) for name in given or {}}
        finder = Code(self.folder / repository.name, repository.commit, mends or {}, absent)
        sys.meta_path.insert(0, finder)
        sys.modules.update(given or {})
        try:
            yield finder
        finally:
            sys.meta_path.remove(finder)
            for name in {*finder.imported, *(given or {})} - known:
                sys.modules.pop(name, None)
            sys.modules.update({name: old for name, old in hidden.items() if old is not None})
            self.read.append(
                {
                    "repository": repository.address,
                    "commit": repository.commit,
                    "files": sorted(finder.files_read),
                }
            )


class Code(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds modules in one commit of a git repository, whether it has a work tree or not."""

    def __init__(self, clone: Path, commit: str, mends: Mends, absent: Sequence[str]) -> None:
        self.clone, self.commit, self.mends, self.absent = clone, commit, mends, absent
        self.files = set(self._git("ls-tree", "-r", "--name-only", commit).splitlines())
        self.imported: list[str] = []
        self.files_read: list[str] = []

    def module(self, name: str) -> Any:
        return importlib.import_module(name)

    def find_spec(
        self, fullname: str, path: object = None, target: object = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname in self.absent:
            return importlib.machinery.ModuleSpec(fullname, self, is_package=True)
        file = self._file(fullname)
        if file is None:
            return None
        package = file.endswith("__init__.py") or not file.endswith(".py")
        return importlib.machinery.ModuleSpec(fullname, self, origin=file, is_package=package)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType:
        self.imported.append(spec.name)
        return _Empty(spec.name) if spec.name in self.absent else ModuleType(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        assert module.__spec__ is not None
        file = module.__spec__.origin
        if file is None or not file.endswith(".py"):
            return
        self.files_read.append(file)
        text = self._git("show", f"{self.commit}:{file}")
        for pattern, replacement in self.mends.items():
            text = re.sub(pattern, replacement, text)
        exec(compile(text, f"{self.clone.name}/{file}", "exec"), module.__dict__)

    def _file(self, name: str) -> str | None:
        """The file of a module, or the folder of a package that has no file of its own."""
        stem = name.replace(".", "/")
        for file in (f"{stem}.py", f"{stem}/__init__.py"):
            if file in self.files:
                return file
        return stem if any(file.startswith(f"{stem}/") for file in self.files) else None

    def _git(self, *arguments: str) -> str:
        command = ["git", "-C", str(self.clone), *arguments]
        done = subprocess.run(command, check=True, capture_output=True, text=True)
        return done.stdout


class _Empty(ModuleType):
    """Stands for a module that is not installed and whose contents are never called."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return None


def shake(network: torch.nn.Module, seed: int, scale: float = 0.4) -> None:
    """Random parameters and statistics, none of them zero or one as they are at first."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.uniform_(-scale, scale, generator=generator)
        for name, values in network.named_buffers():
            if name.endswith("running_mean"):
                values.uniform_(-scale, scale, generator=generator)
            elif name.endswith("running_var"):
                values.uniform_(0.5, 2, generator=generator)
