"""Datasets of images and captions: one reader per layout on disk, one form for everybody else."""
