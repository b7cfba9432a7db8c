"""Inference servers measured: launch specs, lifecycle, load, counters, runs, comparisons, a live watch."""
