"""`python -m snapline.cli`."""

from snapline.cli.app import main

main()
