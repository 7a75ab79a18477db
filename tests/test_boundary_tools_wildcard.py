"""Patterns of * and ?: what they find, and that none of them takes long."""

import fnmatch
import itertools
import time

import pytest

from syncagent.boundary.tools.wildcard import Wildcard


PATTERNS = ["", "*", "a", "*a", "a*", "a?b", "?", "a*b*a", "**", "ab*?", "*.b", "a*a"]


@pytest.mark.parametrize("pattern", PATTERNS)
def test_it_matches_what_fnmatch_matches(pattern):
    mine = Wildcard.of(pattern)
    for length in range(6):
        for chars in itertools.product("ab.", repeat=length):
            text = "".join(chars)
            assert mine.matches(text) == fnmatch.fnmatchcase(text, pattern), (pattern, text)


def test_all_other_characters_stand_for_themselves():
    assert Wildcard.of("[a].(b)+").matches("[a].(b)+")
    assert not Wildcard.of("[a]").matches("a")
    assert Wildcard.literal("a*?").find("xa*?") == 1
    assert Wildcard.literal("a*").find("aaa") is None


def test_it_finds_the_first_place():
    assert Wildcard.of("b*d").find("a b c d") == 2
    assert Wildcard.of("d*b").find("a b c d") is None
    assert Wildcard.of("*c").find("a b c") == 0
    assert Wildcard.of("B?C", ignore_case=True).find("ab-c") == 1
    assert Wildcard.literal("ÄB", ignore_case=True).find("xäb") == 1


@pytest.mark.parametrize("pattern", ["*a" * 300 + "*b", "a*" * 300 + "b", "?" * 900 + "b", "*?a" * 300 + "b"])
def test_a_pattern_that_would_explode_elsewhere_does_not(pattern):
    begun = time.process_time()
    assert not Wildcard.of(pattern).matches("a" * 20_000)
    assert Wildcard.of(pattern).find("a" * 20_000) is None
    assert time.process_time() - begun < 5
