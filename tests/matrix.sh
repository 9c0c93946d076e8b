#!/bin/sh
# Install pardbg and run its unit tests on several Pythons, each in a fresh environment:
#   tests/matrix.sh [PYTHON...]     default: python3.10 to python3.14, as far as they are here
# Prints a line each; exit code 1 if one fails, 2 if there is none.
cd "$(dirname "$0")/.." || exit 2
index=${TORCH_INDEX:+--extra-index-url $TORCH_INDEX}
given=$#
[ $given -gt 0 ] || set -- python3.10 python3.11 python3.12 python3.13 python3.14
work=$(mktemp -d) && trap 'rm -rf "$work"' EXIT
tried=0 failed=0
for python; do
  if ! version=$("$python" -c 'import platform as p; print(p.python_version())' 2>/dev/null); then
    [ $given -eq 0 ] || { echo "$python: not here"; failed=1; }
    continue
  fi
  tried=$((tried + 1)) log=$work/$version.log
  said=$(
    { "$python" -m venv "$work/$version" &&
      "$work/$version/bin/python" -m pip install --quiet --disable-pip-version-check $index \
        -c constraints.txt -e ./agent -e '.[train,dev]'; } >"$log" 2>&1 ||
      { echo "install failed: $(tail -n 1 "$log")"; exit 1; }
    OMP_NUM_THREADS=1 "$work/$version/bin/python" -m pytest -q -p no:cacheprovider \
      tests/unit tests/wire >"$log" 2>&1
    code=$?
    tail -n 1 "$log"
    grep -E '^(FAILED|ERROR)' "$log" | head -n 5 | sed 's/^/    /'
    exit $code
  ) || failed=1
  echo "Python $version: $said"
  rm -rf "${work:?}/$version"
done
[ $tried -gt 0 ] || { echo "no Python from 3.10 to 3.14 here; name some: make matrix PYTHONS=…"; exit 2; }
exit $failed
