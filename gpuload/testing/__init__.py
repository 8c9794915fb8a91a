"""Checks that data sets of your own can run: the promises that gpuload's loader builds on."""

from gpuload.testing.conformance import CHECKS, Expected, check_dataset

__all__ = ["CHECKS", "Expected", "check_dataset"]
