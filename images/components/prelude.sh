#!/bin/bash
# Every build script begins with these lines. They run in a builder container, without privileges:
#   /lanewise/source   what was fetched: a checkout, or a folder with one archive or wheel   (read-only)
#   /lanewise/patches  the component's patches                                               (read-only)
#   /lanewise/needs    wheels of rebuilt components that this one is built with              (read-only)
#   /lanewise/script   this script, and requires.txt                                         (read-only)
#   /lanewise/out      where the wheels go
#   /lanewise/ccache, /lanewise/pip   caches, kept between builds
set -euo pipefail
umask 022
build=/tmp/build
tree=$build/tree
out=/lanewise/out
mkdir -p "$build/home" "$build/bin" "$build/tmp"
export HOME=$build/home TMPDIR=$build/tmp LC_ALL=C.UTF-8 PYTHONHASHSEED=0 SOURCE_DATE_EPOCH=1577836800
export CCACHE_DIR=/lanewise/ccache CCACHE_BASEDIR=$build CCACHE_COMPILERCHECK=content CCACHE_NOHASHDIR=1 CCACHE_MAXSIZE=20G

echo "lanewise: installing what the build needs"
python3 -m venv "$build/venv"
export PATH=$build/bin:$build/venv/bin:$PATH
shopt -s nullglob
python -m pip install --quiet --disable-pip-version-check --cache-dir /lanewise/pip \
    -r /lanewise/script/requires.txt /lanewise/needs/*/*.whl
shopt -u nullglob

# CUDA from wheels lacks what a toolkit has: nvcc looks for lib64, the linker for libcudart.so and libcuda.so.
case $LANEWISE_CUDA_FROM in
    wheels)
        CUDA_HOME=$(echo "$build"/venv/lib/python3*/site-packages/nvidia/cu13)
        [ -e "$CUDA_HOME/lib64" ] || ln -s lib "$CUDA_HOME/lib64"
        ln -sf libcudart.so.13 "$CUDA_HOME/lib/libcudart.so"
        mkdir -p "$CUDA_HOME/lib/stubs"
        gcc -shared -o "$CUDA_HOME/lib/stubs/libcuda.so" -Wl,-soname,libcuda.so.1 -x c /dev/null
        ;;
    base) CUDA_HOME=${CUDA_HOME:-/usr/local/cuda} ;;
esac
if [ "$LANEWISE_CUDA_FROM" != none ]; then
    export CUDA_HOME PATH=$CUDA_HOME/bin:$PATH
    nvcc --version | tail -n 2
    [[ $(nvcc --version) == *"release $LANEWISE_CUDA,"* ]] || {
        echo "lanewise: this nvcc is not of CUDA $LANEWISE_CUDA" >&2
        exit 66
    }
fi

# The compiler launcher, between a build system and nvcc. It gives ccache options that ccache knows: with nvcc's own
# long ones for dependency files it caches nothing ("preprocessor_error", ccache 4.7.5). Where LANEWISE_ONLY is set, e.g.
# to 120, it leaves only device code of that name, for sources whose build takes no list of archs; a file that has none
# is compiled as it is.
cat >"$build/bin/launch" <<'LAUNCHER'
#!/bin/bash
code=() rest=() found=
while [ $# -gt 0 ]; do
    case $1 in
        -gencode | --generate-code) code+=("$1=$2") && shift ;;
        -gencode=* | --generate-code=*) code+=("$1") ;;
        --generate-dependencies-with-compile) rest+=(-MD) ;;
        --generate-nonsystem-dependencies-with-compile) rest+=(-MMD) ;;
        --dependency-output) rest+=(-MF) ;;
        *) rest+=("$1") ;;
    esac
    shift
done
for option in "${code[@]}"; do
    [[ $option != *code=*"$LANEWISE_ONLY"* ]] || found=1
done
for option in "${code[@]}"; do
    [ -n "$found" ] && [[ $option != *code=*"$LANEWISE_ONLY"* ]] || rest+=("$option")
done
exec ccache "${rest[@]}"
LAUNCHER
chmod +x "$build/bin/launch"

echo "lanewise: unpacking the sources"
case $LANEWISE_SOURCE in
    sdist) mkdir "$tree" && tar --no-same-owner --strip-components=1 -C "$tree" -xf /lanewise/source/* ;;
    wheel) wheel unpack --dest "$build/unpacked" /lanewise/source/*.whl && mv "$build"/unpacked/* "$tree" ;;
    *) cp -R --preserve=mode,links,timestamps /lanewise/source "$tree" ;;
esac
cd "$tree"
for file in /lanewise/patches/*.patch; do
    [ -e "$file" ] || continue
    echo "lanewise: applying ${file##*/}"
    for only in --dry-run --silent; do
        patch -p1 --fuzz=0 --forward --batch --no-backup-if-mismatch --reject-file=- "$only" <"$file" || {
            echo "lanewise: ${file##*/} does not apply" >&2
            exit 65
        }
    done
done
echo "lanewise: building version $LANEWISE_VERSION with $LANEWISE_JOBS jobs"

