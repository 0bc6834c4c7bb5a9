"""Indexes of photos and captions, and the search in them."""
