"""Rounds: whatever is proposed or anticipated, the ids are those of the plain loop."""

from protos.ssd.v1 import target_pb2, types_pb2
from tests.target_service.rig import AR, SD, SSD, STREAM, VOCAB, Rig, opening, plain_ids

PROMPT = [3, 1, 4, 1, 5]
N = len(PROMPT)


def begun(**kwargs) -> tuple[Rig, list[int]]:
    """A sequence 1 after its first token, waiting for a proposal; and the ids it must give."""
    rig, message = Rig(), opening(1, PROMPT, **kwargs)
    rig.open(message)
    rig.step()
    truth = plain_ids(message)
    assert rig.ids(1) == truth[:1]
    return rig, truth


def wrong(token: int) -> int:
    return (token + 1) % VOCAB


def test_plain_decoding_equals_the_plain_loop():
    rig, message = Rig(), opening(1, PROMPT, mode=AR)
    rig.open(message)
    rig.run()
    assert rig.ids(1) == plain_ids(message)
    assert [o.proposed for o in rig.outcomes[1]] == [0] * 12
    assert rig.closed == [1]
    assert rig.pool.in_use == 0


def test_a_right_proposal_is_accepted_as_a_whole_and_gives_one_more():
    rig, truth = begun()
    rig.propose(1, N + 1, truth[1:5])
    (outcome,) = rig.step()
    assert (outcome.base_len, outcome.proposed, outcome.accepted) == (N + 1, 4, 4)
    assert list(outcome.ids) == truth[1:6]


def test_a_wrong_proposal_still_gives_the_targets_own_token():
    rig, truth = begun()
    rig.propose(1, N + 1, [wrong(truth[1]), *truth[2:5]])
    (outcome,) = rig.step()
    assert (outcome.proposed, outcome.accepted, list(outcome.ids)) == (4, 0, truth[1:2])
    rig.run()
    assert rig.ids(1) == truth


def test_a_proposal_is_accepted_up_to_its_first_wrong_token():
    rig, truth = begun()
    rig.propose(1, N + 1, [*truth[1:3], wrong(truth[3]), truth[4]])
    (outcome,) = rig.step()
    assert (outcome.accepted, list(outcome.ids)) == (2, truth[1:4])
    rig.run()
    assert rig.ids(1) == truth


def test_a_proposal_longer_than_k_is_cut():
    rig, truth = begun(k=2)
    rig.propose(1, N + 1, truth[1:6])
    (outcome,) = rig.step()
    assert (outcome.proposed, list(outcome.ids)) == (2, truth[1:4])


def test_a_table_that_holds_the_outcome_is_a_hit_and_the_next_round_needs_no_message():
    rig, message = Rig(), opening(1, PROMPT)
    truth = plain_ids(message)
    rig.open(message)
    rig.table(1, N, [], (0, truth[0], truth[1:4]), (0, wrong(truth[0]), [0]))
    (first,) = rig.step()
    assert (first.hit, first.next_depth) == (True, 3)
    (second,) = rig.step()
    assert (second.proposed, second.accepted, list(second.ids)) == (3, 3, truth[1:5])
    assert (second.hit, second.next_depth) == (False, 0)


def test_a_hit_after_partial_acceptance():
    rig, truth = begun()
    in_flight = [truth[1], wrong(truth[2])]
    rig.propose(1, N + 1, in_flight)
    rig.table(1, N + 1, in_flight, (0, truth[1], [9, 9]), (1, truth[2], truth[3:6]), (2, truth[3], [9]))
    (outcome,) = rig.step()
    assert (outcome.accepted, outcome.hit, outcome.next_depth) == (1, True, 3)
    (outcome,) = rig.step()
    assert list(outcome.ids) == truth[3:7]


def test_a_table_without_the_outcome_is_a_miss():
    rig, message = Rig(), opening(1, PROMPT)
    truth = plain_ids(message)
    rig.open(message)
    rig.table(1, N, [], (0, wrong(truth[0]), truth[1:4]))
    (first,) = rig.step()
    assert (first.hit, first.next_depth) == (False, 0)
    assert rig.step() == []  # it waits
    rig.run()
    assert rig.ids(1) == truth


def test_a_table_that_comes_late_serves_the_waiting_row_but_is_no_hit():
    rig, truth = begun()
    assert rig.step() == []
    rig.table(1, N, [], (0, truth[0], truth[1:4]))
    (outcome,) = rig.step()
    assert (outcome.proposed, list(outcome.ids)) == (3, truth[1:5])
    assert not rig.outcomes[1][0].hit


def test_a_late_table_is_rebased_over_a_round_that_went_on_without_it():
    rig, message = Rig(), opening(1, PROMPT, drafting=False)
    truth = plain_ids(message)
    rig.open(message)
    for _ in range(3):
        rig.step()
    rig.table(1, N, [], (0, truth[0], truth[1:7]))
    (outcome,) = rig.step()
    assert (outcome.base_len, outcome.proposed) == (N + 3, 4)
    assert list(outcome.ids) == truth[3:8]


def test_a_late_proposal_is_rebased_and_a_stale_one_dropped_and_counted():
    rig, message = Rig(), opening(1, PROMPT, drafting=False)
    truth = plain_ids(message)
    rig.open(message)
    rig.table(1, N, [], (0, wrong(truth[0]), [1]))
    for _ in range(3):
        rig.step()
    rig.propose(1, N + 1, [wrong(truth[1]), 2, 3, 4])
    (outcome,) = rig.step()
    assert outcome.proposed == 0
    assert rig.engine.load().stale_drops > 0
    rig.propose(1, N + 2, truth[2:6])
    (outcome,) = rig.step()
    assert (outcome.proposed, list(outcome.ids)) == (2, truth[4:7])


def test_doubled_and_reordered_messages_change_nothing():
    rig, truth = begun()
    for _ in range(2):
        rig.propose(1, N + 1, truth[1:4])
        rig.propose(1, N + 1, [wrong(truth[1])])
        rig.table(1, N, [], (0, truth[0], [wrong(truth[1])]))
    rig.step()
    for base in range(2 * N + 6):
        rig.propose(1, base, truth[:3])
        rig.table(1, base, truth[:2], (1, truth[3], truth[4:]), (7, 1, [2]))
    rig.run()
    assert rig.ids(1) == truth


def test_ids_that_the_model_does_not_know_never_reach_it():
    rig, truth = begun()
    rig.propose(1, N + 1, [truth[1], VOCAB, 2**32 - 1])
    (outcome,) = rig.step()
    assert (outcome.proposed, list(outcome.ids)) == (1, truth[1:3])
    rig.table(1, N + 3, [2**31], (0, truth[3], [VOCAB + 5]), (0, 2**32 - 1, [1]), (1, 1, [1]))
    rig.run()
    assert rig.ids(1) == truth


def test_messages_for_unknown_sequences_and_other_streams_are_dropped_and_counted():
    rig, truth = begun()
    rig.propose(99, N, [1])
    rig.table(98, N, [], (0, 1, [1]))
    rig.send(STREAM + 1, proposals=[types_pb2.Proposal(sequence=1, base_len=N + 1, ids=[wrong(truth[1])])])
    rig.send(STREAM + 1, closes=[1])
    assert rig.engine.load().stale_drops == 3
    rig.propose(1, N + 1, truth[1:3])
    assert list(rig.step()[0].ids) == truth[1:4]


def test_a_doubled_open_leaves_the_sequence_alone_and_one_after_its_end_starts_nothing():
    rig, truth = begun(drafting=False)
    rig.open(opening(1, [2, 2]))
    rig.run()
    assert rig.ids(1) == truth
    rig.open(opening(1, PROMPT))
    rig.run()
    assert rig.ids(1) == truth
    assert rig.pool.in_use == 0


def test_an_open_that_comes_after_its_own_close_starts_nothing():
    rig = Rig()
    rig.send(closes=[1])
    rig.open(opening(1, PROMPT))
    rig.run()
    assert rig.outcomes == {}


def test_the_same_number_on_two_streams_is_two_sequences():
    rig = Rig()
    one, two = opening(1, PROMPT, mode=AR), opening(1, [9, 8, 7], mode=AR)
    rig.open(one, stream=1)
    rig.open(two, stream=2)
    ids: dict[int, list[int]] = {1: [], 2: []}
    while rig.engine.wake_at(rig.now) is not None:
        for stream, response in rig.engine.step(rig.now).items():
            for outcome in response.outcomes:
                ids[stream] += outcome.ids
    assert ids == {1: plain_ids(one), 2: plain_ids(two)}


def test_sd_uses_a_proposal_and_never_reports_a_hit():
    rig, truth = begun(mode=SD)
    rig.propose(1, N + 1, truth[1:4])
    rig.propose(1, N + 1, truth[1:9])
    (outcome,) = rig.step()
    assert list(outcome.ids) == truth[1:6]  # as much of the longer one as k allows
    assert not outcome.hit
    assert outcome.next_depth == 3  # and its rest, rebased
    rig.run()
    assert rig.ids(1) == truth


def test_ar_ignores_predictions():
    rig, truth = begun(mode=AR)
    rig.propose(1, N + 1, truth[1:4])
    (outcome,) = rig.step()
    assert outcome.proposed == 0


def test_a_replayed_sequence_goes_on_where_it_was():
    for mode in (AR, SSD):
        sampling = {"temperature": 1.1, "seed": 5, "presence_penalty": 1.0, "repetition_penalty": 1.3}
        whole = opening(1, PROMPT, mode=mode, drafting=False, sampling=sampling)
        truth = plain_ids(whole)
        rig = Rig()
        rig.open(opening(1, PROMPT + truth[:5], prompt_len=N, mode=mode, drafting=False, sampling=sampling))
        rig.run()
        assert rig.outcomes[1][0].base_len == N + 5
        assert rig.ids(1) == truth[5:]


def test_one_message_a_step_and_stream():
    rig = Rig()
    rig.open(*(opening(i, [i, 2], mode=AR) for i in range(5)))
    (response,) = rig.engine.step(rig.now).values()
    assert isinstance(response, target_pb2.TargetServiceServeResponse)
    assert sorted(outcome.sequence for outcome in response.outcomes) == [0, 1, 2, 3, 4]


def test_penalties_and_logprobs_are_the_same_with_and_without_proposals():
    sampling = {"temperature": 0.8, "seed": 3, "frequency_penalty": 1.5, "presence_penalty": 0.5}
    sampling |= {"repetition_penalty": 1.4, "logit_bias": {4: 2.0}, "top_p": 0.95}
    message = opening(1, PROMPT, sampling=sampling, logprobs=3, max_tokens=20)
    truth = plain_ids(message)
    results = []
    for mode in (AR, SSD):
        rig = Rig()
        rig.open(opening(1, PROMPT, mode=mode, sampling=sampling, logprobs=3, max_tokens=20))
        for round_number in range(40):
            done = len(rig.ids(1))
            guess = truth[done : done + 4]
            if round_number % 3 == 1 and len(guess) > 2:
                guess[2] = wrong(guess[2])
            rig.propose(1, N + done, guess)
            rig.step()
        assert rig.ids(1) == truth
        results.append([one for outcome in rig.outcomes[1] for one in outcome.logprobs])
    assert len(rig.outcomes[1]) < 12  # proposals were accepted
    assert results[0] == results[1]
    assert [one.id for one in results[0]] == truth
    assert all(one.logprob < 0 and len(one.top) == 3 for one in results[0])
