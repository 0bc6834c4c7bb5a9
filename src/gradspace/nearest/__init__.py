"""Nearest vectors: exact top-k while scores arrive in tiles, over float16 rows, or by faiss."""
