"""`python -m feddle`: the same as the command `feddle`."""

from feddle.cli.main import main

main()
