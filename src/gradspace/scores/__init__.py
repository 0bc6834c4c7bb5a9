"""Scores of images and texts: positives, and score matrices read tile by tile."""
