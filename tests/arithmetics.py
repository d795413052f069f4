"""Runs the tests that train or measure (marker `arithmetic`) under several arithmetics: `make test-arithmetics`.

    python -m tests.arithmetics [--only avx2-1 ...] [pytest arguments]

The last digits of a product of matrices hang on the instruction set, on the library's kernel for it and on the number
of threads, and training carries them into the first digits. A test may not hang on them. Each arithmetic is asked for
by environment variables, and a process says what is really in force before its tests run. Where a processor has
nothing beyond one of them, "native" is that one again, and is left out.
"""

import argparse
import json
import os
import subprocess
import sys

#: Libraries read these as they are loaded: torch's own kernels, oneDNN, OpenBLAS (NumPy, SciPy), MKL.
INSTRUCTIONS: dict[str, dict[str, str]] = {
    "native": {},
    "avx2": {
        "ATEN_CPU_CAPABILITY": "avx2",
        "DNNL_MAX_CPU_ISA": "AVX2",
        "ONEDNN_MAX_CPU_ISA": "AVX2",
        "OPENBLAS_CORETYPE": "Haswell",
        "MKL_ENABLE_INSTRUCTIONS": "AVX2",
        "MKL_CBWR": "AVX2",
        "NPY_DISABLE_CPU_FEATURES": "AVX512F AVX512CD AVX512_SKX AVX512_CLX AVX512_CNL AVX512_ICL AVX512_SPR",
    },
    "avx": {
        "ATEN_CPU_CAPABILITY": "default",
        "DNNL_MAX_CPU_ISA": "AVX",
        "ONEDNN_MAX_CPU_ISA": "AVX",
        "OPENBLAS_CORETYPE": "Sandybridge",
        "MKL_ENABLE_INSTRUCTIONS": "AVX",
        "MKL_CBWR": "AVX",
    },
    "sse": {
        "ATEN_CPU_CAPABILITY": "default",
        "DNNL_MAX_CPU_ISA": "SSE41",
        "ONEDNN_MAX_CPU_ISA": "SSE41",
        "OPENBLAS_CORETYPE": "Nehalem",
        "MKL_ENABLE_INSTRUCTIONS": "SSE4_2",
        "MKL_CBWR": "COMPATIBLE",
    },
}

THREADS = (1, 2)

MARKED = "arithmetic and not slow"

#: Seconds of one test: older instructions take several times as long.
TIMEOUT = 1800

_IN_FORCE = """
import json, re
import numpy, scipy.linalg, sklearn, torch
from threadpoolctl import threadpool_info
shown = torch.__config__.show()
a = torch.arange(40000, dtype=torch.float32).reshape(200, 200).remainder(7.3)
convolved = torch.nn.functional.conv2d(a.reshape(1, 4, 100, 100), a[:36, :4].reshape(4, 4, 3, 3))
print(json.dumps({
    "torch": re.search(r"CPU capability usage: (\\S+)", shown).group(1),
    "threads": torch.get_num_threads(),
    "blas": sorted({f"{p['internal_api']} {p.get('architecture', '')} x{p['num_threads']}"
                    for p in threadpool_info() if p["user_api"] == "blas"}),
    "digits": [f"{float(a.sin().matmul(a.cos()).double().sum()):.9f}", f"{float(convolved.sin().double().sum()):.9f}",
               f"{float((numpy.sin(a.numpy()) @ numpy.cos(a.numpy())).astype(float).sum()):.9f}"],
}))
"""


def environment(instructions: str, threads: int) -> dict[str, str]:
    counts = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), str(threads))
    return {**os.environ, **counts, **INSTRUCTIONS[instructions]}


def in_force(env: dict[str, str]) -> dict[str, object]:
    """What the libraries of a process with `env` say that they use."""
    shown = subprocess.run(
        [sys.executable, "-c", _IN_FORCE], env=env, capture_output=True, text=True, check=True
    )
    return dict(json.loads(shown.stdout))


def main() -> int:
    names = [f"{instructions}-{threads}" for instructions in INSTRUCTIONS for threads in THREADS]
    parser = argparse.ArgumentParser(description="the tests that train or measure, under several arithmetics")
    parser.add_argument("--only", nargs="+", choices=names, default=names)
    chosen, rest = parser.parse_known_args()
    seen: dict[str, str] = {}
    failed = []
    for name in chosen.only:
        instructions, threads = name.rsplit("-", 1)
        env = environment(instructions, int(threads))
        said = in_force(env)
        text = json.dumps(said)
        print(f"== {name}: {text}", flush=True)
        if text in seen:
            print(f"left out: the same as {seen[text]}", flush=True)
            continue
        seen[text] = name
        command = [sys.executable, "-m", "pytest", "-q", f"--timeout={TIMEOUT}", "-m", MARKED, *rest]
        if subprocess.run(command, env=env).returncode:
            failed.append(name)
    print(f"failed under: {', '.join(failed)}" if failed else f"green under: {', '.join(seen.values())}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
