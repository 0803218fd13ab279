# Sourced by scripts/test. Installs what tests/slurm.py starts a real SLURM from; the tests start and stop it themselves.

# install_slurm: Debian or Ubuntu, as root or with sudo; nothing to do where it is there already.
install_slurm() {
    local tools=(munged slurmctld slurmd sbatch) missing=() tool
    for tool in "${tools[@]}"; do
        PATH="$PATH:/usr/sbin" command -v "$tool" >/dev/null || missing+=("$tool")
    done
    [[ ${#missing[@]} -gt 0 ]] || return 0
    command -v apt-get >/dev/null || fail "no ${missing[*]}: install slurmctld, slurmd, the SLURM commands and munge"
    local root=()
    [[ $EUID -eq 0 ]] || root=(sudo)
    echo "installing SLURM for its tests (${missing[*]} missing)"
    # No daemon of the packages' own is to start: some images have no systemd to start it, and all would be in the way.
    local install=(env DEBIAN_FRONTEND=noninteractive RUNLEVEL=1 apt-get install -y -qq --no-install-recommends slurmctld slurmd slurm-client munge)
    "${root[@]}" "${install[@]}" >/dev/null 2>&1 ||
        { "${root[@]}" apt-get update -qq && "${root[@]}" "${install[@]}" >/dev/null; } ||
        fail "SLURM could not be installed; apt's message is above"
}
