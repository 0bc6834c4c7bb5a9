"""Indexes of photos and captions, and search in them."""
