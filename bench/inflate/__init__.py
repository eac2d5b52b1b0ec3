"""Big models that compute the same function as a small one, so that a benchmark has real text and real acceptance at a
big model's cost.

Extra layers add exact zeros, extra channels stay zero, extra heads and intermediate channels reach nothing. Whatever
cannot reach the result holds random numbers, because arithmetic on zeros draws less power and so may run faster.
"""
