#!/bin/sh
# Starts llama.cpp with this bundle's models and the arguments of its plan:
#   sh run.sh llama-server [MORE ARGUMENTS]     or     sh run.sh llama-cli -p "Hello"
# The program is looked for on PATH and next to this script; on a device, push it there first.
set -eu
CDPATH="" cd -- "$(dirname -- "$0")"
program=${1:?give llama-server or llama-cli}
shift
case $program in
@COMMANDS@
  *) echo "run.sh: give llama-server or llama-cli, not $program" >&2; exit 1 ;;
esac
[ ! -x "./$program" ] || program="./$program"
command -v "$program" >/dev/null || { echo "run.sh: $program is not here and not on PATH: build llama.cpp, or copy it next to run.sh" >&2; exit 1; }
exec "$program" "$@"
