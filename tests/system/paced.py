"""`python paced.py SECONDS ARGUMENTS…` is `ssd ARGUMENTS…` whose forward passes take at least SECONDS: a service on a
device of that speed."""

import functools
import sys
import time

from ssd.cli.app import main
from ssd.runtime.runner import ModelRunner


def paced(method, seconds):
    @functools.wraps(method)
    def slower(*arguments):
        until = time.monotonic() + seconds
        result = method(*arguments)
        time.sleep(max(0.0, until - time.monotonic()))
        return result

    return slower


if __name__ == "__main__":
    pace = float(sys.argv.pop(1))
    for name in ("run", "run_branches"):
        setattr(ModelRunner, name, paced(getattr(ModelRunner, name), pace))
    main()
