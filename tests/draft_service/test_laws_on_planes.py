"""Where a draft's laws go: one bundle for each target and message, inline where there is no plane."""

import pytest

from protos.ssd.v1 import draft_pb2, types_pb2
from ssd.proto_convert import outcome_table, proposal
from ssd.speculation.law import LawRef
from tests.draft_service.harness import STREAM, Request, make_engine
from tests.world.planes import Wire

VOCAB = 10_000
REJECTION = {"verification": types_pb2.VERIFICATION_REJECTION, "saguaro_c": 1.0}


class Bench:
    """A draft whose planes to targets 1 and 2 have the numbers 11 and 12."""

    def __init__(self, loaded):
        self.wire = Wire()
        self.engine = make_engine(loaded, planes=self.wire.sending)
        orders = [types_pb2.PlaneOrder(plane=10 + target, target=target) for target in (1, 2)]
        for order in orders:
            self.wire.receiving.order(STREAM, order)
        self.send(planes=orders)
        (response,) = self.engine.step(0.0).values()
        assert [report.plane for report in response.planes] == [11, 12]

    def send(self, **fields) -> None:
        self.engine.handle(STREAM, draft_pb2.DraftServiceServeRequest(**fields))

    def open(self, sequence: int, target: int, *, need: bool = True, **more) -> None:
        request = Request((3, 1, sequence), {"temperature": 1.0}, more={**REJECTION, "target": target, **more})
        self.send(opens=[request.message(sequence, need=need)])

    def run(self) -> list[draft_pb2.DraftServiceServeResponse]:
        said = []
        while self.engine.wake_at(0.0) is not None:
            said += self.engine.step(0.0).values()
        return said


@pytest.fixture
def bench(loaded):
    return Bench(loaded)


def laws_of(responses) -> dict[int, list]:
    """All laws that were sent for each sequence."""
    found: dict[int, list] = {}
    for response in responses:
        for message in response.proposals:
            found.setdefault(message.sequence, []).extend(proposal(message, vocab_size=VOCAB).laws)
        for message in response.tables:
            for branch in outcome_table(message, vocab_size=VOCAB).branches:
                found.setdefault(message.sequence, []).extend(branch.laws)
    return found


def test_laws_are_in_the_bundles_that_messages_refer_to_and_equal_those_of_inline_ones(loaded):
    planes, inline = Bench(loaded), Bench(loaded)
    inline.send(plane_closes=[11, 12])
    for bench in (planes, inline):
        bench.open(1, target=1)
    far, here = laws_of(planes.run())[1], laws_of(inline.run())[1]
    assert len(far) == len(here) > 10
    assert all(isinstance(law, LawRef) and law.plane == 11 for law in far)
    assert [planes.wire.receiving.law(STREAM, law) for law in far] == here
    assert inline.wire.posted == 0


def test_a_message_has_one_bundle_for_each_target(bench):
    for sequence, target in ((1, 1), (2, 2), (3, 1)):
        bench.open(sequence, target, need=True)
    responses = bench.run()
    assert {law.plane for law in laws_of(responses)[1]} == {11}
    assert {law.plane for law in laws_of(responses)[2]} == {12}
    for response in responses:
        bundles = {(law.plane, law.bundle) for found in laws_of([response]).values() for law in found}
        assert len(bundles) == len({plane for plane, _ in bundles})


@pytest.mark.parametrize("target", [0, 9])
def test_without_a_plane_to_its_target_a_sequences_laws_go_inline(bench, target):
    bench.open(1, target)
    assert not any(isinstance(law, LawRef) for law in laws_of(bench.run())[1])
    assert bench.wire.posted == 0


def test_a_sequence_that_moves_sends_its_laws_to_its_new_target(bench):
    bench.open(1, target=1)
    bench.run()
    dropped = bench.engine.load().stale_drops
    bench.send(advances=[draft_pb2.Advance(sequence=1, base_len=3, target=2)])
    assert bench.engine.load().stale_drops == dropped, "that is news enough"
    bench.send(advances=[draft_pb2.Advance(sequence=1, base_len=3, ids=[7], need_proposal=True)])
    assert {law.plane for law in laws_of(bench.run())[1]} == {12}


def test_coupled_sequences_have_no_laws_and_use_no_plane(bench):
    bench.open(1, 1, verification=types_pb2.VERIFICATION_COUPLED)
    assert not laws_of(bench.run())[1]
    assert bench.wire.posted == 0


def test_a_cut_plane_is_told_of_and_laws_go_inline_at_once(bench):
    bench.open(1, target=1)
    bench.wire.cut()
    responses = bench.run()
    assert not any(isinstance(law, LawRef) for law in laws_of(responses)[1])
    broken = [report.plane for response in responses for report in response.planes]
    assert broken == [11, 12]


def test_an_end_of_the_stream_ends_its_planes(bench):
    bench.engine.close_stream(STREAM)
    assert not bench.wire.sending.open
