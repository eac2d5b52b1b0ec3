"""Every step within a service's demand has a size that holds it, and that size is among those prepared."""

from hypothesis import given
from hypothesis import strategies as st

from ssd.runtime.step_sizes import Demand, StepSizes


@st.composite
def demands(draw):
    demand = Demand(
        queries=draw(st.integers(1, 34)),
        sequences=draw(st.integers(1, 64)),
        branches=draw(st.integers(1, 64)),
        depth=draw(st.integers(1, 16)),
        candidates=draw(st.sampled_from([1, 17])),
    )
    context, block_size = draw(st.integers(16, 50_000)), draw(st.sampled_from([4, 16]))
    return StepSizes.make(demand, context=context, block_size=block_size, token_budget=draw(st.integers(1, 600)))


@given(demands(), st.data())
def test_a_step_finds_a_prepared_size_that_holds_it(sizes, data):
    rows = data.draw(st.integers(1, sizes.demand.sequences))
    counts = data.draw(st.lists(st.integers(1, sizes.demand.queries), min_size=rows, max_size=rows))
    width = data.draw(st.integers(1, sizes.widths[-1]))
    count = data.draw(st.sampled_from([1, sizes.demand.candidates]))
    size = sizes.of_step(rows, sum(counts), max(counts), width, count)
    if sum(counts) > sizes.most_tokens:
        assert size is None
        return
    assert size.tokens <= sizes.most_tokens
    assert size.rows >= rows and size.tokens >= sum(counts) and size.queries >= max(counts) and size.width >= width
    assert size in set(sizes.steps())


@given(demands(), st.data())
def test_branches_find_a_prepared_size_that_holds_them(sizes, data):
    tokens = data.draw(st.integers(1, sizes.demand.branches))
    depth = data.draw(st.integers(1, sizes.demand.depth))
    width = data.draw(st.integers(1, sizes.widths[-1]))
    size = sizes.of_branches(1, tokens, width, depth)
    assert sizes.most_tokens >= size.tokens >= tokens and size.depth >= depth and size.width >= width
    assert size in set(sizes.branches())


def test_the_sizes_of_usual_services_are_few():
    target = StepSizes.make(Demand(queries=17), context=40_960, block_size=16, token_budget=512)
    assert len(list(target.steps())) < 200
    draft = Demand(queries=34, branches=64, candidates=17, chain=16)
    made = StepSizes.make(draft, context=8192, block_size=16, token_budget=512)
    assert len(list(made.steps())) + len(list(made.branches())) < 400


def test_steps_that_are_large_or_rare_have_none():
    sizes = StepSizes.make(Demand(queries=5, branches=8), context=1000, block_size=16, token_budget=512)
    assert sizes.of_step(1, 100, 100, 8) is None
    assert sizes.of_step(3, 300, 200, 8) is None
    assert sizes.of_step(2, 9, 5, 10_000) is None
    assert sizes.of_branches(1, 1000, 8, 4) is None
