"""Of programs that read one stream behind one prefix, one prefills ahead."""

from __future__ import annotations

from parrot_engine.programs.siblings import Siblings


def test_the_first_prefills_and_the_next_one_once_it_has_gone() -> None:
    siblings = Siblings()
    with siblings.reading("t", "v") as second_leads:
        with siblings.reading("t", "v") as first_leads:
            assert first_leads()
            assert not second_leads()
            assert first_leads()
        assert second_leads()
    with siblings.reading("t", "v") as third_leads:
        assert third_leads()


def test_who_only_asked_in_vain_takes_nothing_along_when_it_goes() -> None:
    siblings = Siblings()
    with siblings.reading("t", "v") as first_leads:
        assert first_leads()
        with siblings.reading("t", "v") as second_leads:
            assert not second_leads()
        assert first_leads()


def test_other_tenants_streams_and_prefixes_are_no_siblings() -> None:
    siblings = Siblings()
    with siblings.reading("t", "v", (1, 2)) as first_leads:
        assert first_leads()
        for stream in (("u", "v", (1, 2)), ("t", "w", (1, 2)), ("t", "v", (1, 3))):
            with siblings.reading(*stream) as leads:
                assert leads()
