"""Benchmarks of gradspace next to its peers and to plain loops. Run `make bench`.

__main__.py     the command: runs the suites, prints the tables, writes docs/reference/benchmarks.md
losses.py       suite: forward + backward of the objectives
scale.py        suite: batches up to 32,768, without a score matrix
peers.py        our losses in pytorch-metric-learning
loops.py        our losses as plain loops over the queries
evaluation.py   suite: all retrieval metrics at the size of COCO 5K
mining.py       suite: hardest negatives over a whole training set; also a separate command
training.py     suite: the objective and the loader beside the model
pairs.py        suite: SCAN and BFAN beside a loop over the captions
search.py       suite: exact search, and indexing beside the bare encoder
case.py         one case, its measurement, and the embeddings that all cases share
measure.py      measures one case, in a separate process
processes.py    starts that process and reads its answer
tables.py       tables for the terminal and in Markdown
page.py         the page for the documentation

Separate commands: `python -m benchmarks.engines` (search engines) and `python -m
benchmarks.serve_load INDEX` (the server under load).

On a machine with a CUDA device: `python -m benchmarks.gpu`.

gpu.py          the command: measures in one process, writes JSON and its page in docs/reference
gpu_batches.py  suite: 128 to 32,768 pairs, beside plain torch, torch.compile of it and PML
plain.py        our losses in plain torch, for one text per image
gpu_compiling.py  torch.compile of these
gpu_launches.py   suite: launches and synchronisations of a call, counted by the profiler
gpu_training.py   suite: whole training steps, split into model, objective and the rest
random_training.py  trainers of the published models on random data
step_parts.py   a step, its model alone and its objective alone
gpu_steps.py    suite: training steps with negatives mined offline
gpu_mining.py   suite: mining on a GPU
gpu_cases.py    all suites; time and memory of large batches, up to 1,048,576 images
gpu_accuracy.py error of every objective against float64, in every precision
gpu_timing.py   time and memory of a step
gpu_results.py  the results, as JSON
gpu_page.py     the results, as tables and as a page; gpu_batches_page.py, gpu_notes.py its parts
"""
