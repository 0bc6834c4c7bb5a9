"""Scores of images and texts: who belongs to whom, and matrices that are seen through tiles."""
