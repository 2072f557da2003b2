#!/bin/sh
# Copies this bundle to a device over adb: sh install.sh [SERIAL]
# It checks the device first: its ABI, Android version, chip and free space.
set -eu
CDPATH="" cd -- "$(dirname -- "$0")"
DESTINATION=/data/local/tmp/@APP_ID@/@NAME@
ABI="@ABI@" MIN_SDK=@MIN_SDK@ SOC_MODELS="@SOC_MODELS@"
fail() { echo "install.sh: $1" >&2; exit 1; }
undo() { adb shell "rm -rf '$DESTINATION.part'"; fail "$1"; }

command -v adb >/dev/null || fail "adb is not installed: it is part of Android's platform tools"
[ $# -eq 0 ] || export ANDROID_SERIAL="$1"
adb get-state >/dev/null 2>&1 || fail "no device answers: connect one with USB debugging allowed (adb devices lists them)"

abis=$(adb shell getprop ro.product.cpu.abilist | tr -d '\r')
suits=""
for abi in $ABI; do case ",$abis," in *",$abi,"*) suits=yes ;; esac; done
[ -n "$suits" ] || fail "the device runs $abis, this bundle is for $ABI"
sdk=$(adb shell getprop ro.build.version.sdk | tr -d '\r')
[ "$sdk" -ge "$MIN_SDK" ] || fail "the device has Android API level $sdk, this bundle needs $MIN_SDK"
soc=$(adb shell getprop ro.soc.model | tr -d '\r')
case " $SOC_MODELS " in
  "  ") ;;
  *" $soc "*) ;;
  *) echo "install.sh: the chip $soc has no compiled graphs here ($SOC_MODELS): the app will run on the processor" >&2 ;;
esac

needed=$(du -sk . | cut -f1)
free=$(adb shell df -k /data/local/tmp | tr -d '\r' | awk 'NR == 2 { print $4 }')
[ "$free" -gt "$((needed + needed / 10))" ] || fail "the device has $free kB free, $needed kB are needed: make room"

if command -v sha256sum >/dev/null; then
  sha256sum --check --quiet SHA256SUMS || fail "this bundle is damaged: make it again"
fi
adb shell "rm -rf '$DESTINATION.part' && mkdir -p '$DESTINATION.part'"
adb push . "$DESTINATION.part/" >/dev/null || undo "the copy failed"
# The device's own digests: what arrived is what was sent.
adb shell "cd '$DESTINATION.part' && sha256sum -c SHA256SUMS >/dev/null" || undo "the copy on the device is damaged"
adb shell "rm -rf '$DESTINATION' && mv '$DESTINATION.part' '$DESTINATION'"
echo "copied to $DESTINATION"
