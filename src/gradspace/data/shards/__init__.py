"""Tar shards in the layout of WebDataset: found, indexed, read in place, and streamed."""
