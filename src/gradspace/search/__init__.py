"""Search with a trained model: from a folder of photos to what fits a sentence."""
