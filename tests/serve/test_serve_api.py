"""What the server answers, route by route."""

from __future__ import annotations

import io
import re
from pathlib import Path

import pytest
from fastapi import FastAPI
from PIL import Image
from serve.asking import answered, ask, file_path, get, keys, post, sentence
from serve.fakes import COLOURS, HOSTILE, WIDTH, MemoryEngine, as_bytes, make_searcher

from gradspace.indexes.local import LocalEngine
from gradspace.serve.app import make_app
from gradspace.serve.pictures import read_picture

RED = "flat/red circle #0.jpg"


def test_a_sentence_finds_what_it_says(app: FastAPI) -> None:
    answer = get(app, "/api/search", q="a red circle", k=3)
    hits = answer.json()["hits"]
    assert keys(answer)[0] == RED
    assert [hit["rank"] for hit in hits] == [1, 2, 3]
    assert [hit["score"] for hit in hits] == sorted((h["score"] for h in hits), reverse=True)
    assert hits[0]["score"] == pytest.approx(1, abs=1e-5)
    assert hits[0]["metadata"] == {"folder": "flat", "year": 2000, "colour": "red"}
    assert answer.json()["index"] == "shapes"


def test_captions_have_the_image_to_show(app: FastAPI) -> None:
    first = get(app, "/api/search", q="a red circle", kind="caption", k=1).json()["hits"][0]
    assert first["text"] == HOSTILE
    assert (first["kind"], first["image"]) == ("caption", RED)


def test_more_like_an_item_leaves_it_out(app: FastAPI) -> None:
    found = keys(get(app, "/api/search", like=RED, k=200))
    assert RED not in found
    assert len(found) == 23
    assert "red" in found[0]


def test_all_conditions_are_met(app: FastAPI) -> None:
    answer = get(app, "/api/search", q="circle", where=["year>=2004", "folder=flat"], k=200)
    hits = answer.json()["hits"]
    assert len(hits) == 10
    assert all(h["metadata"]["year"] >= 2004 and h["metadata"]["folder"] == "flat" for h in hits)


def test_another_index(app: FastAPI) -> None:
    ids = [index["id"] for index in get(app, "/api/indexes").json()]
    assert ids == ["shapes", "other-model"]
    answer = get(app, "/api/search", q="violet", index="other-model", k=200)
    assert answer.json()["index"] == "other-model"
    assert not [key for key in keys(answer) if "violet" in key]


def test_indexes_of_one_name_are_told_apart() -> None:
    made = make_app([make_searcher("a/b c"), make_searcher("a b/c"), make_searcher("..")])
    told = get(made, "/api/indexes").json()
    assert [index["id"] for index in told] == ["a-b-c", "a-b-c-2", "index"]
    assert told[0] == {
        "id": "a-b-c",
        "name": "a/b c",
        "items": 48,
        "kinds": ["image", "caption"],
        "reads_pictures": True,
        "explains": True,
        "sentences": told[0]["sentences"],
        "conditions": told[0]["conditions"],
    }
    with pytest.raises(ValueError, match="needs at least one index"):
        make_app([])


def test_an_index_offers_what_it_can_do(app: FastAPI) -> None:
    told = get(app, "/api/indexes").json()[0]
    assert len(told["sentences"]) == 3
    for text in told["sentences"]:
        found = get(app, "/api/search", q=text, k=1).json()
        assert found["hits"][0]["text"].startswith(text)
        assert found["unknown_words"] == []
    assert [re.split("[>=]", each)[0] for each in told["conditions"]] == [
        "folder",
        "year",
        "colour",
    ]
    for condition in told["conditions"]:
        assert 0 < len(keys(get(app, "/api/search", q="a", where=condition, k=200))) < 24


def test_what_an_index_cannot_do_is_not_offered() -> None:
    app = make_app([make_searcher(plain=True, reads_pictures=False, explains=False)])
    [told] = get(app, "/api/indexes").json()
    assert (told["reads_pictures"], told["explains"]) == (False, False)
    assert (told["sentences"], told["conditions"]) == ([], [])


def test_words_that_the_model_has_never_seen(app: FastAPI) -> None:
    answer = get(app, "/api/search", q="a dog and a red dog on a beach", k=1).json()
    assert answer["unknown_words"] == ["dog", "and", "on", "beach"]
    blue = as_bytes(Image.new("RGB", (40, 30), COLOURS["blue"]))
    assert post(app, blue, q="dog", k=1).json()["unknown_words"] == ["dog"]
    assert get(app, "/api/search", like=RED, k=1).json()["unknown_words"] == []


def test_a_picture_finds_what_looks_like_it(app: FastAPI) -> None:
    blue = Image.new("RGB", (40, 30), COLOURS["blue"])
    for kind in ("PNG", "JPEG", "WEBP", "GIF", "BMP"):
        found = keys(post(app, as_bytes(blue, kind), f"image/{kind.lower()}", k=4))
        assert all("blue" in key for key in found), kind


@pytest.mark.parametrize("kind", ["", "application/octet-stream"])
def test_a_picture_of_which_nothing_is_said(app: FastAPI, kind: str) -> None:
    blue = Image.new("RGB", (40, 30), COLOURS["blue"])
    for own in ("JPEG", "WEBP", "BMP"):
        assert "blue" in keys(post(app, as_bytes(blue, own), kind, k=1))[0]
    assert "not a picture in a known format" in sentence(post(app, b"a text", kind), 415)


def test_a_picture_that_is_no_file(app: FastAPI) -> None:
    (answer,) = ask(
        app, ("POST", "/api/search", {"files": {"picture": (None, b"x.jpg")}, "data": {"k": "1"}})
    )
    assert sentence(answer, 422) == "picture: should be a file, got 'x.jpg'"


def test_a_picture_and_a_sentence(app: FastAPI) -> None:
    blue = as_bytes(Image.new("RGB", (40, 30), COLOURS["blue"]))
    assert keys(post(app, blue, q="ring", k=1)) == ["edges & more/blue ring #15.jpg"]
    both = keys(post(app, blue, q="ring", picture_weight=0, k=6))
    assert both == keys(get(app, "/api/search", q="ring", k=6))
    where = ["year>=2012", "year<2014"]
    found = keys(post(app, blue, where=where, k=9))
    assert sorted(found) == ["flat/blue circle #12.jpg", "flat/blue square #13.jpg"]


def test_transparency_is_no_obstacle(app: FastAPI) -> None:
    palette = Image.new("P", (40, 30), 0)
    palette.putpalette([*COLOURS["green"], 0, 0, 0])
    assert "green" in keys(post(app, as_bytes(palette, transparency=1), k=1))[0]


def test_all_about_an_item(app: FastAPI) -> None:
    for key in (RED, f"{RED}:0"):
        found = get(app, file_path("/api/items", "shapes", key)).json()
        assert found["key"] == key
        assert found["image"] == RED
    sentence(get(app, file_path("/api/items", "shapes", "none.jpg")), 404)
    sentence(get(app, file_path("/api/items", "none", RED)), 404)


def test_thumbnails_are_sent_once(app: FastAPI) -> None:
    path = file_path("/thumbnails", "shapes", RED)
    first = get(app, path)
    assert first.headers["content-type"] == "image/jpeg"
    assert first.headers["cache-control"] == "private, max-age=300"
    assert Image.open(io.BytesIO(first.content)).size == (240, 180)
    headers = {"If-None-Match": first.headers["etag"]}
    again, other = ask(
        app,
        ("GET", path, {"headers": headers}),
        ("GET", path, {"headers": {"If-None-Match": '"another"'}}),
    )
    assert (again.status_code, again.content) == (304, b"")
    assert other.content == first.content


def test_pictures_are_written_anew() -> None:
    searcher = make_searcher()
    large = Image.new("RGB", (3200, 1000), "teal")
    large.info.update(comment=b"at home", exif=b"Exif\0\0home")
    searcher.index.pictures.update({RED: large})  # type: ignore[attr-defined]
    app = make_app([searcher])
    sent = Image.open(io.BytesIO(get(app, file_path("/pictures", "shapes", RED)).content))
    assert (sent.format, sent.size) == ("JPEG", (1600, 500))
    assert not {"comment", "exif"} & set(sent.info)
    assert large.size == (3200, 1000)


def test_a_file_that_is_gone(app: FastAPI) -> None:
    answer = get(app, file_path("/pictures", "shapes", "broken.jpg"))
    assert sentence(answer, 404) == "the file of 'broken.jpg' is missing or broken"


def test_an_index_that_was_moved_away(tmp_path: Path) -> None:
    searcher = make_searcher()
    engine = LocalEngine(tmp_path / "index", WIDTH)
    given = searcher.index.engine
    assert isinstance(given, MemoryEngine)
    engine.put(given.items, given.vectors)
    object.__setattr__(searcher.index, "engine", engine)
    app = make_app([searcher])
    assert keys(get(app, "/api/search", q="a red circle", k=1)) == [RED]
    paths = ["/api/search?q=red", "/api/indexes", file_path("/api/items", "shapes", RED)]
    (tmp_path / "index").rename(tmp_path / "moved")
    for path in paths:
        assert "the index has been moved or deleted" in sentence(get(app, path), 503)
    (tmp_path / "moved").rename(tmp_path / "index")
    assert answered([get(app, path) for path in paths]) == [200] * 3


def test_explanations(app: FastAPI) -> None:
    told = get(app, "/api/explain", key=RED, q="a red circle").json()
    assert [word["word"] for word in told["words"]] == ["a", "red", "circle"]
    assert len(told["regions"]) == len(told["regions"][0]) == 7
    assert len(told["attention"]) == 3
    assert "cannot explain" in sentence(get(app, "/api/explain", key=f"{RED}:0", q="red"), 404)
    sentence(get(app, "/api/explain", key="none", q="red"), 404)
    sentence(get(app, "/api/explain", key=RED, q="  "), 422)
    assert sentence(get(app, "/api/explain", key=RED), 422) == "q: Field required"


@pytest.mark.parametrize(
    ("params", "status", "said"),
    [
        ({}, 422, "give either a sentence q"),
        ({"q": "  "}, 422, "give either a sentence q"),
        ({"q": "a", "like": RED}, 422, "give either a sentence q"),
        ({"like": "none"}, 404, "no such item in the index shapes: 'none'"),
        ({"like": "a\0b"}, 422, "must not contain NUL"),
        ({"q": "a", "index": "none"}, 404, "no index 'none'; use one of shapes, other-model"),
        ({"q": "a", "k": 201}, 422, "k: should be less than or equal to 200, got '201'"),
        ({"q": "a", "k": "many"}, 422, "k: should be a valid integer"),
        ({"q": "a" * 1001}, 422, "at most 1000 characters"),
        ({"q": "a", "kind": "video"}, 422, "kind: should be 'image' or 'caption', got 'video'"),
        ({"q": "a", "where": "year"}, 422, "got 'year'"),
        ({"q": "a", "where": "yaer>=2000"}, 422, "the field 'yaer'; did you mean 'year'?"),
        ({"q": "a", "where": ["year>1"] * 9}, 422, "at most 8 items"),
        ({"q": "a", "querry": "b"}, 422, "querry: there is no such parameter"),
    ],
)
def test_errors_are_a_sentence(
    app: FastAPI, params: dict[str, str], status: int, said: str
) -> None:
    assert said in sentence(get(app, "/api/search", **params), status)


def test_what_an_index_cannot_do() -> None:
    searcher = make_searcher(reads_pictures=False)
    object.__setattr__(searcher.index, "kinds", ("caption",))
    app = make_app([searcher])
    blue = as_bytes(Image.new("RGB", (40, 30)))
    assert "cannot read pictures" in sentence(post(app, blue), 422)
    assert "holds no images" in sentence(get(app, "/api/search", q="a", kind="image"), 422)
    assert get(app, "/api/search", q="a").json()["kind"] == "caption"


def test_a_mistake_of_ours_is_told_in_the_log(
    app: FastAPI, caplog: pytest.LogCaptureFixture
) -> None:
    assert "see its log" in sentence(get(app, "/api/search", q="fail"), 500)
    assert "out of memory" in caplog.text
    assert 'route="/api/search",status="500"' in get(app, "/metrics").text


@pytest.mark.filterwarnings("ignore::UserWarning:PIL")
def test_pictures_are_turned_as_the_camera_was_held(app: FastAPI) -> None:
    turned = Image.new("RGB", (40, 20), "teal")
    exif = Image.Exif()
    exif[0x0112] = 6
    sent = io.BytesIO(as_bytes(turned, "JPEG", exif=exif))
    assert read_picture(sent, most_pixels=1000).size == (20, 40)
    broken = as_bytes(turned, "JPEG", exif=b"Exif\0\0II*\0broken")
    assert keys(post(app, broken, "image/jpeg"))


def test_explanations_wait_for_each_other(app: FastAPI) -> None:
    asked = {"params": {"key": RED, "q": "a red circle"}}
    assert answered(ask(app, *[("GET", "/api/explain", asked)] * 6)) == [200] * 6


def test_health_and_metrics() -> None:
    app = make_app([make_searcher('a "b"')])
    assert get(app, "/health").json()["status"] == "ok"
    ask(app, *[("GET", "/api/search", {"params": {"q": "red"}})] * 5)
    get(app, "/api/search")
    get(app, "/nowhere/at/all")
    text = get(app, "/metrics").text
    assert 'gradspace_requests_total{method="GET",route="/api/search",status="200"} 5' in text
    assert 'gradspace_requests_total{method="GET",route="/api/search",status="422"} 1' in text
    assert 'gradspace_requests_total{method="GET",route="other",status="404"} 1' in text
    assert 'gradspace_request_seconds_count{route="/api/search"} 6' in text
    assert 'gradspace_request_seconds_bucket{route="/health",le="+Inf"} 1' in text
    assert 'gradspace_batch_size_sum{index="a-b"} 5.0' in text
    assert 'gradspace_queue_length{index="a-b"} 0' in text
    line = re.compile(r'(# (HELP|TYPE) .+|[a-z_]+(\{([a-z]+="[^"]*",?)+\})? [\d.]+)')
    assert all(line.fullmatch(each) for each in text.splitlines())


def test_openapi_has_an_example_of_everything(app: FastAPI) -> None:
    schema = get(app, "/api/openapi.json").json()
    paths = [path for path in schema["paths"] if path != "/"]
    assert len(paths) == 8
    for path in paths:
        for operation in schema["paths"][path].values():
            for code, response in operation["responses"].items():
                if int(code) >= 400:
                    assert response["content"]["application/json"]["example"]["detail"]
            for parameter in operation.get("parameters", []):
                assert (
                    parameter["in"] == "path"
                    or "examples" in str(parameter)
                    or ("default" in parameter["schema"] or not parameter["required"])
                ), parameter["name"]
    for name in ("SearchAnswer", "ItemAnswer", "HitAnswer"):
        assert "example" in schema["components"]["schemas"][name]


def test_the_page_and_its_parts(app: FastAPI) -> None:
    page = get(app, "/")
    assert page.headers["content-type"].startswith("text/html")
    parts = re.findall(r'(?:src|href)="(/static/[^"]+)"', page.text)
    assert len(parts) >= 4
    assert answered(ask(app, *[("GET", part, {}) for part in parts])) == [200] * len(parts)
    assert not re.findall(r'(?:src|href)="(?!/)[^#"]', page.text)
