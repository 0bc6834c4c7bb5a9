"""Requests and answers of the server as JSON, with the examples in its OpenAPI description."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import Path, UploadFile
from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from gradspace.indexes.contract import Hit, Item, Kind
from gradspace.indexes.where import Condition, Value, parse_condition
from gradspace.runs.explain import Explanation
from gradspace.serve.limits import MOST_CHARACTERS, MOST_CONDITIONS, MOST_RESULTS
from gradspace.serve.pictures import CONTENT_TYPES

ITEM: dict[str, Any] = {
    "key": "holiday/beach.jpg",
    "kind": "image",
    "text": "a dog runs along the beach",
    "image": "holiday/beach.jpg",
    "metadata": {"folder": "holiday", "year": 2024},
}
HIT: dict[str, Any] = {**ITEM, "rank": 1, "score": 0.31}


def _plain(text: str) -> str:
    if "\0" in text:
        raise ValueError("must not contain NUL characters")
    return text


def _condition(text: str) -> str:
    parse_condition(_plain(text))
    return text


Text = Annotated[str, Field(max_length=MOST_CHARACTERS), AfterValidator(_plain)]
Where = Annotated[str, Field(max_length=MOST_CHARACTERS), AfterValidator(_condition)]
IndexId = Annotated[str, Path(description="The id of an index.", examples=["photos"])]
Key = Annotated[str, Path(description="The key of an item.", examples=["holiday/beach.jpg"])]


class Options(BaseModel):
    """Options common to all searches."""

    model_config = ConfigDict(extra="forbid")

    k: int = Field(24, ge=1, le=MOST_RESULTS, description="The number of results.")
    kind: Kind | None = Field(
        None, description="What to find; by default images, if the index has any."
    )
    where: list[Where] = Field(
        [],
        max_length=MOST_CONDITIONS,
        description="Conditions on the metadata that results must meet; may be repeated.",
        examples=[["year>=2020", "folder=holiday"]],
    )
    index: Text = Field(
        "", description="The id of an index; the first one by default.", examples=["photos"]
    )

    @property
    def conditions(self) -> tuple[Condition, ...]:
        return tuple(map(parse_condition, self.where))


class SentenceSearch(Options):
    """A search by sentence, or for items like a given one."""

    q: Text = Field("", description="A sentence.", examples=["a dog on a beach"])
    like: Text = Field(
        "", description="The key of an item, to find others like it.", examples=["a.jpg"]
    )


class PictureSearch(Options):
    """A search by picture, or by a picture and a sentence."""

    picture: UploadFile = Field(description=f"A picture of type {', '.join(CONTENT_TYPES)}.")
    q: Text = Field("", description="A sentence, to search by both.", examples=["at night"])
    picture_weight: float = Field(
        0.5, ge=0, le=1, description="The weight of the picture relative to the sentence."
    )


class IndexAnswer(BaseModel):
    """An index that this server searches."""

    id: str = Field(examples=["photos"])
    name: str = Field(examples=["photos"])
    items: int = Field(examples=[31783])
    kinds: list[Kind] = Field(examples=[["image", "caption"]])
    reads_pictures: bool = Field(description="Whether it can be searched by picture.")
    explains: bool = Field(description="Whether it can explain why an image was found.")
    sentences: list[str] = Field(
        description="A few of its sentences, to try.", examples=[["a dog runs along the beach"]]
    )
    conditions: list[str] = Field(
        description="An example condition for each field in which items differ.",
        examples=[["year>=2020", "folder=holiday"]],
    )


class ItemAnswer(BaseModel):
    """An image or a caption of an index."""

    model_config = ConfigDict(json_schema_extra={"example": ITEM})

    key: str
    kind: Kind
    text: str = Field(description="The caption or, for an image, its captions, one per line.")
    image: str = Field(description="The key of the image to show, if there is one.")
    metadata: dict[str, Value]

    @classmethod
    def of(cls, item: Item) -> ItemAnswer:
        return cls(**vars(item))


class HitAnswer(ItemAnswer):
    """An item that was found."""

    model_config = ConfigDict(json_schema_extra={"example": HIT})

    rank: int = Field(description="The rank, from 1.")
    score: float = Field(description="The cosine of its vector with the query's.")

    @classmethod
    def found(cls, hit: Hit, rank: int) -> HitAnswer:
        return cls(**vars(hit.item), rank=rank, score=hit.score)


class SearchAnswer(BaseModel):
    """The best results, in order."""

    model_config = ConfigDict(
        json_schema_extra={
            "example": {"index": "photos", "kind": "image", "hits": [HIT], "unknown_words": []}
        }
    )

    index: str
    kind: Kind
    hits: list[HitAnswer]
    unknown_words: list[str] = Field(
        description="Words of the sentence unknown to the model, which it cannot tell apart."
    )


class WordAnswer(BaseModel):
    """A word of the query, and what it adds to the score."""

    word: str = Field(examples=["dog"])
    contribution: float = Field(examples=[0.12])


class ExplainAnswer(BaseModel):
    """An explanation of an item's score for a sentence, as far as its model can give one."""

    words: list[WordAnswer]
    regions: list[list[float]] | None = Field(
        description="What each cell of a grid over the image adds, row by row.",
        examples=[[[0.01, 0.2], [0.0, 0.05]]],
    )
    attention: list[list[list[float]]] | None = Field(
        description="How much each word attends to each cell.", examples=[None]
    )
    box: tuple[float, float, float, float] | None = Field(
        description="Left, top, right and bottom of the grid, as shares of the image's sides.",
        examples=[[0.125, 0.0, 0.875, 1.0]],
    )

    @classmethod
    def of(cls, found: Explanation) -> ExplainAnswer:
        return cls(
            words=[WordAnswer(word=word, contribution=value) for word, value in found.words],
            regions=None if found.regions is None else found.regions.tolist(),
            attention=None if found.attention is None else found.attention.tolist(),
            box=found.box,
        )


class HealthAnswer(BaseModel):
    """Answer of a server that is running."""

    status: str = Field(examples=["ok"])
    version: str = Field(examples=["0.1.0"])


class ErrorAnswer(BaseModel):
    """Description of an error in one sentence."""

    detail: str
