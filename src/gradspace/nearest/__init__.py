"""Nearest-neighbour search: exact top-k over tiles of scores or float16 rows, or with faiss."""
