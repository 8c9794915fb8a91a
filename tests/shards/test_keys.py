"""Names that are taken get a number, however many want the same."""

from __future__ import annotations

from gpuload.shards.keys import Names, as_text


def test_no_two_names_are_alike_and_the_first_stays_as_it_is():
    names = Names(["taken"])
    wanted = ["a", "a", "a-2", "a", "a-2", "b", "taken"]
    assert [names.free(name) for name in wanted] == ["a", "a-2", "a-2-2", "a-3", "a-2-3", "b", "taken-2"]


def test_a_number_is_tried_once():
    """Rows that are all called image.jpg: to try from 2 on each time takes days for a million."""
    looked_up = []

    class Taken(set):
        def __contains__(self, name):
            looked_up.append(name)
            return super().__contains__(name)

    names = Names()
    names._taken = Taken()
    assert [names.free("image") for _ in range(1000)] == ["image", *(f"image-{n}" for n in range(2, 1001))]
    assert len(looked_up) < 3000


def test_bytes_that_are_no_text_are_written_as_numbers():
    assert as_text(b"caf\xe9/\xff\xc3\xa9".decode("utf-8", "surrogateescape")) == "caf%E9/%FFé"
    assert as_text("é%E9") == "é%E9"
