"""`python -m minflinkd`."""

from minflinkd.cli.main import main

if __name__ == "__main__":
    main()
