"""Preparation of pictures and words for models: crops, image processors, tokenizers."""
