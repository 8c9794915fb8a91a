"""Quickened sessions of botocore: they are what s3fs would have made, and say the same times."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from gpuload.core.s3_sessions import quicken

pytestmark = pytest.mark.full


@pytest.fixture
def system():
    s3fs = pytest.importorskip("s3fs", reason="pip install s3fs")
    return lambda **how: s3fs.S3FileSystem(key="a", secret="b", skip_instance_cache=True, asynchronous=True, **how)


def parser_of(session):
    return session.get_component("response_parser_factory").create_parser("rest-xml")._timestamp_parser


@pytest.mark.parametrize(
    "value",
    [
        "2026-11-30T16:20:28.749Z",
        "2026-11-30T16:20:28Z",
        "2026-11-30T16:20:28+02:00",
        "Mon, 30 Nov 2026 16:20:28 GMT",
        "1796055628",
        1796055628,
        1796055628.5,
    ],
)
def test_times_are_those_of_botocore(system, value):
    from botocore.utils import parse_timestamp

    quick = system()
    quicken(quick)
    found, expected = parser_of(quick.session)(value), parse_timestamp(value)
    assert found == expected and found.tzinfo is not None


def test_models_are_read_once_and_the_rest_is_each_sessions_own(system):
    one, other = system(), system()
    quicken(one)
    quicken(other)
    assert one.session is not other.session
    loaders = [each.session.get_component("data_loader") for each in (one, other)]
    assert loaders[0] is loaders[1]


def test_a_session_of_the_users_stays_as_it_is(system):
    from aiobotocore.session import AioSession

    session = AioSession()
    given = system(session=session)
    quicken(given)
    assert given.session is session


def test_a_profile_that_does_not_exist_is_said_by_s3fs(system):
    wrong = system(profile="no such profile")
    quicken(wrong)
    assert wrong.session is None


def test_what_is_no_s3_stays_as_it_is():
    other = SimpleNamespace(session=None)
    quicken(other)
    assert other == SimpleNamespace(session=None)
