#!/bin/bash
# Runs commands side by side on one GPU, under NVIDIA's MPS: experiments/side_by_side.sh PROCESSES < COMMANDS
# COMMANDS has one command per line, such as
#   fedsparsify sweep experiments/rivals/a-cifar10-1000.toml --only 'topk_*seed-1990' --out runs/a-1000-topk --device cuda -q
# Output goes to build/side_by_side/LINE.log; a line here says how each ended. A stop is gone on from by --resume in every command.
# Do not end one command by a signal: MPS then ends those beside it.
set -u
most=${1:?how many processes at a time}
logs=build/side_by_side
mkdir -p "$logs/mps"
export CUDA_MPS_PIPE_DIRECTORY=$PWD/$logs/mps CUDA_MPS_LOG_DIRECTORY=$PWD/$logs/mps logs
if command -v nvidia-cuda-mps-control > /dev/null; then
  nvidia-cuda-mps-control -d
  trap 'echo quit | nvidia-cuda-mps-control' EXIT
else
  echo "nvidia-cuda-mps-control is not here: processes take turns on the GPU" >&2
fi
one() {
  local began=$SECONDS
  bash -c "$2" > "$logs/$1.log" 2>&1
  echo "line $1: exit $?, $((SECONDS - began)) s: $2"
}
export -f one
grep -n . | sed 's/:/\x00/' | tr '\n' '\0' | xargs -0 -n 2 -P "$most" bash -c 'one "$@"' _
