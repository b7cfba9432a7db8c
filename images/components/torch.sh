nccl=$(echo "$build"/venv/lib/python3*/site-packages/nvidia/nccl)
ln -sf libnccl.so.2 "$nccl/lib/libnccl.so"
export NCCL_ROOT=$nccl NCCL_INCLUDE_DIR=$nccl/include NCCL_LIB_DIR=$nccl/lib MAX_JOBS=$LANEWISE_JOBS
python -m pip wheel --verbose --no-deps --no-build-isolation --cache-dir /lanewise/pip --wheel-dir "$out" .
