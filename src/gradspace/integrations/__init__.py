"""Drop-ins for other libraries: objectives, counts and embeddings inside their loops.

sentence_transformers   a loss for SentenceTransformerTrainer
open_clip               a loss with the signature of open_clip's
transformers            a callback that records COCOS, for any Trainer whose loss is one of these
ray                     embedding shards on a Ray cluster

Only the callback imports its library, and only when its module is imported; the losses never do.
"""
