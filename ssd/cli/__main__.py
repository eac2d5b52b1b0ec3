"""`python -m ssd.cli`: what the console script `ssd` runs, with the interpreter of your choice."""

from ssd.cli.app import main

main()
