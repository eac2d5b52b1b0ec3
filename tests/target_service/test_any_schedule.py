"""Whatever budget, pool, company and peers' messages there are: the ids are the plain loop's and all blocks return."""

from hypothesis import given, settings
from hypothesis import strategies as st

from protos.ssd.v1 import types_pb2
from tests.target_service.rig import AR, AUTO, SD, SSD, VOCAB, Rig, opening, plain

TOKENS = st.integers(0, VOCAB - 1)
IDS = st.lists(TOKENS, max_size=6)
FALLBACKS = st.sampled_from(types_pb2.Fallback.values())
SAMPLING = st.fixed_dictionaries(
    {"temperature": st.sampled_from([0.0, 0.5, 1.0]), "seed": st.integers(0, 3)},
    optional={
        "top_k": st.integers(1, 8),
        "top_p": st.sampled_from([0.5, 0.9]),
        "repetition_penalty": st.sampled_from([0.7, 1.5]),
        "frequency_penalty": st.sampled_from([-1.0, 1.0]),
    },
)


@st.composite
def openings(draw, number: int):
    # Few different prompts, so that prefixes are shared.
    prompt = ([1, 2, 3, 4, 5, 6, 7, 8] * 2)[: draw(st.integers(1, 16))] + draw(st.lists(TOKENS, max_size=2))
    most = draw(st.integers(1, 14))
    return opening(
        number,
        prompt,
        mode=draw(st.sampled_from([AR, SD, SSD, AUTO])),
        fallback=draw(FALLBACKS),
        rejection=draw(st.integers(0, 3)) == 0,
        k=draw(st.integers(1, 8)),
        drafting=draw(st.booleans()),
        logprobs=draw(st.sampled_from([-1, 2])),
        sampling=draw(SAMPLING),
        max_tokens=most,
        min_tokens=draw(st.integers(0, most)),
        stop_ids=draw(st.lists(TOKENS, max_size=3)),
        ignore_eos=draw(st.booleans()),
    )


def guess(data, rig: Rig, number: int, prompt: list[int], truth: list[int]) -> None:
    """A message of any quality about a sequence, on a base of any age."""
    done = len(rig.ids(number))
    base = data.draw(st.integers(max(0, done - 3), done + 1))
    coming = list(truth[base : base + data.draw(st.integers(0, 8))])
    if coming and data.draw(st.booleans()):
        coming[data.draw(st.integers(0, len(coming) - 1))] = data.draw(st.integers(0, VOCAB + 2))
    kind = data.draw(st.sampled_from(["proposal", "table", "drafting", "close of another"]))
    if kind == "proposal":
        made = types_pb2.Proposal(sequence=number, base_len=len(prompt) + base, ids=coming)
        if data.draw(st.booleans()):
            made.laws.extend(types_pb2.SparseLaw(ids=[5, 9, 14], weights=[0.5, 1.0, 2.0]) for _ in coming)
        rig.send(proposals=[made])
    elif kind == "table":
        in_flight = coming[: data.draw(st.integers(0, 4))]
        true_branch = (len(in_flight), *coming[len(in_flight) :][:1], coming[len(in_flight) + 1 :])
        branches = [true_branch] if len(true_branch) == 3 else []
        branches.append((data.draw(st.integers(0, 5)), data.draw(TOKENS), data.draw(IDS)))
        rig.table(number, len(prompt) + base, in_flight, *branches)
    elif kind == "drafting":
        change = {"sequence": number, "drafting": data.draw(st.booleans()), "fallback": data.draw(FALLBACKS)}
        rig.send(drafting=[change])
    else:
        rig.send(closes=[number + 100])


@settings(max_examples=100, deadline=None)
@given(data=st.data())
def test_any_schedule_gives_the_plain_ids(data):
    rig = Rig(
        blocks=data.draw(st.integers(16, 40)),
        block_size=data.draw(st.sampled_from([2, 3, 4])),
        budget=data.draw(st.sampled_from([1, 2, 5, 9, 64])),
    )
    messages = [data.draw(openings(number)) for number in range(data.draw(st.integers(1, 5)))]
    wanted = {message.sequence: plain(message) for message in messages}
    truths = {number: [one.id for one in drawn] for number, (drawn, _) in wanted.items()}
    unopened, unclosed = list(messages), {message.sequence for message in messages}
    closing = data.draw(st.sets(st.sampled_from(sorted(unclosed)), max_size=2))
    for _ in range(data.draw(st.integers(0, 30))):
        if unopened and data.draw(st.booleans()):
            rig.open(unopened.pop(0))
        for message in messages:
            if data.draw(st.booleans()):
                number = message.sequence
                guess(data, rig, number, list(message.ids), truths[number])
        if closing and data.draw(st.integers(0, 9)) == 0:
            rig.send(closes=[closing.pop()])
        rig.step(data.draw(st.sampled_from([0.0, 0.3, 2.0])))
    rig.open(*unopened)
    rig.run()
    assert rig.refused == {}
    assert rig.pool.in_use == 0
    assert len(rig.engine.replica) == 0 and not rig.engine.roster.live
    for number, (drawn, reason) in wanted.items():
        ids = rig.ids(number)
        if messages[number].verification == types_pb2.VERIFICATION_REJECTION and messages[number].sampling.temperature:
            continue  # its ids depend on what was proposed
        assert ids == truths[number][: len(ids)]
        if rig.outcomes.get(number) and rig.last(number).finish:
            assert len(ids) == len(drawn)
            assert types_pb2.FinishReason.Name(rig.last(number).finish).endswith(reason.name)
        logprobs = [one for outcome in rig.outcomes.get(number, []) for one in outcome.logprobs]
        if messages[number].logprobs >= 0:
            assert [(one.id, one.logprob, one.rank) for one in logprobs] == [
                (one.id, one.logprob, one.rank) for one in drawn[: len(ids)]
            ]
    ended = {number for number in wanted if rig.outcomes.get(number) and rig.last(number).finish}
    assert ended <= set(rig.closed)
