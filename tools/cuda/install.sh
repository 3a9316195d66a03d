#!/usr/bin/env bash
# Installs CUDA's compiler and runtime from wheels, for builds with -DCONVENE_CUDA=ON (preset cuda) where no toolkit is
# installed: tools/cuda/install.sh [FOLDER]
#   FOLDER  of the virtual environment that has them; where none is named build/cuda-toolkit, in which cmake looks by
#           itself (another one: -DCUDAToolkit_ROOT=, with what this prints at its end). A virtual environment that is
#           in it already is made anew
# It needs neither root nor a GPU; the driver comes with the system. About 300 MB.
set -euo pipefail
start=$PWD
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
source scripts/prepare.sh

case "${1:-}" in
  -h | --help)
    sed -n '2,8s/^# //p' tools/cuda/install.sh
    exit
    ;;
  -*) fail "'$1' is no option" "tools/cuda/install.sh --help shows how it is used." ;;
  '') folder=$PWD/build/cuda-toolkit ;;
  /*) folder=$1 ;;
  *) folder=$start/$1 ;;
esac

# Such a file is written last, so that an installation that was cut off is made anew.
done_with=$folder/convene-requirements.txt
if ! cmp -s tools/cuda/requirements.txt "$done_with"; then
  # `venv --clear` removes all that is in the folder.
  if [ -e "$folder" ] && [ ! -f "$folder/pyvenv.cfg" ]; then
    [ -d "$folder" ] && [ -z "$(ls -A "$folder")" ] ||
      fail "$folder holds something other than a virtual environment, which this would remove" \
        "Name another FOLDER, which need not be there, or empty this one."
  fi
  mkdir -p "$folder"
  python3 -m venv --clear "$folder" ||
    fail "python3 cannot make a virtual environment in $folder" "On Debian and Ubuntu: apt-get install python3-venv"
  say "Installing $(grep -c == tools/cuda/requirements.txt) packages into $folder"
  "$folder/bin/pip" install --quiet --disable-pip-version-check --no-deps -r tools/cuda/requirements.txt ||
    fail "pip could not install them" "Its message is above; tools/cuda/requirements.txt lists them."
  cp tools/cuda/requirements.txt "$done_with"
fi

compilers=("$folder"/lib/python*/site-packages/nvidia/cu*/bin/nvcc)
"${compilers[0]}" --version >/dev/null || fail "nvcc is not in $folder" "rm -r $folder, and run this again."
say "CUDA is in $(dirname "$(dirname "${compilers[0]}")")"
say "Next: cmake --preset cuda && cmake --build build/cuda"
