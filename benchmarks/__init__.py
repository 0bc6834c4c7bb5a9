"""What gradspace costs, next to its peers and to plain loops. Run `make bench`.

__main__.py     the command: runs the suites, prints the tables, writes docs/benchmarks.md
losses.py       suite: forward + backward of the objectives
peers.py        the same losses in pytorch-metric-learning
loops.py        the same losses as plain loops over the queries
evaluation.py   suite: all retrieval metrics at the size of COCO 5K
case.py         one case, its measurement, and the embeddings that all cases share
measure.py      measures one case, in a process of its own
processes.py    starts that process and reads its answer
tables.py       tables for the terminal and in Markdown
page.py         the page for the documentation
"""
