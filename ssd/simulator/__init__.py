"""A discrete-event model of the whole system around the real speculation cache, fan-out, rebase and governor.

No model and no GPU: step times, acceptances and delays are given; what is decided is decided by the code that serves.
"""
