"""Answers and results as a run would have them, made up."""

from bench.run.cases import Case
from bench.run.counters import Counters
from bench.run.sample import Result, Sample
from protos.ssd.v1 import inference_pb2
from ssd.cli.client import Answer


def answer(ids, *, seconds=2.0, first_token_s=0.5, **usage):
    counts = inference_pb2.Usage(completion_tokens=len(ids), **usage)
    return Answer(ids=list(ids), usage=counts, first_token_s=first_token_s, seconds=seconds)


def result(mode, tok_s, *, batch=1, temperature=0.0, counters=None, hits=0, misses=0, **numbers):
    """A result with one sample of 100 tokens at this speed."""
    sample = Sample(
        seconds=100 / tok_s,
        tokens=100,
        prompt_tokens=10,
        rounds=40,
        proposed=120 if mode != "ar" else 0,
        accepted=60 if mode != "ar" else 0,
        hits=hits,
        misses=misses,
        jit_rounds=0,
        ngram_rounds=0,
        plain_rounds=0,
        first_token_s=0.1,
        stream_tok_s=tok_s,
        counters=counters or Counters(),
    )
    return Result(Case(batch, temperature, mode, **numbers), (sample,))
