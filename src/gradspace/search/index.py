"""An index: a folder that says of which model its vectors are, and which engine holds them.

index.json      the model and its digest, the collections, the engine
segments/       items and vectors, where the engine is the folder itself
thumbnails/     small pictures of the images
"""
