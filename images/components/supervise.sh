#!/bin/bash
# The first process of a builder container: runs the build script until that ends, or until standard input does. The
# engine closes standard input when whoever started the container is gone, of whatever: then nothing goes on.
bash /lanewise/script/build.sh </dev/null 2>&1 &  # one stream, so that the log is in order
build=$!
(cat >/dev/null && kill -KILL -1) <&0 &
wait "$build"
