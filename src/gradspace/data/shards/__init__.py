"""Shards of samples, read in place and streamed.

patterns    shards by name: a file, a folder, a glob, a range in braces
index       samples of a tar, found by its headers
copied      shards in other formats, copied when they are needed
iterable    shards of a Hugging Face dataset
reading     bytes, captions and pictures
store       a list of shards as one store of samples
order       the order of a stream
stream      batches of a stream
sample      a sample of a stream as a split
words       the vocabulary of a stream
"""
