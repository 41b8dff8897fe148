#!/bin/sh
# Everything that needs the GPU, in one go: golden check, training, export, reference files.
#   make.sh BUILD GOLDEN OUT [options of train.py]
# BUILD holds tokens.npz (prepare.py), GOLDEN is tests/golden/k3_a. OUT gets models/, reference files and loss curves.
set -eu
build=$1 golden=$2 out=$3
shift 3
tools=$(dirname "$0")
mkdir -p "$out/models"
cp -r "$tools"/../../models/tiny-k3 "$tools"/../../models/tiny-k3-draft "$out/models/"
python3 "$tools/golden_check.py" "$golden" cuda
python3 "$tools/train.py" "$build/tokens.npz" "$out/models" "$out" "$@"
python3 "$tools/reference.py" "$build/tokens.npz" "$out/models/tiny-k3" "$out" reference --full
python3 "$tools/reference.py" "$build/tokens.npz" "$out/models/tiny-k3-draft" "$out" draft_reference
