"""`python -m godwit` is the command `godwit`."""

from godwit.cli import main

main()
