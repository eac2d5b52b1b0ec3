"""From outcomes to text, stops and usage: whatever the blocks, everything ends at one token."""

from hypothesis import given
from hypothesis import strategies as st

from protos.ssd.v1 import inference_pb2, target_pb2, types_pb2
from router.detokenizer import ByteLevelDetokenizer
from router.session import MESSAGE_TOKENS, Session
from router.stops import StopTexts
from router.totals import Totals

STOP, LENGTH = types_pb2.FINISH_REASON_STOP, types_pb2.FINISH_REASON_LENGTH

# Tokens of more than one character, so that stops may end inside one.
PIECES = [b"a", b"b", b"c", b"ab", b"bc", b"abc", b"\xf0\x9f", b"\x99\x82", b""]


def session(stops=(), *, include=False, min_tokens=0) -> Session:
    return Session(
        start=inference_pb2.GenerationStart(request_id="r", prompt_tokens=7),
        mode=types_pb2.MODE_SSD,
        detokenizer=ByteLevelDetokenizer(dict(enumerate(PIECES))),
        stops=StopTexts(stops, include=include),
        min_tokens=min_tokens,
    )


def outcome(ids, finish=0, stop_id=0, **fields) -> target_pb2.StepOutcome:
    logprobs = [types_pb2.TokenLogprob(id=token_id, logprob=-index) for index, token_id in enumerate(ids)]
    return target_pb2.StepOutcome(ids=ids, logprobs=logprobs, finish=finish, stop_id=stop_id, **fields)


def play(one: Session, blocks, finish=LENGTH, *, slow=False):
    """Everything that a client sees, put together. slow: it is all taken at once."""
    whole = inference_pb2.GenerateResponse()
    for index, ids in enumerate(blocks):
        ended = one.feed(outcome(ids, finish if index == len(blocks) - 1 else 0), Totals(rounds=index + 1))
        if not slow:
            merge(whole, one.take())
        if ended:
            break
    merge(whole, one.take())
    return whole


def merge(whole, message):
    if message is not None:
        whole.text += message.text
        whole.token_ids.extend(message.token_ids)
        whole.logprobs.extend(message.logprobs)
        for name in ("finish", "usage"):
            if message.HasField(name):
                getattr(whole, name).CopyFrom(getattr(message, name))


tokens = st.integers(0, len(PIECES) - 1)


@given(
    ids=st.lists(tokens, min_size=1, max_size=20),
    cuts=st.lists(st.integers(1, 5), min_size=20, max_size=20),
    stops=st.lists(st.text(alphabet="abc🙂", min_size=1, max_size=4), max_size=3),
    include=st.booleans(),
    min_tokens=st.integers(0, 12),
    slow=st.booleans(),
)
def test_blocks_of_any_size_give_what_single_tokens_give(ids, cuts, stops, include, min_tokens, slow):
    blocks, rest = [], list(ids)
    for size in cuts:
        if rest:
            blocks.append(rest[:size])
            rest = rest[size:]
    by_block = play(session(stops, include=include, min_tokens=min_tokens), blocks, slow=slow)
    by_token = play(session(stops, include=include, min_tokens=min_tokens), [[token_id] for token_id in ids])
    assert by_block.text == by_token.text
    assert by_block.token_ids == by_token.token_ids
    assert by_block.finish == by_token.finish
    assert by_block.usage.completion_tokens == by_token.usage.completion_tokens == len(by_block.token_ids)
    assert [one.id for one in by_block.logprobs] == list(by_block.token_ids) == ids[: len(by_block.token_ids)]
    if by_block.finish.reason == STOP:
        assert len(by_block.token_ids) > min_tokens
    else:
        assert by_block.text == b"".join(PIECES[i] for i in ids).decode(errors="replace")


def test_the_token_that_completes_a_stop_is_the_last_one():
    whole = play(session(["bc"]), [[0, 5, 0, 1], [2]])
    assert (whole.text, list(whole.token_ids)) == ("aa", [0, 5])
    assert (whole.finish.reason, whole.finish.stop_text) == (STOP, "bc")
    assert whole.usage.completion_tokens == 2
    assert len(whole.logprobs) == 2


def test_a_stop_across_two_blocks_is_held_back_and_never_shown():
    one = session(["abc"])
    assert not one.feed(outcome([2, 0]), Totals())
    assert one.take().text == "c"
    assert not one.feed(outcome([1]), Totals())
    assert one.take().text == ""
    assert one.feed(outcome([2, 0]), Totals())
    last = one.take()
    assert (last.text, list(last.token_ids), last.finish.stop_text) == ("", [2], "abc")


def test_a_stop_that_ends_inside_a_token_cuts_the_text_there_and_keeps_the_id():
    whole = play(session(["ab"], include=True), [[2, 5, 1]])
    assert (whole.text, list(whole.token_ids)) == ("cab", [2, 5])


def test_text_held_back_comes_when_the_generation_ends_otherwise():
    whole = play(session(["abc"]), [[2, 0, 1]])
    assert (whole.text, whole.finish.reason, whole.finish.stop_text) == ("cab", LENGTH, "")


def test_a_stop_text_at_the_very_last_token_wins_over_the_limit():
    assert play(session(["b"]), [[0, 1]]).finish.reason == STOP


def test_no_stop_text_counts_before_min_tokens():
    whole = play(session(["a"], min_tokens=2), [[0, 0, 1, 0, 1]])
    assert (whole.text, list(whole.token_ids)) == ("aab", [0, 0, 1, 0])


def test_the_id_that_ended_the_generation_is_named():
    one = session()
    assert one.feed(outcome([0, 8], STOP, stop_id=8), Totals())
    last = one.take()
    assert (last.finish.reason, last.finish.stop_id, last.text) == (STOP, 8, "a")
    assert not play(session(), [[0]]).finish.HasField("stop_id")


def test_half_a_character_waits_for_the_other_half():
    one = session()
    one.feed(outcome([6]), Totals())
    assert one.take().text == ""
    one.feed(outcome([7]), Totals())
    assert one.take().text == "🙂"


def test_half_a_character_at_the_end_becomes_a_replacement_after_held_back_text():
    assert play(session(["ab"]), [[0, 6]]).text == "a\ufffd"


def test_usage_and_finish_come_once_on_the_last_message():
    one = session()
    assert one.take().HasField("start")
    assert one.take() is None
    one.feed(outcome([0], cached_tokens=4), Totals(rounds=1))
    message = one.take()
    assert not (message.HasField("start") or message.HasField("usage") or message.HasField("finish"))
    one.feed(outcome([1, 2], LENGTH), Totals(rounds=2, proposed=3, accepted=2, hits=1, misses=1))
    last = one.take()
    assert last.usage == inference_pb2.Usage(
        prompt_tokens=7,
        completion_tokens=3,
        cached_tokens=4,
        rounds=2,
        proposed=3,
        accepted=2,
        hits=1,
        misses=1,
        mode=types_pb2.MODE_SSD,
    )
    assert one.done
    assert one.take() is None


def test_what_gathered_for_long_comes_in_several_messages_and_the_end_with_the_last():
    one = session(["zz"])
    count = MESSAGE_TOKENS // 10
    for _ in range(count * 2):
        one.feed(outcome([0] * 10), Totals())
    one.feed(outcome([1], LENGTH), Totals())
    messages = []
    while (message := one.take()) is not None:
        messages.append(message)
    assert [len(message.token_ids) for message in messages] == [count * 10, count * 10 + 1]
    assert "".join(message.text for message in messages) == "a" * 20 * count + "b"
    assert [message.HasField("finish") for message in messages] == [False, True]


def test_the_first_end_counts():
    one = session()
    one.feed(outcome([0]), Totals())
    one.end(types_pb2.FINISH_REASON_CANCELLED)
    one.end(types_pb2.FINISH_REASON_TIME_LIMIT)
    assert one.feed(outcome([1], LENGTH), Totals())
    whole = one.take()
    assert (whole.finish.reason, list(whole.token_ids)) == (types_pb2.FINISH_REASON_CANCELLED, [0])
