"""Compute the reference files with the authors' own code.

    PYTHONPATH=src:tests python -m published.make_references CLONES [NAME ...]

CLONES is a folder with a clone (or a bare repository) of each of these, under its own name:
fartashf/vsepp, KunpengLi1994/VSRN, woodfrog/vse_infty with its branch bigru, kuanghuei/SCAN,
CrossmodalGroup/BFAN, sunnychencool/AOQ, MauritsBleeker/ecir-2022-reproducibility-bleeker and
microsoft/VSE_Gradient, all of GitHub. Only the NAMEs are computed, or all of them. What is written
are inputs, weights and outputs, numbers alone, with a record of where they come from.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import torch
from published import make_attention, make_losses, make_models, make_vse_infinity, make_vsrn
from published.authors import Authors
from published.reference import Reference, save

REFERENCES: dict[str, Callable[[Authors], Reference]] = {
    "icr": make_losses.icr,
    "goal": make_losses.goal,
    "aoq": make_losses.aoq,
    "metrics": make_losses.metrics,
    "vse-pp": make_models.vse_pp,
    "vsrn": make_vsrn.vsrn,
    "vse-infinity": make_vse_infinity.vse_infinity,
    "scan": make_attention.scan,
    "bfan": make_attention.bfan,
}


def main(clones: str, *chosen: str) -> None:
    for name in chosen or REFERENCES:
        make = REFERENCES[name]
        authors = Authors(Path(clones))
        torch.manual_seed(0)
        reference = make(authors)
        what = " ".join((make.__doc__ or "").split())
        record = {"what": what, "computed by": authors.read, "torch": torch.__version__}
        path = save(name, reference, record)
        print(f"{path} {path.stat().st_size:,} bytes, {len(reference)} tensors")


if __name__ == "__main__":
    main(*sys.argv[1:])
