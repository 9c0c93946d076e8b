#!/bin/sh
# Both wheels with the oldest releases of all that they need, on several Pythons, without a compiler
# (wheels alone) and without torch: start, record, report, check, export.
#   tests/lowest.sh [PYTHON...]     default: python3.10 to python3.14, as far as they are here
# A line each; exit code 1 if one fails. Needs uv (pip install uv); UV names another.
cd "$(dirname "$0")/.." || exit 2
uv=${UV:-uv}
command -v "$uv" >/dev/null || { echo "no uv here: pip install uv"; exit 2; }
builder=${BUILDER:-.venv/bin/python}
[ $# -gt 0 ] || set -- python3.10 python3.11 python3.12 python3.13 python3.14
work=$(mktemp -d) && trap 'rm -rf "$work"' EXIT
"$builder" -m tests.packaging.build "$work/dist" >/dev/null || exit 2
failed=0
for python; do
  version=$("$python" -c 'import platform as p; print(p.python_version())' 2>/dev/null) || continue
  log=$work/$version.log bin=$work/$version/bin
  if (
    set -e
    "$uv" venv --quiet --python "$python" "$work/$version"
    "$uv" pip install --quiet --python "$bin/python" --resolution lowest-direct \
      --only-binary :all: --find-links "$work/dist" -r pyproject.toml
    "$uv" pip install --quiet --python "$bin/python" --no-deps "$work"/dist/*.whl
    export PARDBG_NATIVE_BUILD=off
    "$bin/pardbg" --help
    "$bin/pardbg" run -o "$work/$version.mcap" -- "$bin/python" -c "print(1)" 2>"$work/err"
    cat "$work/err" && ! grep "NOT recorded" "$work/err"
    "$bin/pardbg" report "$work/$version.mcap"
    "$bin/pardbg" report sessions/1f1b.mcap --json
    "$bin/pardbg" check sessions/1f1b.mcap 'bubble<90%'
    "$bin/pardbg" export sessions/1f1b.mcap --to perfetto -o "$work/trace.json" --force
  ) >"$log" 2>&1; then
    echo "Python $version: ok"
  else
    failed=1
    echo "Python $version: $(tail -n 1 "$log")"
  fi
  rm -rf "${work:?}/$version"
done
exit $failed
