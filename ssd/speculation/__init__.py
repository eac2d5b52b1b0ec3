"""Speculation as pure logic: drawing, proposals, outcome tables, verification, stops.

Only `philox`, `penalties`, `filters`, `race`, `sampling`, `rejection` and `sparse_law` use torch. Everything else, this
file included, stays free of it, because the router imports this package and runs without torch.
"""
