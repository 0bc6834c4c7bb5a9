"""Readers, one file per layout of datasets on disk; every module in this folder is imported."""

import importlib
import pkgutil

from gradspace.data.readers.registry import READERS, Reader, reader

__all__ = ["READERS", "Reader", "reader"]

for _module in pkgutil.iter_modules(__path__):
    importlib.import_module(f"{__name__}.{_module.name}")
