"""`python -m uhm` is `uhm`."""

from uhm.cli import main

if __name__ == "__main__":
    main()
