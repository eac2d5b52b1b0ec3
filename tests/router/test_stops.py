"""Stop texts in a stream of pieces."""

from hypothesis import given
from hypothesis import strategies as st

from router.stops import StopTexts


def reference(text: str, stops: list[str]) -> tuple[int, str] | None:
    """End and name of the stop text completed first (of several, the longest), looking at every prefix of the text."""
    for end in range(1, len(text) + 1):
        completed = [stop for stop in stops if text[:end].endswith(stop)]
        if completed:
            return end, max(completed, key=len)
    return None


def run(stops: StopTexts, pieces: list[str]) -> tuple[str, str | None]:
    shown = ""
    for piece in pieces:
        scan = stops.push(piece)
        shown += scan.text
        if scan.stop is not None:
            return shown, scan.stop
    return shown + stops.flush(), None


words = st.text(alphabet="abc", max_size=5)


@given(
    pieces=st.lists(words, max_size=20),
    stops=st.lists(st.text(alphabet="abc", min_size=1, max_size=5), max_size=4),
    include=st.booleans(),
)
def test_any_cut_of_the_text_into_pieces_ends_at_the_first_completed_stop(pieces, stops, include):
    text = "".join(pieces)
    found = reference(text, stops)
    shown, stop = run(StopTexts(stops, include=include), pieces)
    if found is None:
        assert (shown, stop) == (text, None)
    else:
        end, name = found
        assert stop == name
        assert shown == text[: end if include else end - len(name)]


@given(pieces=st.lists(words, max_size=20), stops=st.lists(st.text(alphabet="abc", min_size=1, max_size=5), min_size=1))
def test_only_text_that_may_begin_a_stop_is_held_back(pieces, stops):
    watcher, text, shown = StopTexts(stops), "", ""
    for piece in pieces:
        text += piece
        scan = watcher.push(piece, active=False)
        shown += scan.text
        held = text[len(shown) :]
        assert text.startswith(shown)
        assert not held or any(stop.startswith(held) and len(held) < len(stop) for stop in stops)
        longer = [text[start:] for start in range(len(shown))]
        assert not any(stop.startswith(tail) and len(tail) < len(stop) for stop in stops for tail in longer)
    assert shown + watcher.flush() == text


def test_a_stop_may_span_any_number_of_pieces_and_end_inside_one():
    assert run(StopTexts(["\n\nUser:"]), ["Hi", ".\n", "\nUs", "er: what"]) == ("Hi.", "\n\nUser:")
    assert run(StopTexts(["\n\nUser:"], include=True), ["Hi.\n", "\nUser: what"]) == ("Hi.\n\nUser:", "\n\nUser:")


def test_a_stop_completed_while_inactive_does_not_count_and_its_text_goes_out():
    stops = StopTexts(["ab"])
    assert stops.push("xab", active=False).text == "xab"
    assert stops.push("a").text == ""
    scan = stops.push("b")
    assert (scan.text, scan.stop) == ("", "ab")


def test_a_stop_begun_while_inactive_counts_when_it_is_completed_later():
    stops = StopTexts(["ab"])
    assert stops.push("xa", active=False).text == "x"
    assert stops.push("b").stop == "ab"


def test_overlapping_beginnings_are_followed():
    assert run(StopTexts(["aab"]), ["a", "a", "a", "b"]) == ("a", "aab")
    assert run(StopTexts(["abab", "bc"]), ["aba", "bc"]) == ("", "abab")


def test_a_long_text_takes_time_in_proportion_to_its_length():
    stops = StopTexts(["a" * 1000 + "b"])
    total = sum(len(stops.push("a").text) for _ in range(20_000)) + len(stops.flush())
    assert total == 20_000
