"""From candidates to evidence: benchmarks, run files, statistics, comparisons."""
