export MAX_JOBS=$LANEWISE_JOBS FLASHINFER_NVCC_THREADS=1 FLASHINFER_WORKSPACE_BASE=$build/workspace
export FLASHINFER_DISABLE_VERSION_CHECK=1
# Only flashinfer.jit is imported: the package itself imports gigabytes that compiling does not need.
cat >"$build/compile.py" <<'PYTHON'
import importlib
import os
import shutil
import sys
import types
from pathlib import Path

package = types.ModuleType("flashinfer")
package.__path__ = [str(Path("flashinfer").resolve())]
sys.modules["flashinfer"] = package
jit, aot = importlib.import_module("flashinfer.jit"), importlib.import_module("flashinfer.aot")
env, comm = importlib.import_module("flashinfer.jit.env"), importlib.import_module("flashinfer.jit.comm")


def spec(name):
    for place in (jit, comm, aot):
        if maker := getattr(place, f"gen_{name.rstrip('?')}_module", None):
            return maker()
    if name.endswith("?"):
        print(f"lanewise: this version has no module {name.rstrip('?')}")
        return None
    sys.exit(f"lanewise: this version has no module {name}")


if os.environ["LANEWISE_MODULES"] == "all":
    folder = Path(os.environ["FLASHINFER_WORKSPACE_BASE"])
    aot.compile_and_package_modules(Path("flashinfer/data/aot"), folder, Path("flashinfer/data").resolve(), verbose=True)
else:
    specs = [made for name in os.environ["LANEWISE_MODULES"].split() if (made := spec(name))]
    jit.build_jit_specs(specs, verbose=True, skip_prebuilt=False)
    for made in specs:
        target = Path("flashinfer/data/aot", made.name, f"{made.name}.so")
        target.parent.mkdir(parents=True)
        shutil.copy2(env.FLASHINFER_JIT_DIR / made.name / target.name, target)
PYTHON
python "$build/compile.py"
mkdir "$build/packed"
wheel pack --dest-dir "$build/packed" .
wheel tags --remove --platform-tag linux_x86_64 "$build"/packed/*.whl
mv "$build"/packed/*.whl "$out"
