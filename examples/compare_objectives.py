"""Compare objectives over several seeds, with a test of their differences.

python examples/compare_objectives.py triplet-hard nt-xent circle/sigmoid-ms --seeds 3
"""

from __future__ import annotations

import argparse
from pathlib import Path

import tomli_w

import gradspace as gs


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("objectives", nargs="+")
    parser.add_argument("--data", default="scenes", help="scenes, or a folder with captions.tsv")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--epochs", type=int, default=6)
    parser.add_argument("--num-train", type=int, default=1000, help="of scenes")
    parser.add_argument("--out", type=Path, default=Path("compared"))
    arguments = parser.parse_args()

    data = {"source": arguments.data}
    if arguments.data == "scenes":
        data |= {"num_train": arguments.num_train}
    comparison = {
        "title": "My objectives",
        "seeds": arguments.seeds,
        "metrics": ["i2t R@1", "t2i R@1", "rsum"],
        "recipe": {
            "objective": {"warm_up": "nt-xent"},  # hardest negatives teach little at the start
            "training": {"epochs": arguments.epochs, "batch_size": 32, "learning_rate": 2e-3},
        },
        "datasets": {Path(arguments.data).name: {"features": data}},
        "models": {"VSE++": {"reads": "features", "model": {"name": "vse++", "width": 128}}},
        "objectives": {name: {} for name in arguments.objectives},
    }
    arguments.out.mkdir(parents=True, exist_ok=True)
    file = arguments.out / "objectives.toml"
    file.write_text(tomli_w.dumps(comparison))

    report = gs.compare(file, small=False, out=arguments.out / "comparison")
    for verdict in report.findings.verdicts:
        print(verdict)
    print("written:", *report.paths, sep="\n  ")


if __name__ == "__main__":
    main()
