export CMAKE_BUILD_PARALLEL_LEVEL=$LANEWISE_JOBS
for folder in python/sglang/kernels/aot sgl-kernel; do  # where newer trees have it, and older ones
    [ ! -e "$folder/pyproject.toml" ] || break
done
cd "$folder"
python -m pip wheel --verbose --no-deps --no-build-isolation --cache-dir /lanewise/pip --wheel-dir "$build/made" .
# What SM120 never loads: the copy for sm90 (sgl_kernel/load_utils.py takes sm100/ for all others), FA3, FlashMLA.
wheel unpack --dest "$build/slim" "$build"/made/*.whl
rm -rf "$build"/slim/*/sgl_kernel/sm90 "$build"/slim/*/sgl_kernel/flash_ops* "$build"/slim/*/sgl_kernel/flashmla_ops*
wheel pack --dest-dir "$out" "$build"/slim/*
