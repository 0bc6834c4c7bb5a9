"""Drop-ins for other libraries: this project's objectives, counts and embeddings inside of them.

sentence_transformers   a loss for SentenceTransformerTrainer
open_clip               a loss with the signature of open_clip's
transformers            a callback that records COCOS, for any Trainer whose loss is one of these
ray                     embedding shards on a Ray cluster

None of these libraries is imported before its file here is, and the two losses never import them.
"""
