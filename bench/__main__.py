"""`python -m bench [DATA]`: the comparison of loaders, as `make bench` runs it."""

import sys

from bench.loaders import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
