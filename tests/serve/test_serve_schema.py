"""Whatever the OpenAPI schema allows, and more, gets an answer that it describes."""

from __future__ import annotations

from typing import Any

import pytest
from serve.fakes import make_searcher

from gradspace.serve.app import make_app

schemathesis = pytest.importorskip("schemathesis", reason="needs schemathesis")
from hypothesis import HealthCheck, Phase, settings  # noqa: E402
from schemathesis.checks import allow_header_conformance  # noqa: E402
from schemathesis.specs.openapi.checks import positive_data_acceptance  # noqa: E402

schema = schemathesis.openapi.from_asgi("/api/openapi.json", make_app([make_searcher("photos")]))


@schema.parametrize()  # type: ignore[untyped-decorator]
@settings(
    max_examples=25,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=list(HealthCheck),
    phases=[Phase.explicit, Phase.generate],
)
def test_answers_are_as_described(case: Any) -> None:
    """What a schema cannot say may be refused, as q and like together.

    For a path with two methods, Starlette allows those of the first route only.
    """
    case.call_and_validate(excluded_checks=[positive_data_acceptance, allow_header_conformance])
