#!/usr/bin/env bash
# One part of `make test`: says that it begins, keeps what it prints, and shows all of it when it ends,
# so that parts that run side by side can be read. Called by the Makefile with its settings in the
# environment: PART_LOGS, PART_MINUTES, PYTEST_OPTIONS, PURE_TESTS.
#
#   test_part.sh coverage | compiled | "PATH..."  (a path may be a pattern)
#   test_part.sh second-tries                     after all parts: the last lines of `make test`
#
# Exit status 0 or 1, never 255: xargs goes on with the other parts.
set -uo pipefail
part=$1

# Always there, so that a run without second tries says so, too.
tell_second_tries() {
  local tries=$PART_LOGS/second-tries
  [ -s "$tries" ] || { echo "== second tries: none"; return; }
  echo "== second tries: $(wc -l <"$tries"), failed once and not when run again, each to be explained or mended:"
  cat "$tries"
}
[ "$part" != second-tries ] || { tell_second_tries; exit; }

name=$(tr -c 'a-z0-9_\n' - <<<"${part%% *}")
log=$PART_LOGS/$name.log
# Parts side by side would forget each other's failures in one.
cache=$PART_LOGS/cache-$name
began=$SECONDS
# Named with what failed: a test that fails after another one does so again in the same order only.
case $PYTEST_OPTIONS in
  *--randomly-seed=* | *no:randomly*) ;;
  *) PYTEST_OPTIONS+="${PYTEST_OPTIONS:+ }--randomly-seed=$(od -An -N3 -tu4 /dev/urandom | tr -d ' ')" ;;
esac
order=$(grep -oE -- '--randomly-seed=[^ ]+' <<<"$PYTEST_OPTIONS" | tail -n 1)

run() {
  case $part in coverage | compiled)
    make --no-print-directory "${part/#compiled/test-compiled}" PYTEST_OPTIONS="$PYTEST_OPTIONS"
    return
  esac
  local options=$PYTEST_OPTIONS path
  # There a failure takes minutes: a few of them are told while somebody still listens.
  [ "$part" != tests/e2e ] || options+=" --maxfail=3"
  # Members of images and wheels are compiled, so these are; the other parts run plain Python.
  [[ $part != tests/integration* ]] || export MEMBERS_COMPILED=1
  for path in $PURE_TESTS; do options+=" --ignore=$path"; done
  # An interrupted pytest ends what it started and says what has failed so far.
  # shellcheck disable=SC2086
  timeout --signal=INT --kill-after=120 "${PART_MINUTES}m" \
    .venv/bin/pytest -q -o cache_dir="$cache" $options "$@" $part
}

# Whatever waits for processes, sockets or timers can be late once on a machine that does other work as
# well. One or two failures of a part are run again by themselves: what is a fault fails again; one that
# does not is told at the end of `make test` (CONTRIBUTING.md), as a defect of the test or a rare one of
# ours.
FAILURES_MAX=2
look_again() {
  local failed
  failed=$(grep -cE '^(FAILED|ERROR) tests/' "$log")
  [ "$failed" -ge 1 ] && [ "$failed" -le $FAILURES_MAX ] || return 1
  echo "== $part: $failed failed: run again by themselves" >>"$log"
  run --last-failed --last-failed-no-failures none >>"$log" 2>&1
}

# What failed before the line that says so (here or in `make coverage`) and not behind it.
second_tries() {
  awk -v order="${order:+($order)}" '
    /^== .*: run again by themselves$/ { is_again = 1 }
    /^(FAILED|ERROR) tests\// {
      test = $2; for (i = 3; i <= NF && $i != "-"; i++) test = test " " $i
      if (is_again) delete first[test]; else first[test] = substr($0, 1, 200)
    }
    END { if (is_again) for (test in first) print first[test], order }' "$log"
}

echo "== $part: begins (its lines so far: $log)"
status=0
run >"$log" 2>&1 || status=$?
[ "$status" -ne 1 ] || ! look_again || status=0
second_tries >>"$PART_LOGS/second-tries"
[ "$status" -ne 124 ] || echo "interrupted after $PART_MINUTES minutes (PART_MINUTES)" >>"$log"
# One write for all of it, as far as the kernel lets us.
printf '%s\n' "== $part: $([ "$status" = 0 ] && echo passed || echo "FAILED ($status)") in $((SECONDS - began)) s
$(cat "$log")"
[ "$status" = 0 ]
