#!/usr/bin/env bash
# Installs what tests of optional execution providers, of the web page and of JavaScript clients need, into the environment
# of the given Python and build/, and says what it skipped. A failing download is no failure: the tests skip with their own reason.
#   tests/install_providers.sh .venv/bin/python
set -uo pipefail

python=${1:?the Python of the environment}
skipped=()

wheel() {  # wheel DISTRIBUTION REQUIREMENT: without the dependencies, which would bring another onnxruntime
    "$python" -m pip show --quiet "$1" >/dev/null 2>&1 && return
    echo "Installing $2"
    "$python" -m pip install --disable-pip-version-check --quiet --no-deps --only-binary :all: "$2" 2>/dev/null ||
        skipped+=("$1: pip found no wheel of $2 for this machine")
}

newest_mesa() { dpkg-query --show --showformat '${Version}' mesa-vulkan-drivers 2>/dev/null | cut -d. -f1; }

backports() {  # add Debian's backports, from where apt has the release's own packages
    apt-cache policy | grep -q bookworm-backports && return
    local place
    place=$(apt-get indextargets --format '$(REPO_URI) $(CODENAME) $(COMPONENT)' | awk '/ bookworm main$/ {print $1; exit}')
    [ -n "$place" ] || return
    printf 'deb %s bookworm-backports main\n' "$place" >/etc/apt/sources.list.d/edgedecode-backports.list
}

mesa() {  # software Vulkan for WebGPU; the provider refuses Mesa below 25
    [ "$(newest_mesa || true)" -ge 25 ] 2>/dev/null && return
    if [ "$(id -u)" -ne 0 ] || ! command -v apt-get >/dev/null; then
        skipped+=("Vulkan in software: it needs root and apt; install mesa-vulkan-drivers 25 or later and libvulkan1")
        return
    fi
    local release suite=()
    release=$(. /etc/os-release && echo "${VERSION_CODENAME:-}")
    if [ "$release" = bookworm ]; then
        suite=(-t bookworm-backports)
        backports || { skipped+=("Vulkan in software: apt has no source of Debian's packages") && return; }
    fi
    echo 'Installing mesa-vulkan-drivers and libvulkan1'
    { apt-get update -qq && apt-get install -y -qq --no-install-recommends "${suite[@]}" mesa-vulkan-drivers libvulkan1; } \
        >/dev/null 2>&1 || { skipped+=("Vulkan in software: apt could not install mesa-vulkan-drivers") && return; }
    [ "$(newest_mesa || true)" -ge 25 ] 2>/dev/null || skipped+=("WebGPU: Mesa is older than 25 here")
}

browser() {  # for the web page
    command -v chromium >/dev/null || command -v google-chrome >/dev/null && return
    if [ "$(id -u)" -ne 0 ] || ! command -v apt-get >/dev/null; then
        skipped+=("Chromium: it needs root and apt; install chromium, or Google's Chrome")
        return
    fi
    echo 'Installing chromium'
    { apt-get update -qq && apt-get install -y -qq --no-install-recommends chromium; } >/dev/null 2>&1 ||
        skipped+=("Chromium: apt could not install it")
}

clients() {  # JavaScript clients of the server's APIs
    local folder=build/js_clients
    [ -d "$folder/node_modules/ai" ] && return
    command -v npm >/dev/null || { skipped+=("JavaScript clients: npm is not here") && return; }
    echo 'Installing JavaScript clients'
    mkdir -p "$folder" && npm install --prefix "$folder" --silent --no-audit --no-fund --ignore-scripts \
        ollama@0.6 openai@6 @anthropic-ai/sdk@1 ai@7 @ai-sdk/openai-compatible@2 @ai-sdk/anthropic@3 ai-sdk-ollama@4 \
        >/dev/null 2>&1 || skipped+=("JavaScript clients: npm could not install them")
}

wheel onnxruntime-ep-webgpu 'onnxruntime-ep-webgpu==0.4.*'
wheel onnxruntime-ep-openvino 'onnxruntime-ep-openvino==1.8.*'
wheel onnxruntime-qnn 'onnxruntime-qnn==2.7.*'
mesa
browser
clients

for line in "${skipped[@]+"${skipped[@]}"}"; do
    echo "Skipped: $line"
done
exit 0
