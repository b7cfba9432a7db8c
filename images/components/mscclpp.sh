export CMAKE_BUILD_PARALLEL_LEVEL=$LANEWISE_JOBS SETUPTOOLS_SCM_PRETEND_VERSION=$LANEWISE_VERSION
export CMAKE_C_COMPILER_LAUNCHER=ccache CMAKE_CXX_COMPILER_LAUNCHER=ccache CMAKE_CUDA_COMPILER_LAUNCHER=launch
python -m pip wheel --verbose --no-deps --no-build-isolation --cache-dir /lanewise/pip --wheel-dir "$out" .
