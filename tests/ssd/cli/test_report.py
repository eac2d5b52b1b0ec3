from protos.ssd.v1 import inference_pb2, types_pb2
from ssd.cli.client import Answer
from ssd.cli.report import Totals, as_json, metrics_line, table


def answer(**usage: int) -> Answer:
    return Answer(usage=inference_pb2.Usage(**usage), seconds=2.0, first_token_s=0.25)


def test_totals_add_up_and_rates_are_of_the_sums() -> None:
    first = answer(completion_tokens=10, rounds=4, proposed=12, accepted=6, hits=3, misses=1)
    second = answer(completion_tokens=30, rounds=10, proposed=4, accepted=4, hits=0, misses=4)
    totals = Totals.of([first, second])
    assert (totals.tokens, totals.rounds) == (40, 14)
    assert (totals.acceptance, totals.hit_rate, totals.tokens_per_second) == ("62 %", "38 %", "10.0")


def test_rates_of_nothing_are_dashes() -> None:
    assert (Totals().acceptance, Totals().hit_rate, Totals().tokens_per_second) == ("-", "-", "-")


def test_the_metrics_line_names_every_number() -> None:
    line = metrics_line(answer(completion_tokens=5, proposed=4, accepted=3))
    assert line == "[5 tokens, 2.5 tok/s, first token 0.25 s, acceptance 75 %, hit rate -]"


def test_json_holds_ids_text_finish_and_usage() -> None:
    one = Answer(
        start=inference_pb2.GenerationStart(request_id="r", model="m", seed=7, prompt_tokens=2),
        ids=[1, 0],
        text="a",
        finish=inference_pb2.Finish(reason=types_pb2.FINISH_REASON_STOP, stop_id=0),
        usage=inference_pb2.Usage(prompt_tokens=2, completion_tokens=2, mode=types_pb2.MODE_SSD),
    )
    plain = as_json(one)
    assert plain["ids"] == [1, 0]
    assert plain["finish"] == {"reason": "STOP", "stop_id": 0}
    usage = plain["usage"]
    assert isinstance(usage, dict)
    assert (usage["completion_tokens"], usage["mode"], usage["hits"]) == (2, "ssd", 0)


def test_columns_are_as_wide_as_their_contents() -> None:
    assert table(("mode", "n"), [("AR", "1000"), ("SSD!!", "5")]).splitlines() == [
        "mode      n",
        "-----  ----",
        "AR     1000",
        "SSD!!     5",
    ]
