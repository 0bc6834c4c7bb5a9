"""Drop-ins for other trainers: this project's objectives and counts inside of their loops.

sentence_transformers   a loss for SentenceTransformerTrainer
open_clip               a loss with the signature of open_clip's
transformers            a callback that records COCOS, for any Trainer whose loss is one of these

None of these libraries is imported before its file here is, and the two losses never import them.
"""
