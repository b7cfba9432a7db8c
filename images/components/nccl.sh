options=(BUILDDIR="$build/nccl" CUDA_HOME="$CUDA_HOME" CUDA_LIB="$CUDA_HOME/lib64" NVCC_GENCODE="$NVCC_GENCODE")
[ -z "$LANEWISE_ONLY_FUNCS" ] || options+=(ONLY_FUNCS="$LANEWISE_ONLY_FUNCS")
make -j"$LANEWISE_JOBS" src.build "${options[@]}" NVCC="launch $CUDA_HOME/bin/nvcc" CXX="ccache g++"
library=$(readlink -f "$build/nccl/lib/libnccl.so")
grep -a -q "NCCL version $LANEWISE_VERSION.*compiled with CUDA" "$library"

# The wheel takes the place of NVIDIA's: torch finds libnccl.so.2 by DT_RPATH in nvidia/nccl/lib and nowhere else.
wheel=$build/wheel
info=$wheel/${LANEWISE_DISTRIBUTION//-/_}-$LANEWISE_VERSION.dist-info
mkdir -p "$wheel/nvidia/nccl/lib" "$wheel/nvidia/nccl/include" "$info"
cp "$library" "$wheel/nvidia/nccl/lib/libnccl.so.2"
cp -R "$build/nccl/include/." "$wheel/nvidia/nccl/include"
printf 'Metadata-Version: 2.1\nName: %s\nVersion: %s\n' "$LANEWISE_DISTRIBUTION" "$LANEWISE_VERSION" >"$info/METADATA"
printf 'Wheel-Version: 1.0\nGenerator: lanewise\nRoot-Is-Purelib: true\nTag: py3-none-linux_x86_64\n' >"$info/WHEEL"
wheel pack --dest-dir "$out" "$wheel"
