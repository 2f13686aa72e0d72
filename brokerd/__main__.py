"""`python -m brokerd`: the form used in images."""

from brokerd.cli import main

if __name__ == "__main__":
    main()
