"""From a matrix of toolchains to labelled, audited images."""
