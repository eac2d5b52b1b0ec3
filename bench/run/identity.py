"""Do all modes give the same ids for the same seed? And where not: how close a call was it?"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

import grpc

from bench.run.cases import Case
from bench.run.load import Workload
from protos.ssd.v1 import inference_pb2, inference_pb2_grpc, types_pb2
from ssd.cli.client import Answer
from ssd.cli.request import GenerateOptions, build_request

ALTERNATIVES = 20
WITHIN_S = 120.0


@dataclass(frozen=True)
class Difference:
    """The first place where an answer is not the reference's.

    gap: how much likelier the target alone holds the reference's token than the other, in nats of its own law; None =
    not asked, inf = the other is not among its likeliest. At a temperature above 0 both also had noise in the race.
    """

    reference: str
    case: Case
    number: int
    position: int
    expected: int | None
    found: int | None
    gap: float | None = None

    def text(self) -> str:
        """For people."""
        close = "" if self.gap is None else f", {self.gap:.3g} nats apart for the target alone"
        where = f"request {self.number}, token {self.position}"
        at = f"T={self.case.temperature:g}, batch {self.case.batch}"
        return f"{self.case.label} ({at}): {where} is {self.found}, {self.expected} in {self.reference}{close}"


@dataclass
class Identity:
    """Answers of all cases, compared as they come. The first answer to a request at a temperature is the reference."""

    compared: int = 0
    equal: int = 0
    differences: list[Difference] = field(default_factory=list)
    """The first one of each case."""
    _references: dict[tuple[float, int], tuple[str, list[int]]] = field(default_factory=dict, repr=False)

    def take(self, case: Case, answers: Sequence[Answer]) -> None:
        """Compare one sample's answers, in the order of their requests."""
        for number, answer in enumerate(answers):
            known = self._references.get((case.temperature, number))
            if known is None:
                self._references[case.temperature, number] = f"{case.label} (batch {case.batch})", list(answer.ids)
                continue
            reference, expected = known
            self.compared += 1
            place = first_difference(expected, answer.ids)
            if place is None:
                self.equal += 1
            elif all(earlier.case != case for earlier in self.differences):
                one = Difference(reference, case, number, place, _at(expected, place), _at(answer.ids, place))
                self.differences.append(one)

    def before(self, difference: Difference) -> list[int]:
        """The ids that both answers have in common."""
        return self._references[difference.case.temperature, difference.number][1][: difference.position]


def first_difference(one: Sequence[int], other: Sequence[int]) -> int | None:
    """The first position at which two answers differ, a missing token included; None if they are equal."""
    for place, (a, b) in enumerate(zip(one, other, strict=False)):
        if a != b:
            return place
    return None if len(one) == len(other) else min(len(one), len(other))


def _at(ids: Sequence[int], place: int) -> int | None:
    return ids[place] if place < len(ids) else None


class GapReader:
    """Asks the target alone how close two tokens were."""

    def __init__(self, channel: grpc.Channel, workload: Workload) -> None:
        self._stub = inference_pb2_grpc.InferenceServiceStub(channel)
        self._workload = workload

    def gap(self, difference: Difference, before: Sequence[int]) -> float | None:
        """Nats between the two tokens after `before`; None where an answer merely ended, or the router cannot say."""
        if difference.expected is None or difference.found is None:
            return None
        options = GenerateOptions(mode="ar", temperature=0.0, max_tokens=1, ignore_eos=True)
        request = build_request("", options)
        try:
            request.token_ids.ids.extend([*self._prompt(difference.number), *before])
            request.output.logprobs = ALTERNATIVES
            answer = self._stub.Generate(request, timeout=WITHIN_S)
        except grpc.RpcError:
            return None
        known = dict(_laws(answer.logprobs))
        if difference.expected not in known or difference.found not in known:
            return math.inf
        return known[difference.expected] - known[difference.found]

    def _prompt(self, number: int) -> Sequence[int]:
        asked = build_request(self._workload.content(number), GenerateOptions())
        request = inference_pb2.TokenizeRequest()
        if self._workload.raw:
            request.text = asked.text
        else:
            request.chat.CopyFrom(asked.chat)
        return self._stub.Tokenize(request, timeout=WITHIN_S).ids


def _laws(tokens: Iterable[types_pb2.TokenLogprob]) -> Iterator[tuple[int, float]]:
    for token in tokens:
        yield token.id, token.logprob
        yield from ((other.id, other.logprob) for other in token.top)
