"""Notes on how the numbers of the GPU page are measured."""

from __future__ import annotations

from textwrap import fill

from benchmarks import gpu_batches, gpu_launches, gpu_steps, gpu_training

NOTES = f"""
**Batches.** Forward + backward to both sides' embeddings, one text per image, in bfloat16, width
512, ids on the GPU, `RetrievalLoss(name, checks=False, normalize=False)`. Below
{gpu_batches.BACK_TO_BACK:,} pairs {gpu_batches.CALLS} calls are timed one after the other, as a
training loop makes them, and divided by their number: the median of up to {gpu_batches.REPEATS}
such rows, at least three. Larger batches, and calls of over {1000 * gpu_batches.SLOW:.0f} ms, are
timed one by one, {gpu_batches.REPEATS} times (at least three after
{gpu_batches.ENOUGH_ALONE:.0f} s). "Plain torch" is what a user would write in about ten lines for
one text per image (`benchmarks/plain.py`): the product in bfloat16, the rest in float32, with the
whole score matrix. "Compiled" is torch.compile of it for that very batch, before it is timed. "PML"
is pytorch-metric-learning with labels of their own for each side, set up to compute the same
(`benchmarks/peers.py`), on the bfloat16 embeddings; "-" where it has no such loss. Calls of over
{gpu_batches.TOO_SLOW:.0f} s have no number. Values are checked to be the same to
{gpu_batches.SAME:.0%}; PML's, which sums in bfloat16, to {gpu_batches.SAME_IN_PML:.0%}.

**Launches.** Counted by torch.profiler over one forward + backward after {gpu_launches.WARM_UP}
others. A synchronisation is any call of CUDA that waits for the GPU, blocking copies included.

**Whole training steps.** In bfloat16: the median of three times {gpu_training.STEPS} steps, one
after the other ({gpu_training.STEPS_OF_DUAL} of the dual encoder), after others that warm up. A
step draws its batch, trains on it, reads the losses and measures COCOS when they are due, as
`gradspace train` does; features lie on the GPU. The model alone does forward, backward from a
constant gradient, clipping and the update; the objective alone does forward and backward down to
embeddings of the same shapes (of BFAN to its scores), {gpu_training.CALLS_OF_OBJECTIVE} times one
after the other. Alone they overlap with nothing, so that "neither" may be below zero. VSRN has its
caption decoder. ViT-B/32 is a CLIP of that size from transformers, with random weights, on pictures
that are decoded and on the GPU.

**Large batches.** Time: the median of 3 runs (1 of the largest) between two CUDA events, after one
run that compiles the kernels. The product is one `torch.mm` of the embeddings into bfloat16, timed
just before the rows it is compared with; one that is larger than 131,072 x 131,072 is taken in
parts, each into the same memory. Four products are what an objective over all negatives takes at
the least: one forward, and backward the scores again and the gradients of both sides. "triton",
"streamed" and "dense" are the executions of `RetrievalLoss`. A "triton" row whose kernels do not
compile fails, instead of being streamed.

**Everywhere.** One process. Memory: the peak that torch allocated above what was allocated before,
the gradients included. Embeddings are random, in bfloat16 and of length 1, with a cosine of 0.3
between a text and its image; ids are integers on the GPU.

**Mining** takes embeddings on the GPU to lists in main memory. All its rows compute the same tiles,
in bfloat16 with float32 results.

**Pair scores.** The loop copies a caption for every image and builds its attended vectors, as the
published codes do, in the same float32.

**Steps with mined negatives.** The median of 20, timed one by one, after {gpu_steps.WARM_UP}
others. Such a step embeds three times as many images and texts.
"""


def notes() -> str:
    """Format the notes as a section of the page."""
    paragraphs = [fill(paragraph, 100) for paragraph in NOTES.strip().split("\n\n")]
    return "\n\n".join(["## How it is measured", *paragraphs])
