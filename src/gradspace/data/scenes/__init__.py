"""`scenes`: procedural pictures of toys, with captions whose truth is known for every picture.

world     scenes, and the relations that hold in them
layout    positions of groups
sample    a random scene
truth     meanings of captions, and the scenes of which they are true
lexicon   words and noun phrases
captions  clauses and sentences
backdrops, sprites, traces, render    from a scene to an image
regions   from a scene to detector features
dataset   the class `Scenes`
sheet     a contact sheet for people to look at
"""

from gradspace.data.scenes.dataset import Scenes
from gradspace.data.scenes.sheet import contact_sheet
from gradspace.data.scenes.truth import Caption, Meaning, holds, relevance
from gradspace.data.scenes.world import Scene

__all__ = ["Caption", "Meaning", "Scene", "Scenes", "contact_sheet", "holds", "relevance"]
