"""`python -m gpuload`: the command line without an installed script."""

from gpuload.cli.main import main

if __name__ == "__main__":
    main()
