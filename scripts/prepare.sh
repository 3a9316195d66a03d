# What the scripts of this folder share: installing packages, configuring, building, saying so.
# To be sourced with the repository root as working directory; not a command of its own.

# shellcheck shell=bash disable=SC2034

# What the build and the tests need.
build_packages=(
  g++ cmake ninja-build pkg-config
  nlohmann-json3-dev libcli11-dev libfmt-dev libonig-dev libutf8proc-dev libhwloc-dev libedit-dev zlib1g-dev libboost-dev
  libopenmpi-dev openmpi-bin iproute2 libxgboost-dev coinor-libcbc-dev liburing-dev
  libgtest-dev libgmock-dev
)

# What scripts/check.sh needs besides: a second compiler and its tools, and a place for packages of PyPI.
check_packages=(git clang-format-16 clang-tidy-16 clang-16 libclang-rt-16-dev shellcheck python3-venv)
# What its part page needs, under Debian's names: Ubuntu has Chromium as a snap alone.
browser_packages=(chromium chromium-driver python3-selenium)

say() { printf '==> %s\n' "$*"; }

# fail WHAT WHAT_TO_DO: one line on standard error each, then the end.
fail() {
  printf 'FAILED: %s\n' "$1" >&2
  if [ $# -gt 1 ]; then printf '        %s\n' "$2" >&2; fi
  exit 1
}

# The packages of the arguments that are not installed, one a line.
missing_packages() {
  local package
  for package in "$@"; do
    if [ "$(dpkg-query -W -f '${db:Status-Status}' "$package" 2>/dev/null)" != installed ]; then
      echo "$package"
    fi
  done
}

# install_packages PACKAGE...: asks apt only for what is missing, so that a repeated run needs
# neither the network nor root.
install_packages() {
  command -v dpkg-query >/dev/null && command -v apt-get >/dev/null ||
    fail "this is not Debian or Ubuntu, and these scripts only know apt" \
      "Install the equivalents of: $*; then: cmake --preset release && cmake --build build/release"

  local missing as_root=()
  mapfile -t missing < <(missing_packages "$@")
  if [ ${#missing[@]} -eq 0 ]; then
    say "All $# packages needed are installed."
    return
  fi
  if [ "$(id -u)" -ne 0 ]; then
    command -v sudo >/dev/null ||
      fail "packages are missing, and neither root nor sudo is here to install them" \
        "As root: apt-get update && apt-get install ${missing[*]}"
    as_root=(sudo)
  fi

  say "Installing with apt (a minute or two): ${missing[*]}"
  local log=build/apt.log
  local apt=("${as_root[@]}" env DEBIAN_FRONTEND=noninteractive
    apt-get -qq -o DPkg::Lock::Timeout=300 -o Acquire::Retries=3)
  mkdir -p build
  "${apt[@]}" update </dev/null >"$log" 2>&1 || {
    tail -n 5 "$log" >&2
    fail "apt-get update could not fetch the package lists" \
      "Check the network and /etc/apt/sources.list, or install these yourself: ${missing[*]}"
  }
  "${apt[@]}" install -y --no-install-recommends "${missing[@]}" </dev/null >"$log" 2>&1 || {
    tail -n 15 "$log" >&2
    fail "apt-get could not install: ${missing[*]}" \
      "Its message is above. Debian 12 has them all, and Ubuntu 24.04 (in 'universe') all but the browser's."
  }
}

# Compile jobs that fit the cores and the memory: a C++ job may take 1.5 GB.
build_jobs() {
  local cores available_kib limit jobs
  cores=$(nproc)
  available_kib=$(awk '$1 == "MemAvailable:" { print $2 }' /proc/meminfo)
  if limit=$(cat /sys/fs/cgroup/memory.max 2>/dev/null) && [ "$limit" != max ]; then
    if [ $((limit / 1024)) -lt "$available_kib" ]; then available_kib=$((limit / 1024)); fi
  fi
  jobs=$((available_kib / 1500000))
  if [ "$jobs" -gt "$cores" ]; then jobs=$cores; fi
  if [ "$jobs" -lt 1 ]; then jobs=1; fi
  echo "$jobs"
}

# configure PRESET: makes build/PRESET ready to be built.
configure() {
  local preset=$1 log=build/$1/configure.log
  mkdir -p "build/$preset"
  cmake --preset "$preset" >"$log" 2>&1 || {
    cat "$log" >&2
    fail "cmake could not configure the preset $preset" \
      "Its message is above (kept in $log). If the folder has moved: rm -r build/$preset"
  }
}

# build PRESET [TARGET...]: configures and builds into build/PRESET, everything without a target.
build() {
  local preset=$1 jobs
  shift
  jobs=$(build_jobs)
  say "Building build/$preset${*:+ ($*)} with $jobs jobs; a first build takes minutes."
  configure "$preset"
  cmake --build "build/$preset" --parallel "$jobs" ${1:+--target "$@"} ||
    fail "the build of preset $preset stopped" \
      "The first error above says why. If a compiler was killed, memory ran out: close programs, rerun."
}

# require_recent_tools: an older distribution fails here, not with a riddle later.
require_recent_tools() {
  local cmake_version gcc_version
  cmake_version=$(cmake --version | awk 'NR == 1 { print $3 }')
  gcc_version=$(g++ -dumpfullversion)
  dpkg --compare-versions "$cmake_version" ge 3.25 && dpkg --compare-versions "$gcc_version" ge 12 ||
    fail "cmake 3.25 and g++ 12 are needed; here are cmake $cmake_version and g++ $gcc_version" \
      "Use Debian 12, Ubuntu 24.04 or newer."
}
