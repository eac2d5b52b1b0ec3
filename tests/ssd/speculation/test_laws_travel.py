"""Laws go with the tokens that were drawn from them: cut, rebased, merged and found together."""

import random
import subprocess
import sys

import pytest

from ssd.speculation.cache import Found, Source, SpeculationCache
from ssd.speculation.law import SparseLaw, point_mass
from ssd.speculation.outcomes import Branch, OutcomeTable
from ssd.speculation.proposal import Continuation, Proposal, rebase


def law(token: int, mark: float = 1.0) -> SparseLaw:
    """A law that may give `token`; `mark` tells it from others."""
    return SparseLaw((token, token + 1), (1.0, mark))


def laws(*tokens: int, mark: float = 1.0) -> tuple[SparseLaw, ...]:
    return tuple(law(token, mark) for token in tokens)


def test_a_law_needs_no_torch():
    code = "import sys, ssd.speculation.cache, ssd.speculation.law; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.parametrize("bad", [laws(1), laws(1, 5), laws(2, 1)])
@pytest.mark.parametrize(
    "make",
    [
        lambda ids, bad: Proposal(0, ids, bad),
        lambda ids, bad: Branch(0, 9, ids, bad),
        lambda ids, bad: Continuation(ids, bad),
    ],
)
def test_laws_that_are_not_the_tokens_own_are_refused(make, bad):
    with pytest.raises(ValueError, match="law"):
        make((1, 2), bad)


def test_a_proposal_is_cut_and_rebased_with_its_laws():
    made = Proposal(4, (1, 2, 3), laws(1, 2, 3), Source.NGRAM)
    assert made.cut(2) == Proposal(4, (1, 2), laws(1, 2))
    rest = rebase(made, 5, [1])
    assert rest == Proposal(5, (2, 3), laws(2, 3))
    assert rest is not None and rest.source is Source.NGRAM


def test_what_follows_an_outcome_has_its_laws_and_the_rank_of_the_outcome():
    table = OutcomeTable(0, (1,), 2, (Branch(1, 5, (6, 7), laws(6, 7), rank=3),))
    assert table.following([1, 5]) == Continuation((6, 7), laws(6, 7), 3)
    assert table.following([1, 5, 6]) == Continuation((7,), laws(7))  # the rank was another token's


def test_an_impartial_answer_does_not_depend_on_lengths_and_never_comes_from_the_proposal():
    shallow, deep = Branch(1, 2, (7,), laws(7)), Branch(0, 1, (2, 3, 4), laws(2, 3, 4))
    table = OutcomeTable(0, (1, 2, 9), 3, (deep, shallow))
    assert table.lookup([1, 2]) == (3, 4)
    assert table.following([1, 2], impartial=True) == Continuation((7,), laws(7), 0)
    assert OutcomeTable(0, (1, 2, 9), 0, ()).lookup([1, 2]) == (9,)
    assert OutcomeTable(0, (1, 2, 9), 0, ()).following([1, 2], impartial=True) is None


def test_drawn_tokens_are_continued_and_never_exchanged():
    known = Branch(0, 1, (2,), laws(2), rank=4)
    deeper = Branch(0, 1, (2, 3), laws(2, 3, mark=5.0))
    other = Branch(0, 1, (8, 9, 9), laws(8, 9, 9))
    assert known.deepened(other) == known
    assert known.deepened(deeper) == Branch(0, 1, (2, 3), (law(2), law(3, 5.0)), rank=4)
    assert deeper.deepened(known) == deeper
    assert Branch(0, 1).deepened(other).ids == (8, 9, 9)
    assert known.deepened(Branch(0, 1, (2, 3, 4))) == known  # point masses are another kind of guess
    assert Branch(0, 1, (2,)).deepened(Branch(0, 1, (8, 9))).ids == (8, 9)


def test_the_cache_gives_laws_and_rank():
    cache = SpeculationCache()
    cache.put(1, OutcomeTable(0, (), 2, (Branch(0, 1, (2, 3), laws(2, 3), rank=2),)))
    assert cache.next_proposal(1, 1, [1]) == Found((2, 3), Source.TABLE, 0, laws(2, 3), 2)
    assert cache.next_proposal(1, 2, [1, 2]) == Found((3,), Source.TABLE, 0, laws(3), 0)
    cache.put_proposal(1, Proposal(2, (8, 9), laws(8, 9), Source.NGRAM))
    assert cache.next_proposal(1, 3, [1, 2, 8]) == Found((9,), Source.NGRAM, 2, laws(9))


def test_what_is_too_deep_is_cut_with_its_laws():
    cache = SpeculationCache(max_depth=1)
    cache.put(1, OutcomeTable(0, (), 2, (Branch(0, 1, (2, 3), laws(2, 3), rank=2),)))
    assert cache.next_proposal(1, 1, [1]) == Found((2,), Source.TABLE, 0, laws(2), 2)
    cache.put_proposal(1, Proposal(1, (4, 5), laws(4, 5)))
    assert cache.snapshot(1).proposals == (Proposal(1, (4,), laws(4)),)


def test_an_impartial_choice_takes_tables_first_and_then_the_last_arrival():
    cache = SpeculationCache(tables_per_sequence=4)
    cache.put_proposal(1, Proposal(1, (5, 6, 7, 8), laws(5, 6, 7, 8)))
    cache.put_proposal(1, Proposal(1, (4, 4), laws(4, 4)))
    assert cache.next_proposal(1, 1, [0], impartial=True) == Found((4, 4), Source.PROPOSAL, 1, laws(4, 4))
    cache.put(1, OutcomeTable(0, (), 1, (Branch(0, 0, (9,), laws(9), rank=1),)))
    assert cache.next_proposal(1, 1, [0]) == Found((5, 6, 7, 8), Source.PROPOSAL, 1, laws(5, 6, 7, 8))
    assert cache.next_proposal(1, 1, [0], impartial=True) == Found((4, 4), Source.PROPOSAL, 1, laws(4, 4))
    cache.put(1, OutcomeTable(1, (3,), 1, (Branch(0, 2, (9,), laws(9), rank=1),)))
    cache.put_proposal(1, Proposal(1, (2, 6, 6), laws(2, 6, 6)))
    assert cache.next_proposal(1, 2, [0, 2], impartial=True) == Found((9,), Source.TABLE, 1, laws(9), 1)


def test_which_entry_answers_impartially_depends_on_the_committed_text_alone():
    """Replace every token behind the committed text: the same entry answers."""
    rng = random.Random(5)
    for _ in range(300):
        committed = tuple(rng.randrange(3) for _ in range(rng.randrange(1, 4)))
        shapes = [(rng.randrange(len(committed) + 1), rng.randrange(4), rng.randrange(2)) for _ in range(3)]
        answers = []
        for offset in (0, 10):
            cache = SpeculationCache(tables_per_sequence=8)
            for place, (base, depth, kind) in enumerate(shapes):
                coming = (*committed[base:], *(offset + 30 + place + j for j in range(depth)))
                marked = laws(*coming, mark=float(place + 1))
                if kind or not coming:
                    cache.put_proposal(1, Proposal(base, coming, marked))
                else:
                    cache.put(1, OutcomeTable(base, (), depth, (Branch(0, coming[0], coming[1:], marked[1:]),)))
            found = cache.next_proposal(1, len(committed), committed, impartial=True)
            answers.append(found and (found.base_len, found.source, len(found.ids), found.laws[0].weights))
        assert answers[0] == answers[1]


def test_a_point_mass_is_a_law():
    assert point_mass(4).probabilities == (1.0,)
