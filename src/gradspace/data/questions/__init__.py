"""`questions`: invented people, passages about them, and questions that one passage answers.

lexicon   names and things
people    the people: families, whose members have much in common
write     passages and questions
"""

from gradspace.data.questions.people import FAMILY, LARGEST, Person, people
from gradspace.data.questions.write import QUESTIONS_EACH, write_passage, write_questions

__all__ = [
    "FAMILY",
    "LARGEST",
    "QUESTIONS_EACH",
    "Person",
    "people",
    "write_passage",
    "write_questions",
]
