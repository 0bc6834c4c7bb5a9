"""Datasets of images and captions: one reader per layout on disk, one form for everybody else.

dataset     datasets and their splits
open        any dataset by name or path
readers/    one file per layout: add yours there
shards/     tar shards and copies of others: their index, reading in place, streams
regions/    region features in files of other tools, converted once
rows        pictures in the rows of a table
shares      splits by shares, where the data names none
problems    problems of a dataset's items
check       a report of contents and problems
image_files, feature_files, json_files, text_files, cache    files on disk
vocabulary, punctuation, word_vectors, captions    captions as numbers
pair_ids    captions and images that belong together
inputs      features, pictures and passages as tensors
order       the images and captions of each training batch
batches     batches for training and evaluation
loader      batches made ahead of time
resident    features kept on the GPU
scenes/     the generator of the built-in dataset of pictures
questions/  the generator of the built-in dataset of passages
"""

from gradspace.data.batches import Batch, image_batches, text_batches, training_batches
from gradspace.data.check import DatasetReport, check_dataset
from gradspace.data.dataset import Dataset, Features, Images, Problem, Split
from gradspace.data.feature_files import FeatureWriter
from gradspace.data.open import open_dataset
from gradspace.data.readers.scenes import true_relevance
from gradspace.data.vocabulary import Vocabulary

__all__ = [
    "Batch",
    "Dataset",
    "DatasetReport",
    "FeatureWriter",
    "Features",
    "Images",
    "Problem",
    "Split",
    "Vocabulary",
    "check_dataset",
    "image_batches",
    "open_dataset",
    "text_batches",
    "training_batches",
    "true_relevance",
]
