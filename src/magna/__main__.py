"""`python -m magna` is the `magna` program (for `torchrun -m magna train …`)."""

from magna.cli import main

if __name__ == "__main__":
    main()
