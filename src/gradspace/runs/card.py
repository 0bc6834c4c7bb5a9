"""Model card of a run: README.md in its folder, as model hubs show it."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from huggingface_hub import EvalResult, ModelCardData

from gradspace.files import write_atomically
from gradspace.runs.folder import Run
from gradspace.runs.numbers import ARROWS, DIRECTIONS, KS, RECALLS
from gradspace.runs.recipe import Recipe, recipe_toml
from gradspace.runs.results import RunResults, load_results

RESAMPLES = 2000


def write_card(run: Run, out: Path, licence: str | None = None) -> None:
    """Write README.md into a folder, from the recipe of a run and its results on test or dev."""
    with write_atomically(out / "README.md") as file:
        file.write(model_card(run, licence))


def model_card(run: Run, licence: str | None) -> str:
    recipe = run.recipe()
    found = load_results(run.results("test")) if run.results("test").exists() else None
    data = Path(recipe.data.source).name
    numbers = "\n".join(_results(run, found))
    return f"""---
{_header(recipe, data, found, licence)}
---

# {run.folder.name}

A model for image-text retrieval: {recipe.model.name}, trained on {data} with the objective
{recipe.objective.name}.

## Results

{numbers}

## Use

```python
import gradspace as gs

model = gs.load("{run.folder.name}")  # this folder
{_use(recipe)}
```

## Intended use and limits

The model ranks images for sentences, and sentences for images, that resemble its training data. It
has not been evaluated on other data. It reproduces what its captions say about people, including
mistakes and prejudices: do not use it to identify or judge anybody.

## Licences

{_licences(recipe, data, licence)}

## Training

`gradspace train recipe.toml` repeats it. {_made_with(run)}

```toml
{recipe_toml(recipe).strip()}
```
"""


def _header(recipe: Recipe, data: str, found: RunResults | None, licence: str | None) -> str:
    """Format the YAML header that hubs read."""
    backbones = (recipe.model.pretrained, recipe.model.backbone, recipe.model.text_encoder)
    results = [
        EvalResult(
            task_type="image-text-retrieval",
            dataset_type=data,
            dataset_name=found.dataset,
            dataset_split=found.split,
            metric_type="recall",
            metric_name=name,
            metric_value=round(found.metrics[name], 2),
        )
        for name in (RECALLS if found else ())
        if found
    ]
    header: str = ModelCardData(
        library_name="gradspace",
        tags=["image-text-retrieval", recipe.model.name, recipe.objective.name],
        license=licence,
        base_model=[name for name in backbones if name and not Path(name).exists()] or None,
        model_name=f"{recipe.model.name} {recipe.objective.name}" if results else None,
        eval_results=results or None,
    ).to_yaml()
    return header


def _use(recipe: Recipe) -> str:
    if recipe.model.backbone or recipe.model.pretrained:
        return 'print(model.score(["photo.jpg"], ["a dog in the snow"]))'
    return 'vectors = model.embed_texts(["a dog in the snow"])'


def _results(run: Run, found: RunResults | None) -> Iterator[str]:
    """Tabulate recalls: on test with intervals, otherwise on dev."""
    if found is None:
        best = _best_on_dev(run)
        if best is None:
            yield "Not measured: the data has no dev split."
            return
        yield "On dev, where the best epoch was chosen; test has not been measured."
    else:
        best = None
        yield (
            f"On {found.split} of {found.dataset}, in percent, with 95% intervals from a bootstrap "
            "over the images."
        )
    yield ""
    yield f"| | {' | '.join(f'R@{k}' for k in KS)} |"
    yield f"|---|{'---:|' * len(KS)}"
    for way, direction in DIRECTIONS.items():
        if found is not None:
            cells = [_with_interval(found, f"{way} R@{k}") for k in KS]
        else:
            assert best is not None
            cells = [f"{best[direction]['recall'][str(k)]:.1f}" for k in KS]
        yield f"| {ARROWS[way]} | {' | '.join(cells)} |"


def _with_interval(found: RunResults, metric: str) -> str:
    """Format a metric with its interval, such as `33.3 (30.4 to 36.2)`."""
    from scipy import stats  # takes half a second to import

    low, high = stats.bootstrap(
        (found.per_image(metric),),
        np.mean,
        n_resamples=RESAMPLES,
        method="percentile",
        rng=np.random.default_rng(0),
    ).confidence_interval
    return f"{found.metrics[metric]:.1f} ({low:.1f} to {high:.1f})"


def _best_on_dev(run: Run) -> Mapping[str, Any] | None:
    reports = [line["dev"] for line in run.metrics() if line.get("dev")]
    return max(reports, key=lambda report: report["rsum"], default=None)


def _licences(recipe: Recipe, data: str, licence: str | None) -> str:
    parts = [data]
    for name in (recipe.model.pretrained, recipe.model.backbone, recipe.model.text_encoder):
        parts += [Path(name).name] if name else []
    own = f"The weights are released under {licence}. " if licence else ""
    return f"{own}They were learnt from {' and '.join(parts)}, whose own licences apply."


def _made_with(run: Run) -> str:
    made = json.loads((run.folder / "environment.json").read_text(encoding="utf-8"))
    versions = ", ".join(f"{name} {version}" for name, version in made["versions"].items())
    return f"It was trained with {versions}."
